"""Tiny-ImageNet: 200 classes of 500 training and 50 validation images, 64x64, with a box around each object."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from codanet._support.download import fetch
from codanet._support.errors import DataError
from codanet._support.pictures import image_files
from codanet.data.folder import Listing, assemble
from codanet.data.origin import Origin
from codanet.data.split import ImageData, MemorySplit, resized
from codanet.data.wordnet import WNID, class_words

ADDRESS = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
ADDRESS_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
SIDE = 64
LAYOUT = "the official folder has wnids.txt, words.txt, train/<wnid>/images/ and val/val_annotations.txt"


def load_tiny_imagenet(
    root: Path | None = None, *, size: int | None = None, seed: int = 0, source: str = "auto"
) -> ImageData:
    """Tiny-ImageNet from `root` (folder or zip, any number of classes), or fetched once from the official address."""
    tensors, checksum = ORIGIN.tensors(root, source)
    classes = tuple(bytes(tensors["classes"].tolist()).decode().split("\n"))
    skipped = tuple(bytes(tensors["skipped"].tolist()).decode().split("\n")) if len(tensors["skipped"]) else ()
    train = MemorySplit(resized(tensors["train_images"], size), tensors["train_labels"])
    scale = 1 if size is None else size / SIDE
    boxes = tensors["val_boxes"] * scale
    boxes[:, 2:] += scale - 1  # a last column x ends at the edge x + 1: (x + 1) scale - 1
    val = MemorySplit(resized(tensors["val_images"], size), tensors["val_labels"], boxes)
    shape = (train.images.shape[2], train.images.shape[3])
    return ImageData("tiny-imagenet", classes, train, val, shape, 3, checksum, skipped)


def read_files(folder: Path) -> dict[str, Tensor]:
    """Classes in the order of wnids.txt."""
    wnids = read_lines(folder / "wnids.txt")
    if not wnids or not all(map(WNID.fullmatch, wnids)):
        raise DataError(f"'{folder / 'wnids.txt'}' is not a list of WordNet ids such as n02099601: {LAYOUT}")
    numbers = {wnid: number for number, wnid in enumerate(wnids)}
    groups = [image_files(folder / "train" / wnid / "images") for wnid in wnids]
    labels = torch.tensor([number for number, group in enumerate(groups) for _ in group], dtype=torch.int64)
    train = Listing([path for group in groups for path in group], labels)
    data = assemble("tiny-imagenet", class_words(folder, wnids), train, read_annotations(folder, numbers), folder, SIDE)
    if not (isinstance(data.train, MemorySplit) and isinstance(data.val, MemorySplit) and data.val.boxes is not None):
        raise DataError(f"'{folder}' has more pictures than fit into memory: load it as an image folder instead")
    return {
        "train_images": data.train.images,
        "train_labels": data.train.labels,
        "val_images": data.val.images,
        "val_labels": data.val.labels,
        "val_boxes": data.val.boxes,
        "classes": text_tensor(data.classes),
        "skipped": text_tensor(data.skipped),
    }


def read_annotations(folder: Path, numbers: dict[str, int]) -> Listing:
    """Lines of file, wnid, and the first and last column and row of the object."""
    path = folder / "val" / "val_annotations.txt"
    paths, labels, boxes = [], [], []
    for line in read_lines(path):
        fields = line.split()
        if len(fields) != 6 or fields[1] not in numbers or "/" in fields[0] or not all(map(str.isdecimal, fields[2:])):
            raise DataError(f"'{path}' has a line that is not 'file wnid x y x y' ({line!r}): {LAYOUT}")
        paths.append(folder / "val" / "images" / fields[0])
        labels.append(numbers[fields[1]])
        boxes.append([float(value) for value in fields[2:]])
    return Listing(paths, torch.tensor(labels, dtype=torch.int64), torch.tensor(boxes).view(-1, 4))


def read_lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f"'{path}' is missing or not text: {LAYOUT}") from error


def text_tensor(names: tuple[str, ...]) -> Tensor:
    return torch.tensor(list("\n".join(names).encode()), dtype=torch.uint8)


def fetch_official(folder: Path) -> Path:
    return fetch(ADDRESS, folder / "tiny-imagenet-200.zip", md5=ADDRESS_MD5)


ORIGIN = Origin("tiny-imagenet", ("wnids.txt",), fetch_official, None, read_files)
