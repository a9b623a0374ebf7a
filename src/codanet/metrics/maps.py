"""The maps that a metric is about: how they are made, and that they fit the images."""

from collections.abc import Callable

from torch import Tensor, nn

from ..attribution import Contributions, Registered
from ..models.classifier import like
from .scores import CONSTANT, NOT_FINITE

# (model, images [N, C, H, W] in [0, 1], targets [N]) to maps [N, H, W]
Attribute = Callable[[nn.Module, Tensor, Tensor], Tensor]


contributions = Registered(Contributions())  # a CoDA-Net's own maps


def checked_targets(images: Tensor, targets: Tensor) -> Tensor:
    if images.ndim != 4 or targets.shape != (len(images),) or targets.is_floating_point():
        raise ValueError(
            f"images {list(images.shape)} with targets {list(targets.shape)} of {targets.dtype}: give [N, C, H, W] and "
            "one class number for each"
        )
    return targets.long().cpu()


def maps_of(attribute: Attribute | Tensor, model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """Maps [N, H, W] in float64, made by a function or given; values that are not finite stay in them."""
    maps = attribute if isinstance(attribute, Tensor) else attribute(model, like(model, images), targets)
    wanted = (len(images), *images.shape[2:])
    if not isinstance(maps, Tensor) or tuple(maps.shape) != wanted:
        shape = list(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
        raise ValueError(f"the maps are {shape} for images {list(images.shape)}: they must be {list(wanted)}")
    return maps.detach().double().cpu()


def oddities(maps: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Which maps [N, H, W] are finite, and a note on every one that is not, or that ranks no pixel before another."""
    numbers = maps.flatten(1)
    finite, flat = numbers.isfinite().all(1), (numbers == numbers[:, :1]).all(1)
    notes = (
        NOT_FINITE if not good else CONSTANT if same else ""
        for good, same in zip(finite.tolist(), flat.tolist(), strict=True)
    )
    return finite, tuple(notes)
