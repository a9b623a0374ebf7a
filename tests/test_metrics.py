"""Metrics on maps whose score is known by construction, and on planted models whose right answer is provable."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from codanet.data import DataError, MemorySplit, Split
from codanet.data.pictures import Pictures
from codanet.data.tiling import make_grids, possible_grids
from codanet.evaluation.records import Record, _decoded, _encoded
from codanet.metrics import (
    METRICS,
    Scores,
    box_share,
    cell_shares,
    choose_metrics,
    completeness,
    confident_images,
    contributions,
    deletion,
    insertion,
    localisation,
    predict,
    register_metric,
    removal,
    sanity,
)
from codanet.metrics.curves import pixel_counts, places
from codanet.metrics.insertion import blurred
from codanet.metrics.pointing import hits
from codanet.metrics.sanity import layer_groups, rank_correlation, similarity
from codanet.metrics.scores import CONSTANT, NO_POSITIVE, NOT_FINITE
from codanet.metrics.share import box_masks
from codanet.models.classifier import log_odds
from codanet.models.network import CoDANet, Layer
from codanet.models.resnet import resnet20
from colours import Colours, own_channel

pytestmark = pytest.mark.usefixtures("one_thread")

CLASSES, SIDE = 10, 4


def coloured(number=200, seed=0):
    """Images of class c have light in channel c alone, more in some than in others."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % CLASSES
    images = torch.zeros(number, CLASSES, SIDE, SIDE, dtype=torch.uint8)
    light = torch.randint(100, 256, (number, SIDE, SIDE), generator=generator).to(torch.uint8)
    images[torch.arange(number), labels] = light
    return Pictures(MemorySplit(images, labels))


def tiny(seed=0):
    torch.manual_seed(seed)
    return CoDANet([Layer(8, 2), Layer(5, 2, stride=2)], image_size=16, temperature=2).eval()


# localisation


def test_cell_shares_of_known_maps():
    maps = torch.zeros(1, 4, 6, 6)
    maps[0, 0, :3, :3] = 1  # all in the right cell
    maps[0, 1] = 5  # uniform
    maps[0, 2, :3] = 1  # all in the wrong ones
    maps[0, 3, 3:, 3:], maps[0, 3, :3] = 3, -100  # negative attribution counts nowhere
    scores = cell_shares(maps, 2)
    assert scores.values.tolist() == [1, 0.25, 0, 1]
    assert scores.failed == 0
    assert scores.reasons == {}
    assert cell_shares(torch.ones(2, 9, 12, 9), 3).values.tolist() == pytest.approx([1 / 9] * 18)


def test_odd_maps_are_defined_and_counted():
    maps = torch.zeros(1, 4, 4, 4)
    maps[0, 1] = -1
    maps[0, 2, 0, 0] = torch.nan
    maps[0, 3, 2:, 2:] = torch.inf
    scores = cell_shares(maps, 2)
    assert scores.values[:2].tolist() == [0, 0]
    assert scores.values[2:].isnan().all()
    assert scores.failed == 2
    assert scores.reasons == {NO_POSITIVE: 2, NOT_FINITE: 2}
    assert scores.mean == 0
    everything = cell_shares(torch.full((1, 4, 4, 4), torch.nan), 2)
    assert everything.failed == 4
    assert np.isnan(everything.mean)
    assert np.isnan(everything.interval()).all()


def test_a_planted_model_localises_perfectly():
    pictures, model = coloured(), Colours()
    found = predict(model, pictures).scores()
    assert found.mean == 1
    grids = make_grids(confident_images(found), 20, 3)
    scores = localisation(model, pictures, grids, own_channel, grids_at_once=3)
    assert len(scores) == 180
    assert scores.unit == 9
    assert (scores.values == 1).all()
    assert scores.interval() == (1, 1)
    uniform = localisation(model, pictures, grids, lambda model, images, targets: images.new_ones(len(images), 12, 12))
    assert uniform.values.tolist() == pytest.approx([1 / 9] * 180)
    direct = localisation(model, pictures, grids, torch.ones(20, 9, 12, 12))
    assert direct.mean == pytest.approx(1 / 9)


def test_several_targets_share_a_forward_pass_and_change_nothing():
    model = tiny()
    images = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8)
    labels = torch.arange(40) % 5
    pictures = Pictures(MemorySplit(images, labels))
    grids = make_grids({label: list(range(label, 40, 5)) for label in range(5)}, 2, 2)
    fast = localisation(model, pictures, grids, contributions)
    slow = localisation(model, pictures, grids, lambda *given: model.explain(*given[1:]).pixels)
    assert torch.allclose(fast.values, slow.values, atol=1e-6)
    assert fast.values.max() > 0


