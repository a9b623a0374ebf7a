"""The experiments on photographs: what they refuse before they work, and what they compute."""

import json

import pytest
import torch
from PIL import Image
from torch import nn

import cut_points
import photograph_heads
import photograph_maps
from codanet.attribution import MethodSpec
from codanet.models.efficientnet_lite import EfficientNetLite0
from codanet.models.hybrid import HybridNet, head_layers

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("photographs")
    for name, colour in (("blue", (30, 60, 220)), ("red", (220, 40, 30))):
        (place / name).mkdir()
        for index in range(12):
            Image.new("RGB", (60, 45), (colour[0] + index, *colour[1:])).save(place / name / f"{index}.png")
    return place


def test_maps_of_photographs_are_asked_of_a_hybrid(folder, tmp_path, capsys):
    assert photograph_maps.main(["cifar10", str(folder), "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "photograph_maps: cifar10 is no hybrid: give a model that stands on a backbone\n"


def test_the_methods_on_photographs_are_known():
    for method in (*photograph_maps.OF_THE_HYBRID, *photograph_maps.OF_THE_BACKBONE):
        MethodSpec.parse(method)


def test_the_head_of_the_plain_network_tells_pooled_features_apart():
    model = photograph_maps.Plain(EfficientNetLite0(), 2)
    labels = torch.arange(6) % 2
    pooled = torch.randn(1, 6, 1280, generator=torch.Generator().manual_seed(0)).expand(2, -1, -1)
    photograph_maps.train_head(model, pooled, labels)
    assert torch.equal(model.backbone.classifier(pooled[0]).argmax(1), labels)
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_heads_are_compared_by_their_own_maps_and_by_occlusion():
    head = photograph_heads.head_of("head=64/8/1,pulled=0.5")
    assert (head.head, head.pulled, head.evidence) == ("64/8/1", 0.5, photograph_heads.Head().evidence)
    torch.manual_seed(0)
    model = HybridNet(nn.Conv2d(3, 8, 3, 2, 1), head_layers(2, (6,), 3), image_size=16, temperature=4.0).double()
    features = torch.randn(1, 8, 6, 10).double()
    found = photograph_heads.maps_of(model, features, torch.tensor([1, 0]))
    own = model.explain(features.expand(2, -1, -1, -1), torch.tensor([1, 0])).positions
    assert (found["own"] - own).abs().max() < 1e-12
    assert all(each.shape == own.shape for each in found.values())


def test_cut_points_need_as_many_classes_as_a_grid_has_cells(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cut_points, "train", lambda *_, **__: pytest.fail("it was trained"))
    assert cut_points.main([str(folder), "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("has 2 classes: a 2x2 grid needs 4 or more\n")


def test_a_cut_that_is_unsure_of_everything_keeps_its_row():
    row = {"accuracy": 0.5, "accuracy_interval_95": (0.4, 0.6)}
    unsure = {"localisation": float("nan"), "localisation_interval_95": (float("nan"), float("nan"))}
    sure = {"localisation": 0.8, "localisation_interval_95": (0.7, 0.9)}
    axes = cut_points.figure({4: row | unsure, 16: row | sure}, "").axes
    assert list(axes[0].lines[0].get_ydata()) == [0.5, 0.5]
    assert list(axes[1].lines[0].get_ydata())[1] == 0.8


def test_results_of_other_settings_are_not_written_over(tmp_path):
    file = tmp_path / "photograph_maps.json"
    kept = {"model": "waste", "grids": 100, "localisation": {"hybrid rise": {"mean": 0.5}}}
    file.write_text(json.dumps(kept))
    assert photograph_maps.taken_up(file, {"model": "waste", "grids": 100, "localisation": {}}) == kept
    with pytest.raises(ValueError, match="has grids 100, now it is 10: choose another --output"):
        photograph_maps.taken_up(file, {"model": "waste", "grids": 10, "localisation": {}})
    assert json.loads(file.read_text()) == kept


def test_a_model_of_other_classes_is_refused(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(photograph_maps, "plain_network", lambda *_: pytest.fail("work was begun"))
    assert photograph_maps.main(["waste", str(folder), "--output", str(tmp_path)]) == 2
    assert "has 6 classes and" in capsys.readouterr().err
