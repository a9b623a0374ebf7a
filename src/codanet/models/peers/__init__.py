"""Peers: the networks that CoDA-Nets are compared with, written from their papers. They are not the product.

`create_peer("resnet20")` builds one, recipes train it (`codanet train … --model resnet20`), `codanet.save` and
`codanet.load` keep it, and every metric judges it. docs/peers.md compares them at an equal budget.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..._support.messages import nearest
from .bcos import BcosResNet
from .peer import Peer
from .residual import ResNetPeer, WideResNet
from .senn import SENN
from .vgg import VGG


@dataclass(frozen=True)
class Entry:
    """A peer of the registry."""

    title: str
    about: str
    build: Callable[..., Peer]  # (name, num_classes=…, …)


PEERS: dict[str, Entry] = {
    "resnet20": Entry("ResNet-20", "He et al. 2016", partial(ResNetPeer, blocks=3)),
    "resnet56": Entry("ResNet-56", "He et al. 2016", partial(ResNetPeer, blocks=9)),
    "wrn_28_2": Entry("WRN-28-2", "Zagoruyko and Komodakis 2016", partial(WideResNet, blocks=4, width=2)),
    "vgg19_bn": Entry("VGG-19", "Simonyan and Zisserman 2015, with batch norm", VGG),
    "senn": Entry("SENN", "Alvarez-Melis and Jaakkola 2018, concepts as maps", SENN),
    "bcos_resnet20": Entry("B-cos ResNet-20", "Böhle, Fritz and Schiele 2022, B = 2", BcosResNet),
}


def create_peer(name: str, *, num_classes: int = 10, **facts: Any) -> Peer:
    """An untrained peer by name.

    Args:
        name: One of `PEERS`.
        num_classes: How many classes there are.
        **facts: image_channels, image_size, class_names and provenance, as `Peer` has them.

    Raises:
        ValueError: If the name is unknown.

    Examples:
        >>> sum(parameter.numel() for parameter in create_peer("resnet20").parameters())
        269722
    """
    if name not in PEERS:
        raise ValueError(f"unknown peer {name!r}{nearest(name, PEERS)}")
    return PEERS[name].build(name, num_classes=num_classes, **facts)


__all__ = ["PEERS", "SENN", "VGG", "BcosResNet", "Entry", "Peer", "ResNetPeer", "WideResNet", "create_peer"]
