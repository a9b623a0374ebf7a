"""A checkpoint on disk: read only if every byte of it is as it was written, and with the settings it belongs to."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

SETTINGS_KEY = "codanet_settings"  # in a checkpoint: the settings and the data that its run was made with


class Damaged(ValueError):
    """A checkpoint that is not what was written."""


def check_sums(path: Path) -> None:
    """Compare every part of the file with its CRC32, which torch writes and does not look at again."""
    try:
        with zipfile.ZipFile(path) as file:
            broken = file.testzip()
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise Damaged(f"{path} is not a whole checkpoint ({type(error).__name__})") from None
    if broken is not None:
        raise Damaged(f"{path} has changed since it was written (in its part {broken!r})")


def read_checkpoint(path: Path, device: str = "cpu") -> dict[str, Any]:
    """The plain values and tensors of a checkpoint; `Damaged` if it is not whole."""
    check_sums(path)
    try:
        return dict(torch.load(path, map_location=device, weights_only=True))
    except Exception as error:  # whatever a damaged file makes of torch's unpickler
        raise Damaged(f"{path} cannot be read ({type(error).__name__})") from None
