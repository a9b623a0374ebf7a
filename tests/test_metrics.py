"""Metrics on maps whose score is known by construction, and on planted models whose right answer is provable."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from classifiers import Light
from codanet.data import DataError, MemorySplit, Split
from codanet.data.pictures import Pictures
from codanet.evaluation.records import Record, _decoded, _encoded
from codanet.metrics import (
    METRICS,
    DoesNotFit,
    Scores,
    box_share,
    choose_metrics,
    completeness,
    confident_images,
    contributions,
    predict,
    register_metric,
    removal,
    sanity,
)
from codanet.metrics.pointing import hits
from codanet.metrics.sanity import layer_groups, rank_correlation, similarity
from codanet.metrics.scores import NO_POSITIVE, NOT_FINITE
from codanet.metrics.share import box_masks
from codanet.models.classifier import log_odds
from codanet.models.network import CoDANet, Layer
from codanet.models.resnet import resnet20
from colours import Colours, coloured
from networks import tiny

pytestmark = pytest.mark.usefixtures("one_thread")


# boxes, completeness


def test_boxes():
    boxes = torch.tensor([[2, 1, 4, 2], [0, 0, 7, 7], [2, 1, 4, 2], [9, 9, 12, 12], [0, 0, 1, 1.0]])
    inside = box_masks(boxes, 8, 8)
    assert inside[0].sum() == 6
    assert inside[0, 1:3, 2:5].all()
    maps = torch.ones(5, 8, 8)
    maps[2] = -inside[2].float()  # all negative
    maps[4, 3, 3] = torch.nan
    images, targets = torch.rand(5, 1, 8, 8), torch.zeros(5).long()
    scores = box_share(Light(), images, targets, maps, boxes)
    assert scores.values[:3].tolist() == pytest.approx([6 / 64, 1, 0])
    chance = [6 / 64, 1, 6 / 64, torch.nan, 4 / 64]
    assert scores.extras["chance"].tolist() == pytest.approx(chance, nan_ok=True)
    assert scores.failed == 2
    assert set(scores.reasons) == {NO_POSITIVE, NOT_FINITE, "the box holds no pixel of the image"}
    perfect = box_share(Light(), images[:1], targets[:1], inside[:1].float(), boxes[:1])
    assert perfect.mean == 1
    with pytest.raises(ValueError, match="2 boxes were given for 5 images"):
        box_share(Light(), images, targets, maps, boxes[:2])
    pointed = hits("pointing-box", maps, inside)
    assert pointed.values[:3].tolist() == pytest.approx([6 / 64, 1, 0])
    assert pointed.notes == scores.notes


def test_boxes_move_with_the_cut():
    images = torch.zeros(1, 3, 10, 10, dtype=torch.uint8)
    images[0, :, 4:6, 3:5] = 255
    split = MemorySplit(images, torch.zeros(1).long(), torch.tensor([[3.0, 4, 4, 5]]))
    whole, cut = Pictures(split), Pictures(split, (6, 8))
    for pictures in (whole, cut):
        image = pictures.read([0])[0]
        x_min, y_min, x_max, y_max = pictures.boxes([0])[0].int().tolist()
        assert (image[0, :, y_min : y_max + 1, x_min : x_max + 1] == 1).all()
        assert image.sum() == 12
    with pytest.raises(ValueError, match="have no boxes"):
        coloured().boxes([0])


def test_completeness():
    model, images, targets = tiny(), torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])
    exact = completeness(model, images, targets, contributions)
    assert exact.values.max() < 1e-5
    assert completeness(model, images, targets, torch.zeros(4, 16, 16)).values.tolist() == [1] * 4
    maps = model.explain(images, targets).pixels
    half, double = (completeness(model, images, targets, factor * maps).values for factor in (0.5, 2))
    total, size = maps.double().sum((1, 2)).abs(), maps.double().abs().sum((1, 2))
    assert torch.allclose(half, (total / 2) / torch.maximum(size / 2, total), rtol=1e-4)
    assert torch.allclose(double, total / (2 * size), rtol=1e-4)
    maps = torch.zeros(4, 16, 16)
    maps[1, 0, 0] = torch.inf
    assert completeness(model, images, targets, maps).failed == 1
    assert completeness(Light(), images[:, :1], targets * 0, images[:, 0]).values.max() < 1e-6


# the sanity check


def test_sanity_of_maps_that_ignore_the_model_is_one():
    images, targets = torch.rand(3, 3, 16, 16), torch.tensor([0, 1, 2])
    check = sanity(tiny(), images, targets, lambda model, images, targets: images.sum(1) - 1)
    assert check.steps == ("layers.1", "layers.0")
    assert check.maps.shape == (3, 3, 16, 16)
    for values in check.scores.extras.values():
        assert torch.allclose(values, torch.ones(3, 2).double())


def test_sanity_of_contributions_drops_and_leaves_the_model_alone():
    model, images, targets = tiny(), torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    check = sanity(model, images, targets, contributions)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.allclose(check.maps[:, 0], model.explain(images, targets).pixels.double(), atol=1e-6)
    assert check.scores.mean < 0.9
    assert check.scores.extras["ssim"].max() < 0.99
    again = sanity(model, images, targets, contributions)
    assert torch.equal(check.maps, again.maps)


def test_layers_from_the_output_in_few_groups():
    groups = layer_groups(resnet20(), most=4)
    names = [name for group in groups for name, _ in group]
    assert len(groups) == 4
    assert names[0] == "linear"
    assert names[-2:] == ["conv1", "bn1"]  # a normalisation with the layer before it
    assert len(names) == len(set(names)) == 39
    with pytest.raises(DoesNotFit, match="no layer of this Light can be re-initialised"):
        layer_groups(Light())


def test_no_layer_stays_trained_in_the_sanity_check():
    """torch's attention has no reset_parameters(): the maps would be compared while it is what it was."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.MultiheadAttention(8, 2))
    with pytest.raises(DoesNotFit, match="1 of this Sequential has parameters but no reset_parameters"):
        layer_groups(model)
    with pytest.raises(DoesNotFit, match="the whole of this MultiheadAttention has parameters"):
        layer_groups(model[1])


