"""The share of positive attribution inside the box around the object: Tiny-ImageNet's validation images have boxes."""

import torch
from torch import Tensor, nn

from .maps import Attribute, maps_of
from .scores import NO_POSITIVE, NOT_FINITE, Scores

NO_BOX = "the box holds no pixel of the image"


def box_masks(boxes: Tensor, height: int, width: int) -> Tensor:
    """Boxes [N, 4], first and last column and row (x_min, y_min, x_max, y_max), as masks [N, H, W]."""
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes are {list(boxes.shape)}: give (x_min, y_min, x_max, y_max) for each image, [N, 4]")
    x_min, y_min, x_max, y_max = (side.view(-1, 1) for side in boxes.double().unbind(1))
    columns, rows = torch.arange(width), torch.arange(height)
    across = (columns >= x_min.floor()) & (columns <= x_max.ceil())  # [N, W]
    down = (rows >= y_min.floor()) & (rows <= y_max.ceil())  # [N, H]
    return down[:, :, None] & across[:, None, :]


def box_share(
    model: nn.Module, images: Tensor, targets: Tensor, attribute: Attribute | Tensor, boxes: Tensor
) -> Scores:
    """Per image; `extras["chance"]` is the box's share of the image, the score of a uniform map.

    A map without positive values scores 0 and is noted. A map that is not finite and a box outside of the image fail.
    """
    maps = maps_of(attribute, model, images, targets)
    if len(boxes) != len(maps):
        raise ValueError(f"{len(boxes)} boxes were given for {len(maps)} images: give one for each")
    inside = box_masks(boxes, maps.shape[1], maps.shape[2])
    positive = maps.clamp(min=0)
    total = positive.sum((1, 2))
    nothing = total == 0
    values = torch.where(nothing, 0.0, (positive * inside).sum((1, 2)) / torch.where(nothing, 1.0, total))
    finite, empty = maps.flatten(1).isfinite().all(1), ~inside.flatten(1).any(1)
    values[~finite | empty] = torch.nan
    notes = tuple(
        NO_BOX if no_box else NOT_FINITE if not good else NO_POSITIVE if none else ""
        for no_box, good, none in zip(empty.tolist(), finite.tolist(), nothing.tolist(), strict=True)
    )
    return Scores("box", values, notes, {"chance": inside.double().mean((1, 2))})
