"""The two halves of a data set: in memory as uint8, or on disk and read by workers; and batches of either."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset, Sampler

from codanet._support.errors import DataError
from codanet._support.limits import memory
from codanet.data.image import decode, fit, size_pair, to_tensor

NUMBERS_AT_ONCE = 1 << 26  # of resized images, as float32

Batch = tuple[Tensor, Tensor]


class Split(Dataset[Batch]):
    """Labelled images, read a batch at a time.

    `labels` is int64 [N]. `boxes`, where the data set has them, is float32 [N, 4]: the object's first and last column
    and row, (x_min, y_min, x_max, y_max), in pixels of the image.
    """

    labels: Tensor
    boxes: Tensor | None = None
    at_hand = False  # so quickly read that processes for it would only get in the way

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Images uint8 [n, C, H, W] and labels int64 [n]."""
        raise NotImplementedError

    def subset(self, indices: Tensor) -> Split:
        """Some of the images, in the order given."""
        raise NotImplementedError

    def order(self, generator: torch.Generator, epoch: int) -> Tensor:
        """The indices of a pass over the images."""
        return torch.randperm(len(self), generator=generator)

    def digest(self) -> str:
        """sha256 of the labels and of what tells the images from others."""
        content = sha256(self.labels.contiguous().numpy().tobytes())
        self._identify(content.update)
        return content.hexdigest()

    def _identify(self, told: Callable[[bytes], None]) -> None:
        """A subclass may add what identifies its images; here there are only labels."""

    def __getitem__(self, index: int) -> Batch:
        images, labels = self.__getitems__([index])
        if not len(images):
            raise DataError(f"picture {index} cannot be read: check the folder")
        return images[0], labels[0]


class MemorySplit(Split):
    """Images that live in memory, uint8 [N, C, H, W]."""

    at_hand = True

    def __init__(self, images: Tensor, labels: Tensor, boxes: Tensor | None = None) -> None:
        check_labels(labels, boxes)
        if images.dtype != torch.uint8 or images.ndim != 4 or len(images) != len(labels):
            raise DataError(
                f"images are {images.dtype} {list(images.shape)} for {len(labels)} labels: pass uint8 [N, C, H, W]"
            )
        self.images, self.labels, self.boxes = images, labels, boxes

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        return self.images[chosen], self.labels[chosen]

    def subset(self, indices: Tensor) -> MemorySplit:
        return MemorySplit(
            self.images[indices], self.labels[indices], None if self.boxes is None else self.boxes[indices]
        )

    def _identify(self, told: Callable[[bytes], None]) -> None:
        """Every number."""
        for images in self.images.split(1000):
            told(images.contiguous().numpy().tobytes())


class FolderSplit(Split):
    """Images read from files when they are asked for, all fitted to one `size`.

    A file that turns out to be damaged is named in a warning and left out of its batch, which is empty if the file was
    alone in it. A batch of several of which none can be read is an error: then the folder is gone, or the disk.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        labels: Tensor,
        size: int | tuple[int, int],
        channels: int = 3,
        boxes: Tensor | None = None,
    ) -> None:
        check_labels(labels, boxes)
        if len(paths) != len(labels):
            raise DataError(f"{len(paths)} files were given for {len(labels)} labels: pass one label a file")
        self.paths = [str(path) for path in paths]
        self.labels, self.boxes = labels, boxes
        self.size, self.channels = size_pair(size), channels

    def subset(self, indices: Tensor) -> FolderSplit:
        paths = [self.paths[index] for index in indices.tolist()]
        boxes = None if self.boxes is None else self.boxes[indices]
        return FolderSplit(paths, self.labels[indices], self.size, self.channels, boxes)

    def _identify(self, told: Callable[[bytes], None]) -> None:
        """Names, sizes and times of the files: reading all of them takes minutes where there are many."""
        for path in map(Path, self.paths):
            about = path.stat() if path.exists() else None
            line = f"{path.parent.name}/{path.name} {about and (about.st_size, about.st_mtime_ns)}\n"
            told(line.encode(errors="surrogateescape"))

    def read(self, index: int) -> Tensor | None:
        try:
            return to_tensor(fit(decode(self.paths[index], self.channels, hint=self.size), self.size))
        except DataError as error:
            warnings.warn(f"a picture is left out: {error}", stacklevel=2)
            return None

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        images = [(index, self.read(index)) for index in indices]
        readable = [(index, image) for index, image in images if image is not None]
        if not readable and len(images) > 1:
            names = ", ".join(self.paths[index] for index in list(indices)[:3])
            raise DataError(f"none of the {len(indices)} pictures of a batch can be read ({names}): check the folder")
        found = [image for _, image in readable]
        stacked = torch.stack(found) if found else torch.empty((0, self.channels, *self.size), dtype=torch.uint8)
        return stacked, self.labels[[index for index, _ in readable]]


@dataclass(frozen=True)
class ImageData:
    """A data set of two splits.

    Args:
        name: What it is called.
        classes: What it shows, in the order of the labels.
        train: The training images; `split[3]` is one, uint8 [C, H, W], with its label.
        val: The held-out ones.
        image_size: (H, W) that they are read at.
        channels: 3 for RGB, 1 for grey.
        checksum: Of the training part, to tell one set from another.
        skipped: Files that could not be read.
        drawn: Whether a seed drew the held-out images out of the training ones, so that another seed draws others.

    Examples:
        >>> len(load_data("digits").classes)  # doctest: +SKIP
        10
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    val: Split
    image_size: tuple[int, int]
    channels: int
    checksum: str
    skipped: tuple[str, ...] = ()
    drawn: bool = False


