"""Rows of pictures with words beside and above them."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from codanet.plot import heatmap, pictures

Picture = NDArray[np.uint8]  # RGB [H, W, 3]

INK, EDGE, QUIET = "#1a1a1a", "#c4c4c4", "#707070"
RED, BLUE, GREY = "#b2182b", "#2166ac", "#8a8a8a"  # the ends of the maps' palette


def grey(images: Tensor) -> list[Picture]:
    """Images [N, H, W] or [N, C, H, W] in [0, 1] as pictures."""
    return list(pictures(images[:, None] if images.ndim == 3 else images))


def signed(maps: Tensor, scale: float | None = None) -> list[Picture]:
    """Maps [N, H, W] in red and blue, each on its own scale if none is given."""
    if scale is not None:
        return list(heatmap(maps, scale))
    return [heatmap(one)[0] for one in maps]


def show(axes: Axes, picture: Picture, title: str = "", size: float = 8) -> None:
    axes.imshow(picture, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=size, color=INK, pad=3, parse_math=False)
    for spine in axes.spines.values():
        spine.set(linewidth=0.5, color=EDGE)


def table(
    rows: Sequence[Sequence[Picture | None]],
    titles: Sequence[Sequence[str]] | Sequence[str],
    names: Sequence[str],
    cell: float = 1.15,
    left: float = 1.4,
    figure: Figure | None = None,
) -> Figure:
    """Pictures in rows, each row with a name at its left; titles above the first row, or above every picture."""
    columns = max(len(row) for row in rows)
    every = [titles] if isinstance(titles[0], str) else titles
    if figure is None:
        height = len(rows) * (cell + (0.2 if len(every) > 1 else 0.04)) + 0.55
        figure = Figure((columns * cell + left, height), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for number, row in enumerate(rows):
        for column in range(columns):
            axes = grid[number, column]
            picture = row[column] if column < len(row) else None
            if picture is None:
                axes.axis("off")
                continue
            words = every[number][column] if number < len(every) else ""
            show(axes, picture, str(words))
        grid[number, 0].set_ylabel(names[number], rotation=0, ha="right", va="center", fontsize=8, labelpad=8)
    return figure


def side_by_side(figure: Figure, left: float, right: float) -> Sequence[Any]:
    """Two parts of a figure, so wide."""
    return cast(Sequence[Any], figure.subfigures(1, 2, width_ratios=[left, right]))


def plain(axes: Axes, title: str, x: str, y: str) -> Axes:
    """A chart without a frame."""
    axes.set_title(title, fontsize=9, color=INK, loc="left")
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=7, color=EDGE)
    for side, spine in axes.spines.items():
        spine.set(visible=side in ("left", "bottom"), color=EDGE)
    axes.grid(axis="y", color="#ececec", linewidth=0.6)
    axes.set_axisbelow(True)
    return axes
