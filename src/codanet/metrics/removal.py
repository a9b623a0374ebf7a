"""Pixel removal (sec. 4.2, C.4; Srinivas and Fleuret 2019): what the probability does as pixels go, in order.

A removed pixel is zero in all six encoded channels of a CoDA-Net, elsewhere `models.classifier.baseline`. The target is
the true class, of every image, classified correctly or not: the published curves start at the mean probability of the
true class.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from ..models.classifier import baseline, network_input
from .curves import pixel_counts, places, probability_curves
from .maps import Attribute, checked_targets, maps_of, oddities
from .metric import POINTS, Metric, Sample
from .scores import Scores

SHARE = 0.25  # the part of the pixels that is removed


def removal(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    attribute: Attribute | Tensor,
    *,
    first: Literal["least", "most"] = "least",
    share: float = SHARE,
    points: int = POINTS,
    seed: int = 0,
    batch_size: int | None = None,
) -> Scores:
    """The class's probability while pixels are removed in order of their importance (sec. C.4).

    Args:
        model: Any classifier.
        images: [N, C, H, W], as the model takes them.
        targets: The class of each image, [N].
        attribute: (model, images, targets) -> maps [N, H, W], or the maps themselves.
        first: "least" (higher is better) or "most" important pixels first (lower is better). The least important ones
            have the smallest values, so the most negative go first.
        share: The share of pixels removed by the end.
        points: Points on the curve.
        seed: Decides between pixels of the same value.
        batch_size: Images in the model at a time; by default it follows from their size.

    Returns:
        Per image the mean of its curve; the curves are in `extras`, over the shares removed in `points`.

    Examples:
        >>> removal(model, images, labels, contributions).mean  # doctest: +SKIP
    """
    if first not in ("least", "most"):
        raise ValueError(f"first is {first!r}: remove the 'least' or the 'most' important pixels first")
    inputs = network_input(model, images)
    counts = pixel_counts(inputs.shape[2] * inputs.shape[3], share, points)
    chosen = checked_targets(images, targets)
    maps = maps_of(attribute, model, images, targets)
    after = baseline(model, inputs)
    curves, notes = replacement_curves(model, inputs, after, maps, counts, chosen, first, seed, batch_size)
    removed = counts.double() / (inputs.shape[2] * inputs.shape[3])
    return Scores(f"removal-{first}", curves.mean(1), notes, {"curve": curves}, removed)


def replacement_curves(
    model: nn.Module,
    before: Tensor,
    after: Tensor,
    maps: Tensor,
    counts: Tensor,
    targets: Tensor,
    first: str,
    seed: int,
    batch_size: int | None,
) -> tuple[Tensor, tuple[str, ...]]:
    """Curves [N, K], NaN for a map that is not finite, and a note on every map that is odd."""
    finite, notes = oddities(maps)
    curves = torch.full((len(maps), len(counts)), torch.nan, dtype=torch.float64)
    if finite.any():
        order = places(maps[finite], largest_first=first == "most", seed=seed)
        after = after.expand_as(before)[finite]
        curves[finite] = probability_curves(model, before[finite], after, order, counts, targets[finite], batch_size)
    return curves, notes


def _run(first: Literal["least", "most"]) -> Callable[[Sample], Scores]:
    return lambda sample: removal(
        sample.model, sample.images, sample.labels, sample.maps, first=first, points=sample.points, seed=sample.seed
    )


REMOVAL_LEAST = Metric(
    "removal-least",
    "Removal, least first",
    True,
    "mean probability of the true class while the least important quarter of the pixels is removed",
    "maps",
    _run("least"),
)
REMOVAL_MOST = Metric(
    "removal-most",
    "Removal, most first",
    False,
    "mean probability of the true class while the most important quarter of the pixels is removed",
    "maps",
    _run("most"),
)
