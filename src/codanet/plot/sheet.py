"""A page of panels, laid out in dots, so that every pixel of an image covers the same whole number of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from .._support.files import expanded, replacing
from .._support.messages import encodable
from .colours import diverging

FORMATS = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
DATES: dict[str, dict[str, Any]] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}  # none, so that equal pictures are equal files

DOTS_PER_INCH = 200
CELL, LARGEST_CELL = 240, 480
MARGIN, GAP, TITLE, LABEL, BLOCK_GAP = 24, 14, 30, 28, 34
BAR_GAP, BAR, BAR_TEXT = 30, 16, 100
FOOT = 36
MOST_DOTS = 1 << 16  # what matplotlib draws in either direction
TITLE_POINTS, LABEL_POINTS = 7.5, 6.5
LETTERS = 18  # that fit above a cell
INK, EDGE = "#1a1a1a", "#c4c4c4"
PAGE = "white"  # as zero is: the same on a dark and on a light screen


@dataclass(frozen=True)
class Sheet:
    """Where everything stands, in dots from the upper left corner."""

    columns: int
    heads: tuple[int, ...]  # room for words above each row of panels
    cell: tuple[int, int]  # width and height of a panel
    bar: bool = True
    foot: int = 0

    @classmethod
    def of(
        cls,
        columns: int,
        heads: Sequence[int],
        size: tuple[int, int],
        *,
        bar: bool = True,
        foot: int = 0,
        largest: int = LARGEST_CELL,
    ) -> "Sheet":
        """For panels of `size` = (H, W) pixels, their longer side at most `largest` dots."""
        height, width = size
        longest = max(height, width)
        factor = max(1, int(CELL / longest + 0.5)) if longest <= largest else largest / longest
        cell = max(1, round(width * factor)), max(1, round(height * factor))
        sheet = cls(columns, tuple(heads), cell, bar, foot)
        if max(sheet.size) >= MOST_DOTS:
            raise ValueError(
                f"{len(sheet.heads)} rows of {columns} panels make a picture of {sheet.size[0]} x {sheet.size[1]} "
                f"dots, more than the {MOST_DOTS} that can be drawn: show fewer at a time"
            )
        return sheet

    @property
    def size(self) -> tuple[int, int]:
        width = 2 * MARGIN + self.columns * self.pitch - GAP + (BAR_GAP + BAR + BAR_TEXT if self.bar else 0)
        height = sum(self.heads) + len(self.heads) * self.cell[1]
        return width, 2 * MARGIN + max(height, CELL if self.bar else 0) + self.foot

    @property
    def pitch(self) -> int:
        """From a panel to the next: as wide as a title, whatever the image."""
        return max(self.cell[0], CELL) + GAP

    def top(self, row: int) -> int:
        return MARGIN + sum(self.heads[: row + 1]) + row * self.cell[1]

    def left(self, column: int) -> int:
        return MARGIN + column * self.pitch + (self.pitch - GAP - self.cell[0]) // 2

    def figure(self) -> Figure:
        width, height = self.size
        return Figure((width / DOTS_PER_INCH, height / DOTS_PER_INCH), dpi=DOTS_PER_INCH, facecolor=PAGE)

    def axes(self, figure: Figure, left: int, top: int, size: tuple[int, int]) -> Axes:
        width, height = self.size
        return figure.add_axes(
            (left / width, 1 - (top + size[1]) / height, size[0] / width, size[1] / height), facecolor=PAGE
        )

    def panel(
        self,
        figure: Figure,
        place: tuple[int, int],
        picture: NDArray[np.uint8],
        title: str = "",
        points: float = TITLE_POINTS,
    ) -> Axes:
        """A picture at (row, column), with words above it."""
        row, column = place
        axes = self.axes(figure, self.left(column), self.top(row), self.cell)
        show(axes, picture, shrunk=picture.shape[0] > self.cell[1] or picture.shape[1] > self.cell[0])
        if title:
            write(axes, title, points)
        return axes

    def colour_bar(self, figure: Figure, row: int, scale: float, palette: str, clipped: bool) -> None:
        """Beside a row of maps: what the colours mean, in logits; pointed where values go beyond."""
        left = MARGIN + self.columns * self.pitch - GAP + BAR_GAP
        length = max(self.cell[1], CELL)
        top = max(MARGIN, self.top(row) + self.cell[1] - length)
        axes = self.axes(figure, left, top, (BAR, length))
        end = number(scale)
        colours = ScalarMappable(Normalize(-scale, scale), diverging(palette))
        bar = figure.colorbar(colours, cax=axes, ticks=[-scale, 0, scale], extend="both" if clipped else "neither")
        bar.set_ticklabels([f"−{end}", "0", f"+{end}"], color=INK, fontsize=LABEL_POINTS)
        bar.set_label("contribution (logit)", color=INK, fontsize=LABEL_POINTS, labelpad=2)
        bar.outline.set(linewidth=0.4, edgecolor=EDGE)
        axes.grid(False)
        axes.tick_params(
            length=2, width=0.4, color=INK, pad=2, right=True, labelright=True, left=False, labelleft=False
        )

    def footer(self, figure: Figure, words: str) -> None:
        width, height = self.size
        text = figure.text(
            MARGIN / width, MARGIN / height, words, fontsize=LABEL_POINTS, color=INK, va="bottom", ha="left"
        )
        text.set(parse_math=False, usetex=False)


def show(axes: Axes, picture: NDArray[np.uint8], *, shrunk: bool = False) -> None:
    # Each pixel is a sharp square; only an image larger than its cell is averaged.
    axes.imshow(picture, interpolation="hanning" if shrunk else "nearest", aspect="auto", origin="upper")
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=0.4, color=EDGE)


def write(axes: Axes, words: str, points: float = TITLE_POINTS) -> None:
    """Above the axes, taken letter by letter: a dollar sign in a class name is a dollar sign."""
    text = axes.set_title(
        encodable(words), fontsize=points, color=INK, pad=3.2, loc="center", fontweight="normal", y=1.0
    )
    text.set(parse_math=False, usetex=False)


def number(value: float) -> str:
    """Two digits that count: 0.031, 4.2, 120."""
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"  # two digits of 99.5 are 1e+02


def shortened(name: str, letters: int = LETTERS) -> str:
    return name if len(name) <= letters else f"{name[: letters - 1].rstrip()}…"


def png(figure: Figure) -> bytes:
    """The bytes of a PNG file."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()


