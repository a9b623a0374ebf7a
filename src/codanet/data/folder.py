"""Any folder of labelled pictures: `train/` and `val/` with a folder a class in each, or a folder a class."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low
from typing import TypeVar

import torch
from torch import Tensor

from codanet._support.errors import DataError
from codanet._support.pictures import image_files, visible
from codanet._support.progress import progress_bar
from codanet.data.image import decode, fit, header, size_pair, to_tensor
from codanet.data.split import FolderSplit, ImageData, MemorySplit, Split, stratified
from codanet.models.architectures import USUAL_SIDE

MEMORY_BYTES = 2 * 2**30
TOLERATED_FRACTION = 0.1
HELD_OUT_FRACTION = 0.2
VALIDATION_NAMES = ("val", "valid", "validation", "test")
LAYOUT = "put pictures in train/<class>/ and val/<class>/, or in one folder per class"
CAMERA_FORMATS = {".heic", ".heif", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".pef", ".raw"}
NATIVE_SIDE = 256

T = TypeVar("T")
Size = tuple[int, int]


@dataclass(frozen=True)
class Listing:
    """The files of one split and their labels."""

    paths: list[Path]
    labels: Tensor  # int64 [N]
    boxes: Tensor | None = None

    def part(self, indices: Tensor) -> Listing:
        boxes = None if self.boxes is None else self.boxes[indices]
        return Listing([self.paths[index] for index in indices.tolist()], self.labels[indices], boxes)


def load_folder(root: Path, *, size: int | None = None, seed: int = 0, name: str | None = None) -> ImageData:
    """Read a folder of pictures; without a validation folder, a seeded fifth of every class is held out.

    Without `size`, pictures of one size of at most 256 pixels a side keep it; others become squares of at most 224.
    """
    classes, train, val = listings(root, seed)
    data = assemble(name or root.resolve().name, classes, train, val, root, size)
    return replace(data, drawn=split_folders(root)[1] is None)


def listings(root: Path, seed: int) -> tuple[tuple[str, ...], Listing, Listing]:
    """The classes, and the files to train on and to validate with."""
    if not root.is_dir():
        raise DataError(f"'{root}' is not a folder: pass a folder of pictures, and {LAYOUT}")
    train_root, val_root = split_folders(root)
    classes = class_names(train_root)
    train = without_camera_formats(listing(train_root, classes), root)
    if val_root is not None:
        check_same_classes(classes, val_root, root)
        return classes, train, without_camera_formats(listing(val_root, classes), root)
    check_classes(train, classes, root)
    kept, held = stratified(train.labels, HELD_OUT_FRACTION, seed)
    if not len(held):
        raise DataError(f"every class in '{root}' has a single picture, so none can be held out: add pictures")
    return classes, train.part(kept), train.part(held)


def without_camera_formats(files: Listing, root: Path) -> Listing:
    """Without what cameras write and no browser shows, which is named."""
    readable = torch.tensor([path.suffix.lower() not in CAMERA_FORMATS for path in files.paths], dtype=torch.bool)
    other = [files.paths[index] for index in (~readable).nonzero()[:, 0].tolist()]
    if not other:
        return files
    kinds = ", ".join(sorted({path.suffix.lower() for path in other}))
    warnings.warn(
        f"{len(other)} files in '{root}' are {kinds}, which are not read ({some([relative(p, root) for p in other])}): "
        "export them as JPEG to use them",
        stacklevel=4,
    )
    return files.part(readable.nonzero()[:, 0])


def split_folders(root: Path) -> tuple[Path, Path | None]:
    """The training folder, and the validation folder if there is one."""
    train = root / "train"
    if not (train.is_dir() and visible_folders(train)):
        return root, None
    validation = [root / name for name in VALIDATION_NAMES if (root / name).is_dir() and visible_folders(root / name)]
    return train, validation[0] if validation else None


def visible_folders(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if visible(entry) and entry.is_dir())
    except OSError as error:
        raise DataError(f"'{folder}' cannot be read ({error.strerror}): check its permissions") from error


def class_names(folder: Path) -> tuple[str, ...]:
    classes = tuple(entry.name for entry in visible_folders(folder))
    if not classes:
        raise DataError(f"'{folder}' has no class folders: {LAYOUT}")
    if len(classes) == 1:
        raise DataError(f"'{folder}' has only one class ('{classes[0]}'), but at least two are needed: {LAYOUT}")
    return classes


def check_same_classes(classes: tuple[str, ...], val_root: Path, root: Path) -> None:
    held = {entry.name for entry in visible_folders(val_root)}
    unknown = sorted(held - set(classes))
    if unknown:
        raise DataError(
            f"'{val_root}' has classes that training lacks ({', '.join(unknown[:5])}): use the same classes in both"
        )
    missing = sorted(set(classes) - held)
    if missing:
        warnings.warn(f"'{val_root}' has no folder for {', '.join(missing[:5])}: not validated", stacklevel=3)


def listing(folder: Path, classes: Sequence[str]) -> Listing:
    files = [image_files(folder / name) for name in classes]
    paths = [path for group in files for path in group]
    return Listing(paths, torch.tensor([label for label, group in enumerate(files) for _ in group], dtype=torch.int64))


def assemble(
    name: str, classes: tuple[str, ...], train: Listing, val: Listing, root: Path, size: int | Size | None
) -> ImageData:
    """Read what fits into memory (decoded), leave the rest on disk, drop what cannot be read."""
    check_classes(train, classes, root)
    shape = None if size is None else size_pair(size)
    paths = [*train.paths, *val.paths]
    errors: dict[int, str] = {}
    if shape is None:
        shape = shared_size(headers(paths, errors))
        refuse_many(paths, errors, root)
    in_memory = len(paths) * 3 * shape[0] * shape[1] <= MEMORY_BYTES
    if in_memory:
        images = decoded(paths, shape, errors)
    elif size is not None:
        headers(paths, errors)
    skipped = skip(paths, errors, root)
    splits: list[Split] = []
    for part, start in ((train, 0), (val, len(train.paths))):
        good = torch.tensor([i for i in range(len(part.paths)) if start + i not in errors], dtype=torch.int64)
        rest = part.part(good)
        if in_memory:
            whole = len(rest.paths) == len(part.paths)
            stack = images[start : start + len(part.paths)] if whole else images[good + start]
            splits.append(MemorySplit(stack, rest.labels, rest.boxes))
        else:
            splits.append(FolderSplit(rest.paths, rest.labels, shape, 3, rest.boxes))
        if not start:
            check_classes(rest, classes, root)
    if not len(splits[1]):
        raise DataError(f"'{root}' has no readable picture to validate with: {LAYOUT}")
    return ImageData(name, classes, splits[0], splits[1], shape, 3, path_checksum(train, root), skipped)


def skip(paths: list[Path], errors: dict[int, str], root: Path) -> tuple[str, ...]:
    """The names of files that are left out, said in a warning; too many of them are an error."""
    refuse_many(paths, errors, root)
    skipped = tuple(relative(paths[index], root) for index in sorted(errors))
    if skipped:
        warnings.warn(f"{len(skipped)} of {len(paths)} files in '{root}' are skipped: {some(skipped)}", stacklevel=4)
    return skipped


def check_classes(part: Listing, classes: tuple[str, ...], root: Path) -> None:
    counts = part.labels.bincount(minlength=len(classes)).tolist()
    empty = [name for name, count in zip(classes, counts, strict=True) if not count]
    if empty:
        raise DataError(
            f"{len(empty)} class folder{'s' if len(empty) > 1 else ''} of '{root}' ({', '.join(empty[:5])}) "
            f"{'have' if len(empty) > 1 else 'has'} no readable picture to train on: add pictures or remove the folder"
        )


def refuse_many(paths: list[Path], errors: dict[int, str], root: Path) -> None:
    if len(errors) == len(paths) or (len(errors) > 1 and len(errors) > TOLERATED_FRACTION * len(paths)):
        names = [relative(paths[index], root) for index in sorted(errors)]
        raise DataError(
            f"{len(names)} of {len(paths)} files in '{root}' are not readable pictures ({some(names)}), but at most "
            f"{TOLERATED_FRACTION:.0%} are skipped: repair or remove them"
        )


def some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def headers(paths: list[Path], errors: dict[int, str]) -> list[Size]:
    """The size of every readable picture; the others go to `errors`."""
    sizes = threaded(lambda index: header(paths[index]), len(paths), errors, "checking pictures")
    return [size for size in sizes if size is not None]


def decoded(paths: list[Path], size: Size, errors: dict[int, str]) -> Tensor:
    """uint8 [N, 3, H, W]; rows of files in `errors` are undefined."""
    images = torch.empty((len(paths), 3, *size), dtype=torch.uint8)

    def read(index: int) -> None:
        images[index].copy_(to_tensor(fit(decode(paths[index], 3, hint=size), size)))

    threaded(read, len(paths), errors, "reading pictures")
    return images


def threaded(work: Callable[[int], T], count: int, errors: dict[int, str], title: str) -> list[T | None]:
    """`work` of every index not yet in `errors`, in threads: decoders leave Python's lock."""

    def attempt(index: int) -> T | None:
        if index in errors:
            return None
        try:
            return work(index)
        except DataError as error:
            errors[index] = str(error)
            return None

    results: list[T | None] = []
    with (
        ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool,
        progress_bar(title, count, shown=count > 2000, unit="files") as advance,
    ):
        for result in pool.map(attempt, range(count)):
            results.append(result)
            advance(1)
    return results


def shared_size(sizes: list[Size]) -> Size:
    """One size (H, W) for all: their own if they agree and are small, else a square."""
    if not sizes:
        return 1, 1
    if len(set(sizes)) == 1 and max(sizes[0]) <= NATIVE_SIDE:
        return sizes[0]
    side = min(median_low(min(size) for size in sizes), USUAL_SIDE)
    return side, side


def path_checksum(part: Listing, root: Path) -> str:
    """sha256 over the training files' relative paths and sizes, sorted."""
    sizes = [(path, path.stat().st_size if path.exists() else 0) for path in part.paths]  # a broken link has none
    lines = sorted(f"{relative(path, root)}\0{size}\n" for path, size in sizes)
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()
