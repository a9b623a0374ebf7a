"""Eq. 11: of the positive attribution in a map, the share that lies where it should."""

import torch
from torch import Tensor


def positive_share(maps: Tensor, inside: Tensor) -> Tensor:
    """Σ of the positive values inside over Σ of all of them, float64 [...], for maps and masks [..., H, W].

    0 where a map has no positive value, NaN where it has values that are not finite.
    """
    positive = maps.double().clamp(min=0)
    total = positive.sum((-2, -1))
    nothing = total == 0
    share = torch.where(nothing, 0.0, (positive * inside).sum((-2, -1)) / torch.where(nothing, 1.0, total))
    return share.masked_fill(~maps.isfinite().all(-1).all(-1), torch.nan)


def has_positive(maps: Tensor) -> Tensor:
    """Whether a map [..., H, W] has a positive value."""
    return (maps > 0).any(-1).any(-1)


def cell_masks(size: int, height: int, width: int) -> Tensor:
    """The cells of a grid of size x size images, row by row, as masks [size², H, W]."""
    if size < 1 or height % size or width % size:
        raise ValueError(f"{height} x {width} pixels cannot be cut into {size} x {size} equal cells")
    row = torch.arange(height) // (height // size)
    column = torch.arange(width) // (width // size)
    number = row[:, None] * size + column[None]  # [H, W]
    return number == torch.arange(size * size)[:, None, None]


def box_masks(boxes: Tensor, height: int, width: int) -> Tensor:
    """Boxes [N, 4], first and last column and row (x_min, y_min, x_max, y_max), as masks [N, H, W]."""
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes are {list(boxes.shape)}: give (x_min, y_min, x_max, y_max) for each image, [N, 4]")
    x_min, y_min, x_max, y_max = (side.view(-1, 1) for side in boxes.double().unbind(1))
    columns, rows = torch.arange(width), torch.arange(height)
    across = (columns >= x_min.floor()) & (columns <= x_max.ceil())  # [N, W]
    down = (rows >= y_min.floor()) & (rows <= y_max.ceil())  # [N, H]
    return down[:, :, None] & across[:, None, :]
