"""The probability of a class while pixels are replaced in the order of their importance."""

import torch
from torch import Tensor, nn

from ..models.classifier import at_once, evaluating, like, probabilities


def places(maps: Tensor, *, largest_first: bool, seed: int = 0) -> Tensor:
    """The place of every pixel in the order of its value, [N, H·W].

    Equal values are put in a random order that depends on the seed alone, so that a flat region, or a whole flat map,
    is not taken row by row from the top.
    """
    flat = maps.flatten(1)
    shuffle = torch.randperm(flat.shape[1], generator=torch.Generator().manual_seed(seed))
    order = shuffle[flat[:, shuffle].argsort(dim=1, descending=largest_first, stable=True)]
    return torch.empty_like(order).scatter_(1, order, torch.arange(flat.shape[1]).expand_as(order))


def pixel_counts(pixels: int, share: float, points: int) -> Tensor:
    """At most `points` different numbers of pixels, evenly from none to the share of all of them."""
    if not 0 < share <= 1 or points < 2:
        raise ValueError(f"share is {share} at {points} points: give a share above 0 up to 1, and at least 2 points")
    return torch.linspace(0, share * pixels, points, dtype=torch.float64).round().long().unique()


def probability_curves(
    model: nn.Module,
    before: Tensor,
    after: Tensor,
    places: Tensor,
    counts: Tensor,
    targets: Tensor,
    batch_size: int | None = None,
) -> Tensor:
    """Probability of the targets with the first counts[k] pixels of `before` taken from `after`, float64 [N, K].

    All images and steps are batched together; only one batch of inputs is in memory. `after` may be [1, C, 1, 1].
    """
    number, steps = len(before), len(counts)
    after = after.expand_as(before)
    result = torch.empty(number * steps, dtype=torch.float64)
    with evaluating(model):
        for pairs in torch.arange(number * steps).split(at_once(before, batch_size)):
            image, step = pairs // steps, pairs % steps
            replaced = (places[image] < counts[step, None]).view(-1, 1, *before.shape[2:]).to(before.device)
            inputs = torch.where(replaced, after[image], before[image])
            sure = probabilities(model, model(like(model, inputs)).double().cpu())
            result[pairs] = sure.gather(1, targets[image, None])[:, 0]
    return result.view(number, steps)
