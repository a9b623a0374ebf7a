"""Several images as one, in rows and columns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from codanet._support.errors import DataError
from codanet.data.pictures import Pictures


def tiled(images: Tensor, side: int) -> Tensor:
    """Images [G · side², C, H, W], row by row, as G pictures [G, C, side · H, side · W]."""
    channels, height, width = images.shape[1:]
    tiles = images.view(-1, side, side, channels, height, width)  # row and column of the tile
    return tiles.permute(0, 3, 1, 4, 2, 5).reshape(-1, channels, side * height, side * width)


def tiled_square(images: Sequence[Tensor]) -> Tensor:
    """n² images [C, H, W], row by row, as one [C, nH, nW]."""
    n = math.isqrt(len(images))
    if n < 1 or n * n != len(images):
        raise ValueError(f"{len(images)} pictures make no square: give 4, 9 or another square number of them")
    return tiled(torch.stack(list(images)), n)[0]


def mosaics(images: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Four images to a picture, [N / 4, C, 2H, 2W], with the labels of all four, [N / 4, classes] of ones and zeros."""
    if len(images) % 4:
        raise DataError(f"{len(images)} images do not make mosaics of four: pass a multiple of 4")
    return tiled(images, 2), torch.nn.functional.one_hot(labels, classes).view(-1, 4, classes).amax(1)


class TooFewImages(ValueError):
    """The images that a model is sure of do not fill the grids that are asked for."""


@dataclass(frozen=True)
class Grids:
    """Which image of the split is in which cell, row by row, and of which class it is."""

    indices: Tensor  # [G, size²]
    classes: Tensor  # [G, size²]
    size: int

    def __len__(self) -> int:
        return len(self.indices)

    def part(self, start: int, stop: int) -> "Grids":
        return Grids(self.indices[start:stop], self.classes[start:stop], self.size)

    def images(self, pictures: Pictures) -> Tensor:
        """[G, C, size·H, size·W]"""
        images, labels, _ = pictures.read(self.indices.flatten().tolist())
        if len(images) != self.indices.numel() or not torch.equal(labels, self.classes.flatten()):
            raise ValueError("the images of the grids are not what they were: has the data set changed meanwhile?")
        return tiled(images, self.size)


def possible_grids(counts: Sequence[int], cells: int) -> int:
    """The most grids of `cells` different classes that so many images of each class can fill, each image once.

    G grids can be filled exactly if Σ min(count, G) >= G · cells.
    """
    low, high = 0, sum(counts) // cells
    while low < high:
        middle = (low + high + 1) // 2
        if _enough(counts, middle, cells):
            low = middle
        else:
            high = middle - 1
    return low


def _enough(counts: Sequence[int], grids: int, cells: int) -> bool:
    return sum(min(count, grids) for count in counts) >= grids * cells


def make_grids(confident: Mapping[int, Sequence[int]], number: int, size: int = 3, *, seed: int = 0) -> Grids:
    """`number` grids of size x size images, from `confident_images`.

    The classes of a grid are drawn at random from those that have images left. Only where that would use up a class
    that later grids need are the classes with the most images left taken instead.
    """
    cells = size * size
    if size < 1 or number < 1:
        raise ValueError(f"{number} grids of {size}x{size} are asked for: ask for at least one grid of one image")
    counts = {label: len(images) for label, images in confident.items() if images}
    possible = possible_grids(list(counts.values()), cells)
    if number > possible:
        fewest = f", the fewest of one class {min(counts.values())}" if counts else ""
        raise TooFewImages(
            f"{number} grids of {size}x{size} need {number * cells} confidently classified images, {cells} different "
            f"classes in each: there are {sum(counts.values())} such images of {len(counts)} classes{fewest}, which is "
            f"enough for {possible} grids, so ask for fewer grids, smaller ones, or use a better model"
        )
    generator = torch.Generator().manual_seed(seed)
    left = dict(counts)
    indices, classes = [], []
    for made in range(number):
        having = [label for label in left if left[label]]
        order = [having[place] for place in torch.randperm(len(having), generator=generator).tolist()]
        chosen = order[:cells]
        after = [left[label] - (label in chosen) for label in left]
        if len(chosen) < cells or not _enough(after, number - made - 1, cells):
            chosen = sorted(order, key=lambda label: -left[label])[:cells]
        classes.append(chosen)
        indices.append([confident[label][counts[label] - left[label]] for label in chosen])
        for label in chosen:
            left[label] -= 1
    return Grids(torch.tensor(indices), torch.tensor(classes), size)


def grids_up_to(most: int, confident: Mapping[int, Sequence[int]], size: int = 3, *, seed: int = 0) -> Grids | None:
    """As many as the images fill, but no more than `most`; None if they do not fill one."""
    possible = possible_grids([len(images) for images in confident.values()], size * size)
    return make_grids(confident, min(most, possible), size, seed=seed) if possible else None