def test_similarities_of_known_maps():
    ramp = np.arange(64.0).reshape(8, 8)
    assert rank_correlation(ramp, ramp**3) == pytest.approx(1)
    assert rank_correlation(ramp, -ramp) == pytest.approx(-1)
    assert rank_correlation(ramp, np.zeros((8, 8))) == 0
    assert rank_correlation(np.zeros((8, 8)), np.zeros((8, 8))) == 1
    assert similarity(ramp, 2 * ramp) == pytest.approx(1)
    assert similarity(ramp, -ramp) < 0
    assert np.isfinite(similarity(ramp, np.zeros((8, 8))))
    assert np.isnan(similarity(ramp[:2], ramp[:2]))


def test_sanity_counts_maps_that_are_not_finite():
    images, targets = torch.rand(2, 3, 16, 16), torch.tensor([0, 1])

    def broken(model, images, targets):
        maps = images.sum(1)
        maps[1] = torch.nan
        return maps

    scores = sanity(tiny(), images, targets, broken).scores
    assert scores.failed == 1
    assert scores.reasons == {NOT_FINITE: 1}
    assert scores.mean == pytest.approx(1)


# scores


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng, inside = np.random.default_rng(0), 0
    for seed in range(200):
        values = torch.from_numpy(rng.normal(0.3, 1, 60))
        low, high = Scores("removal-least", values, ("",) * 60).interval(resamples=400, seed=seed)
        inside += low <= 0.3 <= high
    assert 0.90 <= inside / 200 <= 0.98


def test_paired_differences_leave_out_what_both_share():
    hard = torch.randn(300).double() * 3  # as hard for one method as for the other
    own, other = (Scores("localisation", hard + shift, ("",) * 300, unit=3) for shift in (0.5, 0.4))
    apart = own.less(other)
    assert apart.interval() == pytest.approx((0.1, 0.1))
    assert own.interval()[0] < other.mean < own.interval()[1]  # not told apart by their own intervals
    failed = Scores("localisation", torch.tensor([torch.nan, 1.0, 3.0]).double(), ("x", "", ""))
    whole = Scores("localisation", torch.tensor([5.0, 0.0, 1.0]).double(), ("",) * 3)
    assert failed.less(whole).mean == whole.less(failed).mean * -1 == 1.5  # of the two that did not fail
    assert failed.less(whole).failed == 1
    with pytest.raises(ValueError, match="cannot be compared"):
        own.less(whole)


