"""Insertion and deletion (Petsiuk et al. 2018, RISE): areas under the probability as all pixels come or go.

As there, one point per image row's worth of pixels, deletion towards the empty image, insertion from a blurred one.
"""

import torch
from torch import Tensor, nn

from ..data.corruption import gaussian
from ..models.classifier import baseline, network_input
from .maps import Attribute, checked_targets, maps_of
from .metric import Metric
from .removal import replacement_curves
from .scores import Scores

BLUR_KERNEL, BLUR_SIGMA = 11, 5.0


def deletion(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    attribute: Attribute | Tensor,
    *,
    seed: int = 0,
    batch_size: int | None = None,
) -> Scores:
    """The area under the class's probability while pixels are removed, the most important first: lower is better.

    The smaller it is, the sooner the class is gone once its most important pixels are.

    Args:
        model: Any classifier.
        images: [N, C, H, W], as the model takes them.
        targets: The class of each image, [N].
        attribute: (model, images, targets) -> maps [N, H, W], or the maps themselves.
        seed: Decides between pixels of the same value.
        batch_size: Images in the model at a time; by default it follows from their size.

    Examples:
        >>> deletion(model, images, labels, contributions).mean  # doctest: +SKIP
    """
    inputs = network_input(model, images)
    maps = maps_of(attribute, model, images, targets)
    return _area("deletion", model, inputs, baseline(model, inputs), maps, targets, seed, batch_size)


def insertion(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    attribute: Attribute | Tensor,
    *,
    seed: int = 0,
    batch_size: int | None = None,
) -> Scores:
    """The area under the class's probability while a blurred image gets its pixels back, the most important first.

    The larger it is, the sooner the class is there once its most important pixels are: higher is better.

    Args:
        model: Any classifier.
        images: [N, C, H, W], as the model takes them.
        targets: The class of each image, [N].
        attribute: (model, images, targets) -> maps [N, H, W], or the maps themselves.
        seed: Decides between pixels of the same value.
        batch_size: Images in the model at a time; by default it follows from their size.

    Examples:
        >>> insertion(model, images, labels, contributions).mean  # doctest: +SKIP
    """
    maps = maps_of(attribute, model, images, targets)
    before = network_input(model, blurred(images))
    return _area("insertion", model, before, network_input(model, images), maps, targets, seed, batch_size)


def _area(
    metric: str,
    model: nn.Module,
    before: Tensor,
    after: Tensor,
    maps: Tensor,
    targets: Tensor,
    seed: int,
    batch_size: int | None,
) -> Scores:
    pixels, step = before.shape[2] * before.shape[3], before.shape[3]
    counts = torch.arange(0, pixels + 1, step)
    targets = checked_targets(before, targets)
    curves, notes = replacement_curves(model, before, after, maps, counts, targets, "most", seed, batch_size)
    share = counts.double() / pixels
    return Scores(metric, torch.trapezoid(curves, share, dim=1), notes, {"curve": curves}, share)


def blurred(images: Tensor) -> Tensor:
    """RISE's blur: a Gaussian of σ = 5 pixels in an 11x11 window, edge pixels continued."""
    return gaussian(images, BLUR_SIGMA, BLUR_KERNEL // 2)


INSERTION = Metric(
    "insertion",
    "Insertion",
    True,
    "area under the true class's probability while a blurred image gets its pixels back, most important first",
    "maps",
    lambda sample: insertion(sample.model, sample.images, sample.labels, sample.maps, seed=sample.seed),
)
DELETION = Metric(
    "deletion",
    "Deletion",
    False,
    "area under the true class's probability while all pixels are removed, most important first",
    "maps",
    lambda sample: deletion(sample.model, sample.images, sample.labels, sample.maps, seed=sample.seed),
)
