"""Localisation on grids of images (eq. 11; sec. 4.2, C.4): does the map of a class lie on that class's image?

Grids are made as in the paper: for each a random set of classes, and of each class the most confidently classified
image that no grid before it has used. Every class in a grid is explained once.
"""

import torch
from torch import Tensor, nn

from .._support.numbers import check_whole
from ..data.pictures import Pictures
from ..data.tiling import Grids
from ..models.classifier import like
from .maps import Attribute
from .metric import Metric, Sample
from .scores import NO_POSITIVE, NOT_FINITE, Scores
from .share import cell_masks, has_positive, positive_share

GRIDS_AT_ONCE = 4
BLOCKS = 4  # on a side of a cell, in pictures of many maps


def cell_shares(maps: Tensor, size: int) -> Scores:
    """Maps [G, size², size·H, size·W], the k-th for the class in the k-th cell, to G · size² scores.

    The share of the positive attribution that lies in the class's own cell. A map without any scores 0, one with values
    that are not finite fails; both are noted. `extras["blocks"]` are the maps themselves, as coarse as a figure of many
    of them needs.
    """
    cells = size * size
    if maps.ndim != 4 or maps.shape[1] != cells or maps.shape[2] % size or maps.shape[3] % size:
        raise ValueError(f"maps are {list(maps.shape)}: for {size}x{size} grids give [G, {cells}, {size}·H, {size}·W]")
    own = cell_masks(size, maps.shape[2], maps.shape[3])
    failed, positive = ~maps.isfinite().all(-1).all(-1), has_positive(maps)
    values = positive_share(maps, own)  # [G, cells]
    notes = [
        NOT_FINITE if bad else NO_POSITIVE if not some else ""
        for bad, some in zip(failed.flatten().tolist(), positive.flatten().tolist(), strict=True)
    ]
    return Scores("localisation", values.flatten(), tuple(notes), {"blocks": blocks(maps, size)}, unit=cells)


def blocks(maps: Tensor, size: int) -> Tensor:
    """Where the positive attribution of maps [G, size², size·H, size·W] lies, in thousandths of it.

    [G · size², size · n, size · n], n blocks to a side of a cell, with the explained cell moved to the upper left
    corner (as in Rao et al. 2022) so that maps of different cells can be added up. 0 for a map that has none.
    """
    height, width = maps.shape[2] // size, maps.shape[3] // size
    number = max(n for n in range(1, BLOCKS + 1) if height % n == 0 and width % n == 0)
    positive = maps.double().clamp(min=0).nan_to_num(nan=0, posinf=0)
    sums = positive.unflatten(3, (size * number, -1)).sum(4).unflatten(2, (size * number, -1)).sum(3)
    total = sums.sum((2, 3), keepdim=True)
    shares = (1000 * sums / torch.where(total > 0, total, 1)).round().to(torch.int64)
    moved = [
        shares[:, cell].roll((-(cell // size) * number, -(cell % size) * number), (1, 2)) for cell in range(size * size)
    ]
    return torch.stack(moved, 1).flatten(0, 1)


def localisation(
    model: nn.Module,
    pictures: Pictures,
    grids: Grids,
    attribute: Attribute | Tensor,
    *,
    grids_at_once: int = GRIDS_AT_ONCE,
) -> Scores:
    """How much of the positive attribution for a class lies on its own image of a grid (eq. 11): 1 at best.

    The whole grid goes through the model as one image, which must take images of any size.

    Args:
        model: Any classifier.
        pictures: The images that the grids are made of.
        grids: Which of them stand where.
        attribute: (model, images, targets) -> maps, or the maps themselves, [G, size², size·H, size·W].
        grids_at_once: Grids that are explained together.

    Returns:
        A score for every cell. A map without positive values scores 0, one that is not finite fails; both are noted.

    Examples:
        >>> localisation(model, pictures, make_grids(sure, 50, 3), contributions).mean  # doctest: +SKIP
    """
    check_whole(1, grids_at_once=grids_at_once)
    if isinstance(attribute, Tensor):
        return cell_shares(attribute.detach().cpu(), grids.size)
    parts = []
    for start in range(0, len(grids), grids_at_once):
        some = grids.part(start, start + grids_at_once)
        images = like(model, some.images(pictures))
        parts.append(cell_shares(maps_of_cells(model, images, some.classes, attribute), grids.size))
    return Scores.join(parts)


def maps_of_cells(model: nn.Module, images: Tensor, targets: Tensor, attribute: Attribute) -> Tensor:
    """One map per cell of grids, for targets [G, size²]: [G, size², size·H, size·W]."""
    if getattr(attribute, "several_targets", False):  # one forward pass for all classes of a grid
        maps = attribute(model, images, targets)
    else:
        maps = attribute(model, images.repeat_interleave(targets.shape[1], 0), targets.flatten())
    wanted = (*targets.shape, *images.shape[2:])
    if not isinstance(maps, Tensor) or maps.numel() != wanted[0] * wanted[1] * wanted[2] * wanted[3]:
        shape = list(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
        raise ValueError(f"the maps are {shape} for {len(targets)} grids {list(images.shape)}: give a map per cell")
    return maps.detach().cpu().view(wanted)


def _run(sample: Sample) -> Scores:
    assert sample.grids is not None
    return localisation(sample.model, sample.pictures, sample.grids, sample.attribute)


LOCALISATION = Metric(
    "localisation",
    "Localisation",
    True,
    "positive attribution inside the cell of the explained class over all positive attribution, on grids of "
    "confidently classified images (eq. 11); chance is 1 over the number of cells",
    "grids",
    _run,
    unit="grids",
    n=500,
    n_elsewhere=250,
)
