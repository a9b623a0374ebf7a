"""What a report shows beside the model's own maps."""

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

import codanet
from codanet.data import load_data
from codanet.data.pictures import Pictures
from codanet.evaluation import evaluate
from codanet.models.network import Layer
from codanet.report import report
from codanet.report.beside import beside, four, shares, strongest, usual
from codanet.report.findings import find
from reports import Page, coloured_pictures, harmless, model_of


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    return coloured_pictures(tmp_path_factory.mktemp("pictures"))


FOUR = {"black": (15, 15, 15), "blue": (15, 15, 225), "green": (15, 225, 15), "red": (225, 15, 15)}


@pytest.fixture(scope="module")
def four_colours(tmp_path_factory):
    """Pictures of four plain colours, and a network whose every class has its positive pixels in its own quarter."""
    folder = tmp_path_factory.mktemp("four") / "pictures"
    for part in ("train", "val"):
        for name, colour in FOUR.items():
            (folder / part / name).mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (16, 16), tuple(each + number for each in colour)).save(
                    folder / part / name / f"{number}.png"
                )
    model = codanet.CoDANet([Layer(4, 1, kernel_size=1)], image_size=16, temperature=20.0, class_names=tuple(FOUR))
    unlike = torch.tensor([-1.0, -1.0, -1.0, 0.3, 0.3, 0.3])
    weights = torch.tensor([[-0.6, -0.6, 1, 0, 0, 0], [-0.6, 1, -0.6, 0, 0, 0], [1, -0.6, -0.6, 0, 0, 0]])
    with torch.no_grad():
        model.dau_layers[0].B.zero_()
        model.dau_layers[0].A.zero_()
        model.dau_layers[0].A[-1] = torch.cat([unlike[None], weights])
    data = load_data(folder)
    model.provenance = {"settings": {"data": str(folder), "seed": 0}, "data": data.name}
    return model.eval(), data, folder


def test_maps_beside_those_of_other_methods(four_colours):
    model, data, _ = four_colours
    found = find(model, Pictures(data.val), data.classes)
    html = beside(model, found, {"ixg": 0.75, "rise:masks=20": 0.5})
    assert re.findall(r"<b>(\w+)</b> <small>([\w ]+), image \d+", html) == [
        (data.classes[case.said], place)
        for case, place in zip(found.right, ("upper left", "upper right", "lower left", "lower right"), strict=True)
    ]
    alts = re.findall(r"<img src='data:image/png;base64,[^']+' alt='([^']+)'>", html)
    assert alts[0::4] == ["the image"] * 4
    assert alts[1::4] == ["contributions 100%"] * 4
    assert alts[2::4] == ["IxG 100%"] * 4  # for a network with constant weights both are the same
    assert all(re.fullmatch(r"RISE:masks=20 \d+%", alt) for alt in alts[3::4])
    assert "IxG 0.750, RISE:masks=20 0.500" in html


def test_without_a_measurement_two_usual_methods(four_colours):
    model, data, _ = four_colours
    html = beside(model, find(model, Pictures(data.val), data.classes), {})
    assert "localisation was measured here: two well-known" in html
    assert [len(re.findall(f"alt='{name} [0-9]+%'", html)) for name in ("contributions", "GradCAM", "Occ9")] == [4] * 3
    assert usual((64, 64)) == ["gradcam", "occlusion9"]
    assert usual((128, 128)) == ["gradcam", "occlusion9:stride=4"]
    assert usual((448, 448)) == ["gradcam", "occlusion9:stride=9"]


def test_methods_that_fail_are_said(four_colours):
    model, data, _ = four_colours
    found = find(model, Pictures(data.val), data.classes)
    html = beside(model, found, {"occlusion9:window=<b>99": 0.9, "rise:masks=[": 0.8})
    assert html.count("is left out") == 2
    assert "<b>99" not in html
    assert "<img" not in html
    html = beside(model, found, {"occlusion9:window=99": 0.9, "ixg": 0.8})
    assert "Occ9:window=99 is left out: a window of 99 does not fit" in html
    assert html.count("<img") == 4 * 3


def test_no_multi_image_of_three_classes(pictures):
    model, data, _ = model_of(pictures)
    found = find(model, Pictures(data.val), data.classes)
    assert len(found.right) == 3
    assert four(found) == four(None) == []
    assert beside(model, found, {"ixg": 0.5}) == beside(model, None, {}) == ""


def test_no_multi_image_of_another_network(four_colours):
    model, data, _ = four_colours
    found = find(model, Pictures(data.val), data.classes)
    assert len(four(found)) == 4
    assert beside(torch.nn.Flatten(), found, {}) == ""


def test_the_strongest_methods_were_measured():
    means = {"contributions": 0.9, "ixg": 0.2, "occlusion9:stride=4": 0.6, "gradcam": 0.4, "mine": 0.8, "rise": None}
    rows = [{"metric": "localisation", "model": "a", "method": name, "mean": mean} for name, mean in means.items()]
    rows += [
        {"metric": "localisation", "model": "b", "method": "grad", "mean": 0.95},
        {"metric": "removal", "model": "a", "method": "lime", "mean": 0.95},
        {"metric": "localisation", "model": "a", "method": "deeplift", "mean": float("nan")},
    ]
    assert list(strongest(rows, "a").items()) == [("occlusion9:stride=4", 0.6), ("gradcam", 0.4)]
    assert strongest(rows, "b") == {"grad": 0.95}
    assert strongest(rows, "c") == strongest([{}], "a") == {}


def test_shares_of_any_map():
    maps = torch.zeros(4, 6, 8)
    maps[0, :3, :4] = 1  # all of it in the right quarter
    maps[1] = 2.5  # evenly spread
    maps[2] = -1  # nothing positive
    maps[3, 0, 0] = torch.nan
    assert shares(maps) == ["100%", "25%", "0%", "none"]
    assert shares(torch.zeros(4, 6, 8)) == ["0%"] * 4


def test_an_evaluation_chooses_what_stands_beside(four_colours, tmp_path):
    model, _, folder = four_colours
    codanet.save(model, tmp_path / "colours.safetensors")
    chosen = ["contributions", "grad", "ixg", "random"]
    file, results = str(tmp_path / "colours.safetensors"), tmp_path / "results"
    evaluate([file], folder, chosen, ["localisation"], results, grids=2, grid_size=2, quiet=True)
    measured = json.loads((results / "results.json").read_text())
    for means in ({"grad": 0.1, "ixg": 0.2, "random": 0.3}, {"grad": 0.6, "ixg": 0.5, "random": 0.3}):
        for row in measured["rows"]:
            row["mean"] = means.get(row["method"], row["mean"])
        (results / "results.json").write_text(json.dumps(measured))
        page = Page(report(results, quiet=True))
        harmless(page)
        assert "Beside other methods on colours" in page.plain
        best = sorted(means, key=means.get)[-2:]
        shown = {"grad": "Grad", "ixg": "IxG", "random": "Random"}
        for name, title in shown.items():
            assert len(re.findall(f"alt='{title} [0-9]+%'", page.text)) == (4 if name in best else 0)
