"""Localisation on maps whose score is known by construction, and the grids it is measured on."""

import numpy as np
import pytest
import torch

from codanet.data import MemorySplit
from codanet.data.pictures import Pictures
from codanet.data.tiling import TooFewImages, grids_up_to, make_grids, possible_grids
from codanet.metrics import (
    Scores,
    cell_shares,
    confident_images,
    contributions,
    localisation,
    predict,
    removal,
)
from codanet.metrics.scores import NO_POSITIVE, NOT_FINITE
from colours import CLASSES, Colours, coloured, own_channel
from networks import tiny

pytestmark = pytest.mark.usefixtures("one_thread")


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
    with pytest.raises(ValueError, match="grids_at_once is 0: it must be a whole number, 1 or more"):
        localisation(model, pictures, grids, own_channel, grids_at_once=0)


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
    with pytest.raises(TooFewImages, match=r"3 grids of 2x2 need 12 .* 5 such .* 4 classes.* enough for 1 grids"):
        make_grids({0: [1, 2], 1: [3], 2: [4], 5: [6]}, 3, 2)
    with pytest.raises(ValueError, match="enough for 0 grids"):
        make_grids({}, 1, 3)
    with pytest.raises(ValueError, match="at least one grid"):
        make_grids({0: [1]}, 0, 1)


def test_as_many_grids_as_the_images_fill_but_no_more_than_asked_for():
    confident = {label: [2 * label, 2 * label + 1] for label in range(4)}
    for most, made in ((1, 1), (2, 2), (9, 2)):
        grids = grids_up_to(most, confident, 2, seed=3)
        assert torch.equal(grids.indices, make_grids(confident, made, 2, seed=3).indices)
    assert grids_up_to(9, confident, 3) is None
    assert grids_up_to(9, {}, 1) is None


def test_maps_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="give \\[G, 9"):
        cell_shares(torch.ones(1, 9, 10, 9), 3)
    images = torch.rand(2, 3, 8, 8)
    with pytest.raises(ValueError, match=r"they must be \[2, 8, 8\]"):
        removal(Colours(), images, torch.zeros(2).long(), torch.ones(2, 4, 4))
    with pytest.raises(ValueError, match="one class number for each"):
        removal(Colours(), images, torch.zeros(3).long(), torch.ones(2, 8, 8))
