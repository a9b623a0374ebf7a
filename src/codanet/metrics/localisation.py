"""Localisation on grids of images (eq. 11; sec. 4.2, C.4): does the map of a class lie on that class's image?

Grids are made as in the paper: for each a random set of classes, and of each class the most confidently classified
image that no grid before it has used. Every class in a grid is explained once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .classifier import Attribute, like
from .pictures import Pictures
from .scores import NO_POSITIVE, NOT_FINITE, Scores

GRIDS_AT_ONCE = 4


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
        grids = images.view(len(self), self.size, self.size, *images.shape[1:])
        return grids.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


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
        raise ValueError(
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


def cell_shares(maps: Tensor, size: int) -> Scores:
    """Maps [G, size², size·H, size·W], the k-th for the class in the k-th cell, to G · size² scores.

    The share of the positive attribution that lies in the class's own cell. A map without any scores 0, one with values
    that are not finite fails; both are noted.
    """
    cells = size * size
    if maps.ndim != 4 or maps.shape[1] != cells or maps.shape[2] % size or maps.shape[3] % size:
        raise ValueError(f"maps are {list(maps.shape)}: for {size}x{size} grids give [G, {cells}, {size}·H, {size}·W]")
    height, width = maps.shape[2] // size, maps.shape[3] // size
    positive = maps.double().clamp(min=0).view(-1, cells, size, height, size, width).sum((3, 5)).flatten(2)
    own = positive.diagonal(dim1=1, dim2=2)  # [G, cells]
    total = positive.sum(2)
    nothing = total == 0
    failed = ~maps.isfinite().all(-1).all(-1)
    values = torch.where(nothing, 0.0, own / torch.where(nothing, 1.0, total))
    values[failed] = torch.nan
    notes = [
        NOT_FINITE if bad else NO_POSITIVE if empty else ""
        for bad, empty in zip(failed.flatten().tolist(), nothing.flatten().tolist(), strict=True)
    ]
    return Scores("localisation", values.flatten(), tuple(notes), unit=cells)


def localisation(
    model: nn.Module,
    pictures: Pictures,
    grids: Grids,
    attribute: Attribute | Tensor,
    *,
    grids_at_once: int = GRIDS_AT_ONCE,
) -> Scores:
    """The scores of all cells; `attribute` may be the maps themselves, [G, size², size·H, size·W].

    The whole grid goes through the model as one image, which must take images of any size.
    """
    if isinstance(attribute, Tensor):
        return cell_shares(attribute.detach().cpu(), grids.size)
    parts = []
    for start in range(0, len(grids), grids_at_once):
        some = grids.part(start, start + grids_at_once)
        parts.append(cell_shares(_maps(model, some, some.images(pictures), attribute), grids.size))
    return Scores.join(parts)


def _maps(model: nn.Module, grids: Grids, images: Tensor, attribute: Attribute) -> Tensor:
    """One map per cell, [G, size², size·H, size·W]."""
    images = like(model, images)
    if getattr(attribute, "several_targets", False):  # one forward pass for all classes of a grid
        maps = attribute(model, images, grids.classes)
    else:
        maps = attribute(model, images.repeat_interleave(grids.classes.shape[1], 0), grids.classes.flatten())
    wanted = (*grids.classes.shape, *images.shape[2:])
    if not isinstance(maps, Tensor) or maps.numel() != wanted[0] * wanted[1] * wanted[2] * wanted[3]:
        given = list(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
        raise ValueError(f"the maps are {given} for {len(grids)} grids {list(images.shape)}: give a map per cell")
    return maps.detach().cpu().view(wanted)
