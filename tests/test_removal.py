"""Pixel removal, insertion and deletion, against curves in closed form."""

import pytest
import torch

from classifiers import Light
from codanet.metrics import (
    Scores,
    contributions,
    deletion,
    insertion,
    removal,
)
from codanet.metrics.curves import pixel_counts, places
from codanet.metrics.insertion import blurred
from codanet.metrics.scores import CONSTANT, NOT_FINITE
from codanet.models.resnet import resnet20
from networks import tiny

pytestmark = pytest.mark.usefixtures("one_thread")


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
