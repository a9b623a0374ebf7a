"""Quantus's metrics on our methods, and our methods as its explain_func."""

import builtins
import random

import numpy as np
import pytest
import torch
from torch import nn

from codanet import CoDANet
from codanet.attribution import Occlusion, attribute
from codanet.data import ImageData, MemorySplit
from codanet.data.pictures import Pictures
from codanet.evaluation import evaluate
from codanet.integrations.quantus import explain_func, quantus_scores
from codanet.metrics import find_metric
from codanet.metrics.quantus import quantus_names
from codanet.models.hybrid import HybridNet, head_layers
from codanet.models.network import Layer

quantus = pytest.importorskip("quantus")
SIZE = 12


def coda() -> CoDANet:
    return CoDANet([Layer(8, 2), Layer(4, 2, stride=2)], image_size=SIZE, temperature=4)


class Brightness(nn.Module):
    """Class k is the sum of quarter k of the columns."""

    def forward(self, images):
        return images.mean((1, 2)).unflatten(1, (4, -1)).sum(2)


def test_explain_func_is_attribute_with_arrays():
    model, images = coda(), torch.rand(2, 3, SIZE, SIZE)
    maps = explain_func(model, images.numpy(), np.array([1, 3]), method="occlusion5", seed=2, device="cpu")
    assert isinstance(maps, np.ndarray)
    assert maps.shape == (2, 1, SIZE, SIZE)
    np.testing.assert_array_equal(maps[:, 0], attribute(model, images, [1, 3], "occlusion5", seed=2).numpy())
    with pytest.raises(ValueError, match="no setting 'steps': it has method, seed and batch_size"):
        explain_func(model, images.numpy(), np.array([1, 3]), steps=3)


def test_sparseness_of_known_maps():
    """The Gini index of a map that is constant on a share f of the pixels and 0 elsewhere is 1 - f."""
    images = torch.ones(3, 3, SIZE, SIZE)
    scores = quantus_scores(quantus.Sparseness(disable_warnings=True), Brightness(), images, [0, 1, 3], "ixg")
    np.testing.assert_allclose(scores, 0.75, atol=0.01)


def test_pixel_flipping_sees_the_right_pixels_first():
    """The class's own columns are 3 x 36 of 12 x 36 values: after three steps the whole logit, 3, is gone."""
    images = torch.ones(1, 3, SIZE, SIZE)
    metric = quantus.PixelFlipping(features_in_step=36, perturb_baseline=0.0, disable_warnings=True)
    curve = np.asarray(quantus_scores(metric, Brightness(), images, 2, "ixg"))[0]
    np.testing.assert_allclose(curve, [2, 1] + [0] * 10, atol=1e-6)
    wrong = np.asarray(quantus_scores(metric, Brightness(), images, 2, "random"))[0]
    assert wrong[2] > 1.5


@pytest.mark.parametrize("method", ["contributions", Occlusion(3, 3)])
def test_faithfulness_of_a_coda_net_repeats_and_leaves_the_caller_alone(method):
    model, images = coda().train(), torch.rand(2, 3, SIZE, SIZE)
    metric = quantus.FaithfulnessCorrelation(
        nr_runs=10, subset_size=40, perturb_baseline=0.0, return_aggregate=False, disable_warnings=True
    )
    before = torch.get_rng_state(), repr(np.random.get_state()), random.getstate()  # noqa: NPY002 (the caller's own)
    scores = quantus_scores(metric, model, images, method=method, seed=1)
    after = torch.get_rng_state(), repr(np.random.get_state()), random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert model.training
    assert len(scores) == 2
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(quantus_scores(metric, model, images, method=method, seed=1), scores)


def test_a_hybrid_loses_pixels_as_in_an_evaluation():
    """Not features, whose maps are of another size."""
    backbone = nn.Conv2d(3, 8, 3, stride=4, padding=1)
    model, images = HybridNet(backbone, head_layers(4, (4,), 2), image_size=SIZE).eval(), torch.rand(2, 3, SIZE, SIZE)
    metric = quantus.PixelFlipping(features_in_step=SIZE, perturb_baseline=0.0, disable_warnings=True)
    assert np.shape(quantus_scores(metric, model, images)) == (2, 3 * SIZE)  # a row of a channel at a time


def test_image_space_is_refused_where_encoded_pixels_are_removed():
    with pytest.raises(ValueError, match="leave it out"):
        quantus_scores(
            quantus.Sparseness(disable_warnings=True),
            coda(),
            torch.rand(1, 3, SIZE, SIZE),
            0,
            Occlusion(3, 3, space="image"),
        )