def test_the_interval_takes_whole_grids():
    """Nine equal scores per grid are one observation, not nine."""
    values = torch.randn(100).double().repeat_interleave(9)
    grids = Scores("localisation", values, ("",) * 900, unit=9)
    single = Scores("localisation", values, ("",) * 900)
    width = [high - low for low, high in (grids.interval(), single.interval())]
    assert 2.4 < width[0] / width[1] < 3.6
    assert grids.interval(seed=1) != grids.interval() == Scores("localisation", values, ("",) * 900, unit=9).interval()
    narrow, wide = (grids.interval(confidence) for confidence in (0.5, 0.99))
    assert wide[0] < grids.interval()[0] < narrow[0] < grids.mean < narrow[1] < grids.interval()[1] < wide[1]
    for bad in ({"confidence": 1.0}, {"resamples": 0}):
        with pytest.raises(ValueError, match="confidence is"):
            grids.interval(**bad)


def test_failed_samples_are_in_no_mean_and_in_every_count():
    scores = Scores("box", torch.tensor([0.5, torch.nan, 1.0]).double(), ("", NOT_FINITE, ""))
    assert (scores.mean, scores.failed, len(scores)) == (0.75, 1, 3)
    assert scores.quantiles(0, 1) == (0.5, 1.0)
    low, high = scores.interval()
    assert 0.5 <= low <= high <= 1
    assert np.isnan(Scores("box", torch.tensor([0.5, torch.nan]).double(), ("", "")).interval()).all()
    with pytest.raises(ValueError, match="a note per value"):
        Scores("box", torch.zeros(3), ("",))


def test_completeness_does_not_hide_behind_b0():
    """A network with T = 10⁵ has tiny contributions: left out, they are missed all the same."""
    model = CoDANet([Layer(4, 2), Layer(5, 2)], image_channels=1, temperature=1e5).double().eval()
    images, targets = torch.rand(3, 1, 8, 8).double(), torch.tensor([0, 1, 2])
    assert (model(images) - model.logit_bias).abs().max() < 1e-3
    assert completeness(model, images, targets, torch.zeros(3, 8, 8)).values.tolist() == [1] * 3
    assert completeness(model, images, targets, contributions).values.max() < 1e-9
    why = model.explain(images, targets)
    assert why.completeness_error().max() < 1e-9
    assert replace(why, rows=why.rows * 0).completeness_error().tolist() == [1] * 3
    assert replace(why, rows=why.rows * 0, logits=why.logits * 0 + why.bias).completeness_error().tolist() == [0] * 3