def test_grids_hold_the_papers_sample():
    pictures = coloured()
    found = predict(Colours(), pictures).scores()
    confident = confident_images(found)
    confidence = found.extras["log_odds"]
    for label, indices in confident.items():
        assert all(int(pictures.split.labels[index]) == label for index in indices)
        assert (confidence[indices].diff() <= 0).all()  # most confident first
    grids = make_grids(confident, 22, 3)  # 200 images are enough for 22
    assert all(len(set(row)) == 9 for row in grids.classes.tolist())  # every class at most once
    assert grids.indices.unique().numel() == 22 * 9  # every image at most once
    for label, indices in confident.items():  # the most confident that is left
        assert grids.indices[grids.classes == label].tolist() == indices[: int((grids.classes == label).sum())]
    again, other = make_grids(confident, 22, 3), make_grids(confident, 22, 3, seed=1)
    assert torch.equal(grids.indices, again.indices)
    assert not torch.equal(grids.classes, other.classes)
    images = grids.images(pictures)
    assert images.shape == (22, CLASSES, 12, 12)
    # row by row: the fourth image is the first of the second row
    first = pictures.read([int(grids.indices[0, 3])])[0][0]
    assert torch.equal(images[0, :, 4:8, 0:4], first)


def test_only_confident_and_correct_images_count():
    found = Scores(
        "accuracy",
        torch.tensor([1.0, 1, 0, 1]),
        ("",) * 4,
        {
            "indices": torch.tensor([5, 6, 7, 8]),
            "labels": torch.tensor([1, 1, 1, 0]),
            "log_odds": torch.tensor([0.6, 0.9, 0.99, 0.5]).double().logit(),
        },
    )
    assert confident_images(found) == {1: [6, 5]}
    with pytest.raises(ValueError, match="threshold is 1.5"):
        confident_images(found, 1.5)


@pytest.mark.parametrize("counts", [[3, 3, 3], [5, 1, 1, 1], [9, 9, 1, 1], [2], [4, 4, 4, 4, 1], [0, 0]])
def test_possible_grids_is_exact(counts):
    """Against trying: the most grids that always taking the fullest classes fills, which is optimal."""
    for cells in (1, 2, 4):
        left, made = sorted(counts, reverse=True), 0
        while len(left) >= cells and left[cells - 1] > 0:
            left = sorted([n - 1 for n in left[:cells]] + left[cells:], reverse=True)
            made += 1
        assert possible_grids(counts, cells) == made


def test_every_possible_grid_can_be_made():
    """Also where drawing freely would use up a class that later grids need."""
    counts = [8, 8, 8, 4, 4]
    assert possible_grids(counts, 4) == 8
    starts = [sum(counts[:place]) for place in range(5)]
    confident = {label: list(range(starts[label], starts[label] + counts[label])) for label in range(5)}
    for seed in range(20):
        grids = make_grids(confident, 8, 2, seed=seed)
        assert grids.indices.unique().numel() == 32
        assert all(len(set(row)) == 4 for row in grids.classes.tolist())


def test_too_few_images_for_grids_are_counted():
    with pytest.raises(ValueError, match=r"3 grids of 2x2 need 12 .* 5 such images of 4 classes.* enough for 1 grids"):
        make_grids({0: [1, 2], 1: [3], 2: [4], 5: [6]}, 3, 2)
    with pytest.raises(ValueError, match="enough for 0 grids"):
        make_grids({}, 1, 3)
    with pytest.raises(ValueError, match="at least one grid"):
        make_grids({0: [1]}, 0, 1)


def test_maps_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="give \\[G, 9"):
        cell_shares(torch.ones(1, 9, 10, 9), 3)
    images = torch.rand(2, 3, 8, 8)
    with pytest.raises(ValueError, match=r"they must be \[2, 8, 8\]"):
        removal(Colours(), images, torch.zeros(2).long(), torch.ones(2, 4, 4))
    with pytest.raises(ValueError, match="one class number for each"):
        removal(Colours(), images, torch.zeros(3).long(), torch.ones(2, 8, 8))


# removal, insertion, deletion


class Light(nn.Module):
    """Two classes: logits (Σ first channel, 0), so p = 1 / (1 + e^-Σ)."""

    def forward(self, images):
        total = images[:, 0].sum((1, 2))
        return torch.stack([total, torch.zeros_like(total)], 1)


def test_removal_curves_in_closed_form():
    images = torch.rand(5, 1, 8, 8, dtype=torch.float64)
    targets = torch.zeros(5).long()
    values = images.flatten(1)
    for first, descending in (("least", False), ("most", True)):
        scores = removal(Light(), images, targets, images[:, 0], first=first, points=17, batch_size=7)
        gone = values.sort(1, descending=descending).values.cumsum(1)
        left = values.sum(1, keepdim=True) - torch.cat([torch.zeros(5, 1).double(), gone], 1)[:, :17]
        assert torch.allclose(scores.extras["curve"], left.sigmoid(), atol=1e-12)
        assert torch.allclose(scores.values, left.sigmoid().mean(1))
        assert scores.points.tolist() == pytest.approx([k / 64 for k in range(17)])
    chunks = [removal(Light(), images[i : i + 1], targets[:1], images[i : i + 1, 0], points=17) for i in range(5)]
    whole = removal(Light(), images, targets, images[:, 0], points=17)
    assert torch.allclose(Scores.join(chunks).extras["curve"], whole.extras["curve"], atol=1e-12)