def test_bad_input_is_answered_in_words(monkeypatch):
    model, images = coda(), torch.rand(2, 3, SIZE, SIZE)
    metric = quantus.Sparseness(disable_warnings=True)
    with pytest.raises(ValueError, match="give a Quantus metric"):
        quantus_scores(lambda: 0, model, images)
    with pytest.raises(ValueError, match="out of range"):
        quantus_scores(metric, model, images, 9)
    with pytest.raises(ValueError, match="one class per image"):
        quantus_scores(metric, model, images, "all")
    with pytest.raises(ValueError, match="unknown method"):
        quantus_scores(metric, model, images, 0, "gradcan")
    plain = builtins.__import__

    def without(name, *arguments):
        if name == "quantus":
            raise ModuleNotFoundError(name=name)
        return plain(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"pip install 'codanet\[quantus\]'"):
        quantus_scores(metric, model, images)


@pytest.mark.parametrize(
    "metric",
    [
        quantus.PixelFlipping(
            features_in_step=SIZE, perturb_baseline=0.0, return_auc_per_sample=True, disable_warnings=True
        ),
        quantus.IROF(perturb_baseline=0.0, return_aggregate=False, disable_warnings=True),
        quantus.SmoothMPRT(nr_samples=3, return_average_correlation=True, disable_warnings=True),
    ],
    ids=lambda metric: type(metric).__name__,
)
def test_metrics_that_need_mending_work_on_encoded_images(metric):
    """numpy without trapz, a mask of one channel, maps asked of Quantus instead of the function given to it."""
    scores = quantus_scores(metric, coda(), torch.rand(2, 3, SIZE, SIZE))
    assert np.asarray(scores).shape == (2,)
    assert np.isfinite(scores).all()


def test_the_area_under_a_known_curve():
    metric = quantus.PixelFlipping(
        features_in_step=36, perturb_baseline=0.0, return_auc_per_sample=True, disable_warnings=True
    )
    area = quantus_scores(metric, Brightness(), torch.ones(1, 3, SIZE, SIZE), 2, "ixg")
    np.testing.assert_allclose(area, 2.0, atol=1e-6)  # of 2, 1, 0, 0, …


def test_equality_of_floating_point_sums_is_refused():
    with pytest.raises(ValueError, match="take the metric completeness"):
        quantus_scores(quantus.Completeness(disable_warnings=True), coda(), torch.rand(1, 3, SIZE, SIZE))
    with pytest.raises(ValueError, match="take the metric completeness"):
        find_metric("quantus:completeness")


def test_any_metric_by_its_name():
    names = quantus_names()
    assert {"pixel-flipping", "irof", "smooth-mprt", "auc", "top-k-intersection", "sparseness"} <= set(names)
    assert len(names) >= 35
    metric = find_metric("quantus:pixel-flipping:features_in_step=36")
    assert not metric.higher_is_better
    assert "features_in_step = 36" in metric.about
    assert find_metric("quantus:sparseness").higher_is_better
    with pytest.raises(ValueError, match="did you mean 'pixel-flipping'"):
        find_metric("quantus:pixel-fliping")
    with pytest.raises(ValueError, match="no setting 'features': did you mean 'features_in_step'"):
        find_metric("quantus:pixel-flipping:features=3")


def test_an_evaluation_by_quantus(tmp_path, capsys):
    """The same numbers as by hand, NaN as failed samples, and what does not fit left out in a sentence."""
    images = (torch.rand(20, 3, SIZE, SIZE) * 255).byte()
    split = MemorySplit(images, torch.arange(20) % 4)
    data = ImageData("planted", tuple("abcd"), split, split, (SIZE, SIZE), 3, "0" * 64)
    model = coda().eval()
    named = ["quantus:sparseness", "quantus:input-invariance", "quantus:relative-input-stability:nr_samples=2"]
    results = evaluate({"m": model}, data, ["contributions"], named, tmp_path, images=20)
    row = results.row("m", "contributions", "quantus:sparseness")
    assert (row.n, row.failed, row.higher_is_better) == (20, 0, True)
    scores = results.scores["m", "contributions", "quantus:sparseness"].values
    order = Pictures(split).sample(20, 20, 0)
    metric = quantus.Sparseness(disable_warnings=True)
    by_hand = quantus_scores(metric, model, images[order] / 255, split.labels[order])
    np.testing.assert_allclose(scores, by_hand, atol=1e-6)
    assert any("input-invariance cannot be measured (NotImplementedError" in remark for remark in results.remarks)
    stability = results.row("m", "contributions", "quantus:relative-input-stability:nr_samples=2")
    assert stability.failed == stability.notes.get("Quantus gives no finite number", 0)
    assert "Sparseness of Quantus" in (tmp_path / "table.md").read_text()