def save(picture: Figure | Image.Image, path: str | os.PathLike[str]) -> Path:
    """Write a picture; all of it or nothing.

    Args:
        picture: A figure, or a card made of dots.
        path: .png, .svg or .pdf; of a card .png.

    Returns:
        The path.

    Raises:
        ValueError: If the suffix is another, or the place cannot be written to.

    Examples:
        >>> save(contribution_maps(why), "why.svg")  # doctest: +SKIP
    """
    path = expanded(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file, such as {path / 'why.png'}")
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise ValueError(f"{path} ends in {path.suffix!r}: a picture is saved as one of {', '.join(FORMATS)}")
    if isinstance(picture, Image.Image) and kind != "png":
        raise ValueError(f"{path} ends in {path.suffix!r}: a card is made of dots, so it is saved as .png")
    try:
        with replacing(path) as part, part.open("wb") as file:
            if isinstance(picture, Image.Image):
                picture.save(file, "PNG", compress_level=1)  # ten percent larger, in half the time
            else:
                _write_figure(picture, file, kind)
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror or error}): choose another place") from None
    return path


def _write_figure(figure: Figure, file: BinaryIO, kind: str) -> None:
    # SVG keeps the very pixels and says that they are squares; the other formats get as many dots as they need.
    sharp = [image for axes in figure.axes for image in axes.images if image.get_interpolation() == "nearest"]
    try:
        for image in sharp:
            image.set_interpolation("none" if kind == "svg" else "nearest")
        with rc_context({"svg.hashsalt": "codanet"}):  # else the names inside an SVG are drawn anew each time
            figure.savefig(file, format=kind, dpi=DOTS_PER_INCH, metadata=DATES[kind])
    finally:
        for image in sharp:
            image.set_interpolation("nearest")