def in_memory(
    name: str, classes: tuple[str, ...], tensors: Mapping[str, Tensor], checksum: str, size: int | None
) -> ImageData:
    """A set kept as `train_images`, `train_labels`, `val_images` and `val_labels`, at its own size or another."""
    train, val = (
        MemorySplit(resized(tensors[f"{part}_images"], size), tensors[f"{part}_labels"]) for part in ("train", "val")
    )
    _, channels, height, width = train.images.shape
    return ImageData(name, classes, train, val, (height, width), channels, checksum)


def held_out(data: ImageData, number: int, seed: int) -> ImageData:
    """The data with about `number` training images, the same share of every class, in place of the validation images.

    Choices made on them leave a fixed test set unseen.
    """
    if not 0 < number < len(data.train):
        raise DataError(
            f"{number} of {len(data.train)} training images cannot be held out: give a number in between, 0 for none"
        )
    kept, held = stratified(data.train.labels, number / len(data.train), seed)
    return replace(data, train=data.train.subset(kept), val=data.train.subset(held), drawn=True)


class Shuffle(Sampler[int]):
    """A random order that depends on the seed and the epoch alone, so that a resumed run sees what it would have seen.

    A training loop may call `set_epoch`; otherwise each pass is the next epoch. Of several processes each takes every
    `world`-th image, all as many, so that their batches together are the batch that one process would have taken.
    """

    def __init__(self, split: Split, seed: int = 0, rank: int = 0, world: int = 1) -> None:
        self.split, self.seed, self.epoch = split, seed, 0
        self.rank, self.world = rank, world

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.split) // self.world

    def __iter__(self) -> Iterator[int]:
        # one 64-bit seed of (seed, epoch): neighbouring pairs never share a stream
        generator = torch.Generator().manual_seed((self.seed % 2**31) * 2**31 + self.epoch)
        order = self.split.order(generator, self.epoch).tolist()
        self.epoch += 1
        return iter(order[self.rank : len(self) * self.world : self.world])


def batches(
    split: Split,
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    workers: int = 0,
    drop_last: bool = False,
    rank: int = 0,
    world: int = 1,
) -> DataLoader[Batch]:
    """Batches (uint8 [n, C, H, W], int64 [n]) of a split. The caller's random state is left alone.

    Args:
        split: `train` or `val` of a data set.
        batch_size: Images in a batch; the last may have fewer.
        shuffle: Another order in every pass, which depends on seed and pass alone.
        seed: Of that order.
        workers: Processes that read ahead; 0 reads in this one.
        drop_last: Leave a smaller last batch out.
        rank: Which of several processes this is; each gets its share.
        world: How many there are.

    Raises:
        DataError: If batch_size is below 1 or workers below 0.

    Examples:
        >>> images, labels = next(iter(batches(load_data("digits").train, 32)))  # doctest: +SKIP
    """
    if batch_size < 1 or workers < 0:
        raise DataError(f"batch size {batch_size} with {workers} workers: pass at least 1 image and 0 workers or more")
    return DataLoader(
        split,
        batch_size=batch_size,
        sampler=Shuffle(split, seed, rank, world) if shuffle else range(rank, len(split), world),
        num_workers=workers,
        collate_fn=as_read,
        drop_last=drop_last,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator().manual_seed(seed),
        persistent_workers=workers > 0,
    )


def as_read(batch: Any) -> Any:
    """A batch is read as a whole, so there is nothing to collate."""
    return batch


def resized(images: Tensor, size: int | tuple[int, int] | None) -> Tensor:
    """uint8 [N, C, H, W] at another size: shorter side resized (antialiased), centre cut."""
    if size is None or (pair := size_pair(size)) == tuple(images.shape[2:]):
        return images
    number, channels, height, width = images.shape
    needed, there = number * channels * pair[0] * pair[1], memory()
    if there is not None and needed > there:
        raise DataError(
            f"{number} images of {pair[0]}x{pair[1]} take {needed >> 30} GiB and this machine has {there >> 30}: "
            "choose a smaller size"
        )
    scale = max(pair[0] / height, pair[1] / width)
    inner = (max(pair[0], round(height * scale)), max(pair[1], round(width * scale)))
    top, left = (inner[0] - pair[0]) // 2, (inner[1] - pair[1]) // 2
    result = torch.empty((number, channels, *pair), dtype=torch.uint8)
    at_once = min(1024, max(1, NUMBERS_AT_ONCE // (channels * inner[0] * inner[1])))
    for start in range(0, number, at_once):
        block = images[start : start + at_once].float()
        larger = interpolate(block, inner, mode="bilinear", antialias=True, align_corners=False)
        cut = larger[:, :, top : top + pair[0], left : left + pair[1]]
        result[start : start + at_once] = cut.round().clamp(0, 255)
    return result


def check_labels(labels: Tensor, boxes: Tensor | None) -> None:
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise DataError(f"labels are {labels.dtype} {list(labels.shape)}: pass int64 [N]")
    if boxes is not None and boxes.shape != (len(labels), 4):
        raise DataError(f"boxes have shape {list(boxes.shape)} for {len(labels)} images: pass [N, 4]")


def stratified(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of a seeded split that holds out `fraction` of every class, at least one image of each class of two."""
    generator = torch.Generator().manual_seed(seed)
    kept, held = [], []
    for label in sorted(set(labels.tolist())):
        members = (labels == label).nonzero()[:, 0]
        members = members[torch.randperm(len(members), generator=generator)]
        count = min(max(round(len(members) * fraction), 1), len(members) - 1)
        held.append(members[:count])
        kept.append(members[count:])
    return torch.cat(kept).sort().values, torch.cat(held).sort().values