def test_removal_zeroes_all_encoded_channels_of_a_coda_net():
    """All pixels gone: the logits are b0."""
    model = tiny()
    images, targets = torch.rand(3, 3, 16, 16), torch.tensor([0, 1, 2])
    scores = removal(model, images, targets, contributions, share=1.0, points=5)
    assert torch.allclose(scores.extras["curve"][:, -1], torch.tensor(0.1).double(), atol=1e-6)
    before = model(images).sigmoid().gather(1, targets[:, None])[:, 0]
    assert torch.allclose(scores.extras["curve"][:, 0], before.double(), atol=1e-6)


def test_removed_pixels_of_a_resnet_are_its_mean_colour():
    model = resnet20().eval()
    model.train()
    images, targets = torch.rand(2, 3, 8, 8), torch.tensor([0, 1])
    scores = removal(model, images, targets, torch.rand(2, 8, 8), share=1.0, points=2)
    assert all(module.training for module in model.modules())
    mean = model.eval()(model.mean.expand(1, 3, 8, 8)).softmax(1)[0, targets]
    assert torch.allclose(scores.extras["curve"][:, -1], mean.double(), atol=1e-5)


def test_odd_maps_in_removal():
    maps = torch.rand(4, 8, 8)
    maps[1], maps[2], maps[3, 0, 0] = 0, -7, torch.nan
    images = torch.rand(4, 1, 8, 8)
    scores = removal(Light(), images, torch.zeros(4).long(), maps, points=5)
    assert scores.failed == 1
    assert scores.values[3].isnan()
    assert scores.extras["curve"][3].isnan().all()
    assert scores.values[:3].isfinite().all()
    assert scores.reasons == {CONSTANT: 2, NOT_FINITE: 1}
    assert scores.curve().isfinite().all()
    low, high = scores.curve_interval()
    assert (low <= scores.curve() + 1e-12).all()
    assert (high >= scores.curve() - 1e-12).all()


def test_ties_are_not_taken_from_the_top():
    order = places(torch.zeros(2, 8, 8), largest_first=False)
    assert torch.equal(order[0], order[1])
    assert order[0].sort().values.tolist() == list(range(64))
    assert (order[0] < 16).view(8, 8).sum(1).ne(0).sum() > 4  # spread over the rows
    assert torch.equal(places(torch.arange(64.0).view(1, 8, 8), largest_first=True)[0], torch.arange(63, -1, -1))
    assert not torch.equal(order, places(torch.zeros(2, 8, 8), largest_first=False, seed=1))


def test_points():
    assert pixel_counts(1024, 0.25, 129).tolist() == list(range(0, 257, 2))
    assert pixel_counts(64, 0.25, 129).tolist() == list(range(17))
    with pytest.raises(ValueError, match="share is 0 at 5"):
        pixel_counts(64, 0, 5)
    with pytest.raises(ValueError, match="first is 'last'"):
        removal(Light(), torch.rand(1, 1, 4, 4), torch.zeros(1).long(), torch.rand(1, 4, 4), first="last")


def test_insertion_and_deletion_in_closed_form():
    images = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    targets = torch.zeros(3).long()
    ordered = images.flatten(1).sort(1, descending=True)
    zero = torch.zeros(3, 1).double()
    gone = torch.cat([zero, ordered.values.cumsum(1)], 1)[:, ::8]
    curve = (ordered.values.sum(1, keepdim=True) - gone).sigmoid()
    scores = deletion(Light(), images, targets, images[:, 0])
    assert torch.allclose(scores.extras["curve"], curve, atol=1e-12)
    # the area by the trapezoidal rule, as RISE has it
    area = (curve.sum(1) - curve[:, 0] / 2 - curve[:, -1] / 2) / 8
    assert torch.allclose(scores.values, area)
    soft = blurred(images).flatten(1)
    gained = (ordered.values - soft.gather(1, ordered.indices)).cumsum(1)
    curve = (soft.sum(1, keepdim=True) + torch.cat([zero, gained], 1)[:, ::8]).sigmoid()
    scores = insertion(Light(), images, targets, images[:, 0])
    assert torch.allclose(scores.extras["curve"], curve, atol=1e-12)
    worst = insertion(Light(), images, targets, -images[:, 0])
    assert (worst.values <= scores.values).all()
    assert torch.allclose(blurred(torch.full((1, 3, 8, 8), 0.3)), torch.tensor(0.3))


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
    assert scores.extras["chance"][:3].tolist() == pytest.approx([6 / 64, 1, 6 / 64])
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
    with pytest.raises(ValueError, match="no layer of this Light can be re-initialised"):
        layer_groups(Light())


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


def test_a_model_of_other_kind_has_no_contributions():
    with pytest.raises(ValueError, match="made by a CoDANet, and Light is not one: choose one of grad"):
        removal(Light(), torch.rand(1, 1, 4, 4), torch.zeros(1).long(), contributions)


def test_a_sample_depends_on_its_seed_alone():
    pictures = coloured()
    samples = [pictures.sample(30, 0, seed=seed) for seed in (0, 0, 1)]
    assert samples[0] == samples[1] != samples[2]
    assert len(set(itertools.chain(*samples[:1]))) == 30
