"""A folder of photographs for a pre-trained network: read from disk, all of one shape, its pitfalls said beforehand."""

import warnings
from collections import defaultdict
from hashlib import sha256
from pathlib import Path
from statistics import median

import torch

from codanet._support.errors import DataError
from codanet.data.folder import (
    LAYOUT,
    Listing,
    Size,
    check_classes,
    headers,
    listings,
    path_checksum,
    relative,
    skip,
    some,
    split_folders,
)
from codanet.data.image import size_pair
from codanet.data.split import FolderSplit, ImageData
from codanet.models.architectures import USUAL_SIDE

FEW = 10  # photographs of a class, from which little can be learnt
LONGEST = 4 / 3  # the ratio of the sides up to which photographs are taken whole
STEP = 32  # the longer side is a multiple of it, as are the strides of backbones


def load_photographs(root: Path, *, side: int = USUAL_SIDE, size: int | Size | None = None, seed: int = 0) -> ImageData:
    """As `load_folder`, but read from disk, and with `side` as the shorter side of what most photographs look like.

    size: the side of squares, if all are to be squares, or their height and width.
    """
    classes, train, val = listings(root, seed)
    check_classes(train, classes, root)
    paths, errors = [*train.paths, *val.paths], dict[int, str]()
    sizes = headers(paths, errors)
    skipped = skip(paths, errors, root)
    train, val = _readable(train, 0, errors), _readable(val, len(train.paths), errors)
    check_classes(train, classes, root)
    if not val.paths:
        raise DataError(f"'{root}' has no readable picture to validate with: {LAYOUT}")
    _warn_of_few(train, classes)
    shape = size_pair(size) if size else usual_shape(sizes, side)
    data = ImageData(
        root.resolve().name,
        classes,
        FolderSplit(train.paths, train.labels, shape),
        FolderSplit(val.paths, val.labels, shape),
        shape,
        3,
        path_checksum(train, root),
        skipped,
        drawn=split_folders(root)[1] is None,
    )
    warn_of_leaks(data, root)
    return data


def usual_shape(sizes: list[Size], side: int) -> Size:
    """(H, W) with `side` as the shorter one and the ratio that half of the photographs exceed, up to 4:3."""
    ratio = median(height / width for height, width in sizes)
    longer = max(side, round(side * min(max(ratio, 1 / ratio), LONGEST) / STEP) * STEP)
    return (longer, side) if ratio > 1 else (side, longer)


def _readable(files: Listing, start: int, errors: dict[int, str]) -> Listing:
    return files.part(torch.tensor([i for i in range(len(files.paths)) if start + i not in errors]).long())


def _warn_of_few(train: Listing, classes: tuple[str, ...]) -> None:
    counts = train.labels.bincount(minlength=len(classes)).tolist()
    few = [f"{name} {count}" for name, count in zip(classes, counts, strict=True) if count < FEW]
    if few:
        warnings.warn(
            f"there are few photographs to learn from ({some(few)}): expect little of these classes, and add some",
            stacklevel=3,
        )


def warn_of_leaks(data: ImageData, root: Path) -> None:
    """Files of the same content in both parts: what is remembered would count as recognised."""
    if not (isinstance(data.train, FolderSplit) and isinstance(data.val, FolderSplit)):
        return
    by_size: dict[int, list[Path]] = defaultdict(list)
    for path in map(Path, data.train.paths):
        by_size[path.stat().st_size].append(path)
    contents: dict[int, dict[bytes, Path]] = {}
    pairs = []
    for path in map(Path, data.val.paths):
        size = path.stat().st_size
        if size not in by_size:
            continue
        if size not in contents:
            contents[size] = {_digest(each): each for each in by_size[size]}
        if same := contents[size].get(_digest(path)):
            pairs.append(f"{relative(path, root)} = {relative(same, root)}")
    if pairs:
        warnings.warn(
            f"{len(pairs)} validation photographs are among the training ones as well ({some(pairs)}), so the accuracy "
            "is flattered: remove one of each",
            stacklevel=3,
        )


def _digest(path: Path) -> bytes:
    return sha256(path.read_bytes()).digest()
