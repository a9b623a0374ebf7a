"""A classifier as the metrics see it: what goes in, the probabilities that come out, and its maps, checked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..network import CoDANet, bare

# (model, images [N, C, H, W] in [0, 1], targets [N]) to maps [N, H, W]
Attribute = Callable[[nn.Module, Tensor, Tensor], Tensor]

PIXELS_AT_ONCE = 1 << 17  # of the inputs of one forward pass: 128 images of 32x32


class Contributions:
    """A CoDA-Net's own maps. Several targets per image, [N, K], share one forward pass and give [N, K, H, W]."""

    several_targets = True

    def __call__(self, model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        model = bare(model)
        if not isinstance(model, CoDANet):
            raise ValueError(
                f"a {type(model).__name__} has no contributions of its own: only CoDA-Nets have, so choose another "
                "method"
            )
        return model.explain(images, targets).pixels


contributions = Contributions()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode and without gradients; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def like(model: nn.Module, images: Tensor) -> Tensor:
    """On the model's device, in its precision."""
    for parameter in model.parameters():
        return images.to(parameter.device, parameter.dtype)
    return images


def at_once(images: Tensor, batch_size: int | None = None) -> int:
    """How many inputs of this size go through the model together."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: give at least 1")
    return batch_size or max(1, PIXELS_AT_ONCE // (images.shape[-2] * images.shape[-1]))


def logits_of(model: nn.Module, inputs: Tensor, batch_size: int | None = None) -> Tensor:
    """[N, classes], batch by batch."""
    with evaluating(model):
        parts = inputs.split(at_once(inputs, batch_size))
        return torch.cat([model(like(model, part)).double().cpu() for part in parts])


def probabilities(model: nn.Module, logits: Tensor) -> Tensor:
    """A CoDA-Net's classes are one-vs-all, each with a sigmoid; other classifiers have a softmax."""
    return logits.sigmoid() if isinstance(bare(model), CoDANet) else logits.softmax(1)


def network_input(model: nn.Module, images: Tensor) -> Tensor:
    """What pixels are removed from: a CoDA-Net's six encoded channels, other models' images."""
    images, model = like(model, images), bare(model)
    return model.encode(images) if isinstance(model, CoDANet) else images


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
        given = list(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
        raise ValueError(f"the maps are {given} for images {list(images.shape)}: they must be {list(wanted)}")
    return maps.detach().double().cpu()
