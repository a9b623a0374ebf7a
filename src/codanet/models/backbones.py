"""What Dynamic Alignment layers may stand on: a network as far as one of its layers, images to that layer's map."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._support.messages import nearest


class _Reached(Exception):
    """The layer's map is made: the rest of the backbone need not run."""


class UpTo(nn.Module):
    """Any network as far as one of its layers, named as in `named_modules`: images to that layer's map."""

    def __init__(self, network: nn.Module, layer: str):
        super().__init__()
        names = [name for name, _ in network.named_modules() if name]
        if layer not in names:
            raise ValueError(f"unknown layer {layer!r} of {type(network).__name__}{_near(layer, names)}")
        self.network, self.layer = network, layer

    def extra_repr(self) -> str:
        return self.layer

    def forward(self, images: Tensor) -> Tensor:
        made: list[Any] = []
        # several threads may look at their own images at once; a compiler traces one and cannot ask which
        own = 0 if torch.compiler.is_compiling() else threading.get_ident()

        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            if torch.compiler.is_compiling():  # the rest is traced as well, and may change the map in its place
                made.append(output.clone() if isinstance(output, Tensor) else output)
            elif threading.get_ident() == own:
                made.append(output)
                raise _Reached

        handle = self.network.get_submodule(self.layer).register_forward_hook(keep)
        try:
            self.network(images)
        except _Reached:
            pass
        finally:
            handle.remove()
        if not made or not isinstance(made[0], Tensor):
            what = type(made[0]).__name__ if made else "nothing"
            raise ValueError(f"layer {self.layer!r} gives {what}: choose one that gives a map [N, C, h, w]")
        return made[0]


def _near(layer: str, names: list[str]) -> str:
    """The nearest names: a network may have hundreds."""
    words = nearest(layer, names)
    return words if len(names) <= 40 else words.split(" choose one of ")[0] + " named_modules() lists them"


def cut(network: nn.Module, layer: str) -> nn.Module:
    """The part of a network that makes the map of a layer; our own know how to leave out what is not needed."""
    up_to = getattr(network, "up_to", None)
    part: nn.Module = up_to(layer) if callable(up_to) else UpTo(network, layer)
    return part


def channels_last(features: nn.Module) -> nn.Module:
    """With its filters in the order that the images come in: 22 ms an image instead of 34 on a CPU."""
    to: Any = features.to  # not all that it takes is in its signature
    moved: nn.Module = to(memory_format=torch.channels_last)
    return moved


class Backbone(NamedTuple):
    build: Callable[[bool], nn.Module]  # with its trained weights, or untrained
    layer: str  # where to cut it if nothing else is asked for
    image_size: int
    # a cut as a frozen part, one that can be trained, and the layer between; None where that is not known
    parted: Callable[[nn.Module], tuple[nn.Module, nn.Module, str]] | None = None


def _parted(part: nn.Module) -> tuple[nn.Module, nn.Module, str]:
    from .efficientnet_lite import parted

    return parted(part)


def _efficientnet_lite0(trained: bool) -> nn.Module:
    from .efficientnet_lite import efficientnet_lite0

    return efficientnet_lite0(weights=trained)


def _resnet56(trained: bool) -> nn.Module:
    from .resnet import resnet56

    return resnet56(weights="official" if trained else None)


BACKBONES = {
    "efficientnet_lite0": Backbone(_efficientnet_lite0, "blocks.10", 224, _parted),
    "resnet56": Backbone(_resnet56, "layer2", 32),
}
