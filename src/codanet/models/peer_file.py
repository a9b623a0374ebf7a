"""A peer in one safetensors file, with its name, classes and provenance in the header."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._support.limits import shown
from .._support.version import __version__
from .peers import Peer, create_peer

PEER_FORMAT = 3


def described_peer(model: Peer) -> dict[str, Any]:
    """Its header."""
    return {
        "format": PEER_FORMAT,
        "version": __version__,
        "name": model.name,
        "num_classes": model.num_classes,
        "image_channels": model.image_channels,
        "image_size": model.image_size,
        "class_names": model.class_names,
    }


def untrained_peer(path: Path, header: Mapping[str, Any]) -> Peer:
    """The peer that a header describes, without memory for its numbers: it may claim any size."""
    try:
        size, names = header["image_size"], header["class_names"]
        with torch.device("meta"):
            return create_peer(
                header["name"],
                num_classes=header["num_classes"],
                image_channels=header["image_channels"],
                image_size=tuple(size) if size else None,
                class_names=tuple(names) if names else None,
                provenance=header["provenance"],
            )
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path} has a header that makes no peer ({shown(error, 240)}): save it again") from None


def fill(model: Peer, tensors: Mapping[str, Tensor]) -> Peer:
    model.load_state_dict(tensors, assign=True)
    return model.to(model.dtype).eval()  # what is not in the file, such as a mean colour, in the file's precision
