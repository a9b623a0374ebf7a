"""The pointing game (Zhang et al. 2018): does the largest value of a map lie where it should?

On grids, in the cell of the explained class; where objects have boxes, in the object's box. The original forgives a
point up to 15 pixels beside the object, which are much of a small picture: here it must lie inside.
"""

import torch
from torch import Tensor, nn

from ..data.pictures import Pictures
from ..data.tiling import Grids
from ..models.classifier import like
from .localisation import maps_of_cells
from .maps import Attribute
from .metric import Metric, Sample
from .scores import NO_BOX, NO_POSITIVE, NOT_FINITE, Scores
from .share import box_masks, cell_masks, has_positive


def hits(metric: str, maps: Tensor, inside: Tensor, unit: int = 1) -> Scores:
    """The share of a map's largest values, for there may be several, that lie inside: maps and masks [n, H, W].

    A map without positive values points nowhere and scores 0; one that is not finite fails, and so does a mask with
    nothing inside, where nothing can be hit.
    """
    finite, positive = maps.flatten(1).isfinite().all(1), has_positive(maps)
    empty = ~inside.flatten(1).any(1)
    flat = maps.flatten(1)
    top = flat == flat.amax(1, keepdim=True)
    values = (top & inside.flatten(1)).sum(1).double() / top.sum(1).clamp(min=1)
    values = torch.where(positive, values, 0.0).masked_fill(~finite | empty, torch.nan)
    notes = tuple(
        NO_BOX if nothing else NOT_FINITE if not good else NO_POSITIVE if not some else ""
        for nothing, good, some in zip(empty.tolist(), finite.tolist(), positive.tolist(), strict=True)
    )
    return Scores(metric, values, notes, unit=unit)


def pointing(model: nn.Module, pictures: Pictures, grids: Grids, attribute: Attribute | Tensor) -> Scores:
    """Whether the largest value of a class's map lies on the class's image of a grid: 1 or 0 for every cell.

    Where several values are the largest, the share of them that does.

    Args:
        model: Any classifier.
        pictures: The images that the grids are made of.
        grids: Which of them stand where.
        attribute: (model, images, targets) -> maps, or the maps themselves, [G, size², size·H, size·W].

    Examples:
        >>> pointing(model, pictures, grids, contributions).mean  # doctest: +SKIP
    """
    if isinstance(attribute, Tensor):
        maps = attribute.detach().cpu()
    else:
        maps = maps_of_cells(model, like(model, grids.images(pictures)), grids.classes, attribute)
    own = cell_masks(grids.size, maps.shape[2], maps.shape[3])
    return hits("pointing", maps.flatten(0, 1), own.repeat(len(maps), 1, 1), unit=grids.size**2)


def _on_grids(sample: Sample) -> Scores:
    assert sample.grids is not None
    return pointing(sample.model, sample.pictures, sample.grids, sample.attribute)


def _on_boxes(sample: Sample) -> Scores:
    boxes = sample.pictures.boxes(list(sample.indices))
    return hits("pointing-box", sample.maps, box_masks(boxes, sample.maps.shape[1], sample.maps.shape[2]))


POINTING = Metric(
    "pointing",
    "Pointing game",
    True,
    "share of the maps whose largest value lies in the cell of the explained class, on grids; chance is 1 over the "
    "number of cells",
    "grids",
    _on_grids,
    unit="grids",
    n=500,
    n_elsewhere=250,
)
POINTING_BOX = Metric(
    "pointing-box",
    "Pointing game, boxes",
    True,
    "share of the maps whose largest value lies in the object's box",
    "boxes",
    _on_boxes,
)