def test_near_equal_confidences_are_told_apart():
    """Probabilities that are all 1 as numbers: the surest still comes first, also read back from the records."""
    images = torch.zeros(6, 2, 1, 1, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.tensor([250, 252, 251, 255, 253, 254], dtype=torch.uint8)

    class Sure(nn.Module):
        def forward(self, images):
            return (images[:, :, 0, 0].double() - 0.9) * 1e-6 + torch.tensor([60.0, 0.0])

    found = predict(Sure(), Pictures(MemorySplit(images, torch.zeros(6).long())))
    assert (found.confidence == 1).all()
    assert len(set(found.log_odds.float().tolist())) < 6  # nor would float32 do
    assert confident_images(found.scores()) == {0: [3, 5, 4, 1, 2, 0]}
    read = _decoded(json.loads(json.dumps(_encoded(Record("m", "", 0, found.scores())))))
    assert torch.equal(read.scores.extras["log_odds"], found.log_odds)
    assert confident_images(read.scores) == {0: [3, 5, 4, 1, 2, 0]}


def test_log_odds():
    logits = torch.randn(5, 4).double()
    classes = torch.tensor([0, 1, 2, 3, 0])
    p = logits.softmax(1).gather(1, classes[:, None])[:, 0]
    assert torch.allclose(log_odds(Light(), logits, classes), (p / (1 - p)).log())
    assert torch.equal(log_odds(tiny(), logits, classes), logits.gather(1, classes[:, None])[:, 0])
    assert log_odds(Light(), logits[:, :1], classes * 0).isfinite().all()  # a single class


def test_registry():
    assert choose_metrics(["removal", "box", "removal-least"]) == ("removal-least", "removal-most", "box")
    with pytest.raises(ValueError, match="unknown metric 'localization': did you mean 'localisation'"):
        choose_metrics(["localization"])
    with pytest.raises(ValueError, match="no metric was named"):
        choose_metrics([])
    for name, metric in METRICS.items():
        assert metric.name == name
        with pytest.raises(ValueError, match="choose a name that is new"):
            register_metric(metric)
    for name in ("removal", "", "a,b", "quantus:mine"):
        with pytest.raises(ValueError, match="choose a name that is new"):
            register_metric(replace(METRICS["box"], name=name))
    better = {name for name, metric in METRICS.items() if metric.higher_is_better}
    of_others = {"pointing", "pointing-box", "difull", "dipart"}
    assert better == {"accuracy", "localisation", "removal-least", "insertion", "box", *of_others}
    assert METRICS["localisation"].usual_number("cifar10") == 500
    assert METRICS["localisation"].usual_number("digits") == 250
    assert METRICS["box"].usual_number("digits") == 1024


# pictures and predictions


class Damaged(Split):
    """Every third picture cannot be read."""

    def __init__(self, number):
        self.labels = torch.zeros(number, dtype=torch.int64)

    def __getitems__(self, indices):
        kept = [index for index in indices if index % 3]
        if not kept:
            raise DataError("none of the pictures can be read")
        return torch.full((len(kept), 1, 4, 4), 10, dtype=torch.uint8), self.labels[kept]


def test_damaged_pictures_are_left_out_and_known():
    pictures = Pictures(Damaged(12))
    images, labels, kept = pictures.read(range(6))
    assert kept == [1, 2, 4, 5]
    assert len(images) == len(labels) == 4
    found = predict(Light(), pictures)
    assert found.indices.tolist() == [1, 2, 4, 5, 7, 8, 10, 11]
    sample = pictures.sample(None, 100, seed=0)
    assert sorted(sample) == found.indices.tolist()
    with pytest.raises(ValueError, match="only 8 of 12 can be read"):
        pictures.sample(10, 100, seed=0)
    with pytest.raises(ValueError, match="13 images are asked for and there are 12"):
        pictures.sample(13, 100, seed=0)
    with pytest.raises(ValueError, match="can be read: check the data"):
        predict(Light(), Pictures(Damaged(1)))


def test_predictions():
    pictures, heard = coloured(50), []
    found = predict(Colours(), pictures, done=heard.append)
    assert sum(heard) == 50
    parts = [predict(Colours(), pictures, start, start + 20) for start in range(0, 50, 20)]
    assert torch.equal(torch.cat([part.indices for part in parts]), found.indices)
    assert found.correct.all()
    labels = pictures.split.labels.clone()
    labels[3] = 12
    with pytest.raises(ValueError, match="the model has 10 classes and the data have a label 12"):
        predict(Colours(), Pictures(MemorySplit(pictures.split.images, labels)))


def test_logits_that_hold_nan_are_no_prediction():
    """argmax would call NaN the first class, and a ruined network right on every image of it."""

    class Ruined(Colours):
        def forward(self, images):
            logits = super().forward(images)
            return torch.where(torch.arange(len(images))[:, None] < 10, logits * torch.nan, logits)

    scores = predict(Ruined(), coloured(50)).scores()
    assert (scores.failed, scores.mean) == (10, 1)
    assert scores.reasons == {"the logits hold NaN": 10}
    assert sum(map(len, confident_images(scores).values())) <= 40


def test_a_model_of_other_kind_has_no_contributions():
    with pytest.raises(ValueError, match="made by a CoDANet, and Light is not one: choose one of grad"):
        removal(Light(), torch.rand(1, 1, 4, 4), torch.zeros(1).long(), contributions)


def test_a_sample_depends_on_its_seed_alone():
    pictures = coloured()
    samples = [pictures.sample(30, 0, seed=seed) for seed in (0, 0, 1)]
    assert samples[0] == samples[1] != samples[2]
    assert len(set(itertools.chain(*samples[:1]))) == 30
