"""Contributions as pictures: red speaks for the class, blue against it, on one linear scale (supplement A)."""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .explanation import Explanation
from .names import nearest

PERCENTILE = 99.75  # of the absolute values, so that a single peak does not pale the rest

# From most negative to most positive: ColorBrewer's RdBu and PuOr with white for zero. PuOr sets orange against purple,
# which do not turn into each other for those who confuse red and green.
PALETTES = {
    "red-blue": "#2166ac #4393c3 #92c5de #d1e5f0 #ffffff #fddbc7 #f4a582 #d6604d #b2182b",
    "orange-purple": "#542788 #8073ac #b2abd2 #d8daeb #ffffff #fee0b6 #fdb863 #e08214 #b35806",
}
SHADES = 511  # odd, so that zero is white itself

FORMATS = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
DATES = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}  # none, so that equal pictures are equal files

# Lengths are in dots, so that every pixel of an image covers the same whole number of them.
DOTS_PER_INCH = 200
CELL, LARGEST_CELL = 240, 480
MARGIN, GAP, TITLE, LABEL, BLOCK_GAP = 24, 14, 30, 28, 34
BAR_GAP, BAR, BAR_TEXT = 30, 16, 100
MOST_DOTS = 1 << 16  # what matplotlib draws in either direction
TITLE_POINTS, LABEL_POINTS = 7.5, 6.5
LETTERS = 18  # that fit above a cell
INK, EDGE = "#1a1a1a", "#c4c4c4"


def colour_scale(values: Tensor | ArrayLike) -> float:
    """v of the scale (-v, v): the 99.75th percentile of the absolute values of everything shown; never 0."""
    magnitudes = np.abs(_array(values))
    return float(np.percentile(magnitudes, PERCENTILE)) or float(magnitudes.max()) or 1.0


def heatmap(values: Tensor | ArrayLike, scale: float | None = None, palette: str = "red-blue") -> NDArray[np.uint8]:
    """Maps [H, W] or [N, H, W] as RGB [N, H, W, 3]: positive red, negative blue, zero white.

    The colours are linear over (-scale, scale). Without a scale all maps share that of `colour_scale`.
    """
    colours, array = _colours(palette), _array(values)
    if array.ndim not in (2, 3):
        raise ValueError(f"values have shape {list(array.shape)}: give one map [H, W] or several [N, H, W]")
    if scale is None:
        scale = colour_scale(array)
    elif not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale!r}: it must be a positive number, in units of the values")
    maps = array.reshape(-1, *array.shape[-2:])
    picture: NDArray[np.uint8] = colours((np.clip(maps / scale, -1, 1) + 1) / 2, bytes=True)[..., :3]
    return picture


def contribution_maps(
    explanation: Explanation, columns: int = 8, palette: str = "red-blue", titles: Sequence[str] | None = None
) -> Figure:
    """Every image with its contribution map under it, or one map per target; all maps on one scale.

    Above an image stands its predicted class with its probability, or its own of `titles`. A map is labelled with its
    class where that is not the predicted one.
    """
    if columns < 1:
        raise ValueError(f"columns is {columns}: put at least one image in a row")
    number = len(explanation)
    if titles is not None and len(titles) != number:
        raise ValueError(f"{len(titles)} titles were given for {number} images: give one for each")
    targets = explanation.targets.detach().cpu().view(number, -1)  # [N, K]
    predicted = explanation.logits.detach().cpu().argmax(1)  # [N]
    if titles is None:
        titles = [_named(explanation, image, int(top)) for image, top in enumerate(predicted)]
    labelled = targets.shape[1] > 1 or bool((targets[:, 0] != predicted).any())

    contributions = _array(explanation.pixels)  # [N, (K,) H, W]
    scale = colour_scale(contributions)
    height, width = contributions.shape[-2:]
    maps = heatmap(contributions.reshape(-1, height, width), scale, palette).reshape(*targets.shape, height, width, 3)
    pictures = _pictures(explanation.images)

    lines = max(title.count("\n") + 1 for title in titles)
    sheet = _Sheet.of(number, columns, targets.shape[1], (height, width), labelled, lines)
    figure = sheet.figure()
    for image in range(number):
        left, top = sheet.corner(image)
        axes = sheet.axes(figure, left, top + sheet.title, sheet.cell)
        sheet.draw(axes, pictures[image])
        _write(axes, titles[image], TITLE_POINTS)
        for row, target in enumerate(targets[image].tolist()):
            axes = sheet.axes(figure, left, top + sheet.map_top(row), sheet.cell)
            sheet.draw(axes, maps[image, row])
            if labelled:
                _write(axes, _named(explanation, image, target, "for "), LABEL_POINTS)
    clipped = bool(np.abs(contributions).max() > scale)
    _colour_bar(figure, sheet, scale, palette, clipped)
    return figure


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a PNG, SVG or PDF, by the suffix; all of it or nothing."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file, such as {path / 'why.png'}")
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise ValueError(f"{path} ends in {path.suffix!r}: a picture is saved as one of {', '.join(FORMATS)}")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                figure.savefig(file, format=kind, dpi=DOTS_PER_INCH, metadata=DATES[kind])
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror or error}): choose another place") from None
    return path


@dataclass(frozen=True)
class _Sheet:
    """Where everything stands, in dots from the upper left corner."""

    columns: int
    blocks: int  # rows of images, each with its maps
    targets: int
    cell: tuple[int, int]  # width and height of an image
    title: int
    label: int
    shrunk: bool

    @classmethod
    def of(
        cls, number: int, columns: int, targets: int, size: tuple[int, int], labelled: bool, title_lines: int
    ) -> "_Sheet":
        height, width = size
        longest = max(height, width)
        factor = max(1, round(CELL / longest)) if longest <= LARGEST_CELL else LARGEST_CELL / longest
        columns = min(columns, number)
        sheet = cls(
            columns=columns,
            blocks=-(-number // columns),
            targets=targets,
            cell=(max(1, round(width * factor)), max(1, round(height * factor))),
            title=TITLE * title_lines,
            label=LABEL if labelled else GAP,
            shrunk=factor < 1,
        )
        if max(sheet.size) >= MOST_DOTS:
            raise ValueError(
                f"{number} images with {targets} maps each make a picture of {sheet.size[0]} x {sheet.size[1]} dots, "
                f"more than the {MOST_DOTS} that can be drawn: show fewer at a time"
            )
        return sheet

    @property
    def size(self) -> tuple[int, int]:
        width = 2 * MARGIN + self.columns * self.pitch - GAP + BAR_GAP + BAR + BAR_TEXT
        height = self.blocks * self.block_height + (self.blocks - 1) * BLOCK_GAP
        return width, 2 * MARGIN + max(height, CELL)  # flat images, too, leave room for the colour bar

    @property
    def pitch(self) -> int:
        """From an image to the next: as wide as a title, whatever the image."""
        return max(self.cell[0], CELL) + GAP

    @property
    def block_height(self) -> int:
        return self.map_top(self.targets - 1) + self.cell[1]

    def map_top(self, row: int) -> int:
        return self.title + (row + 1) * (self.cell[1] + self.label)

    def corner(self, image: int) -> tuple[int, int]:
        row, column = divmod(image, self.columns)
        inset = (self.pitch - GAP - self.cell[0]) // 2
        return MARGIN + column * self.pitch + inset, MARGIN + row * (self.block_height + BLOCK_GAP)

    def figure(self) -> Figure:
        width, height = self.size
        return Figure((width / DOTS_PER_INCH, height / DOTS_PER_INCH), dpi=DOTS_PER_INCH, facecolor="white")

    def axes(self, figure: Figure, left: int, top: int, size: tuple[int, int]) -> Axes:
        width, height = self.size
        return figure.add_axes(
            (left / width, 1 - (top + size[1]) / height, size[0] / width, size[1] / height), facecolor="white"
        )

    def draw(self, axes: Axes, picture: NDArray[np.uint8]) -> None:
        # Each pixel is a sharp square; only an image larger than its cell is averaged.
        axes.imshow(picture, interpolation="hanning" if self.shrunk else "nearest", aspect="auto", origin="upper")
        axes.set(xticks=[], yticks=[])
        axes.grid(False)
        for spine in axes.spines.values():
            spine.set(visible=True, linewidth=0.4, color=EDGE)


def _colour_bar(figure: Figure, sheet: _Sheet, scale: float, palette: str, clipped: bool) -> None:
    """Beside the first map: what the colours mean, in logits; pointed where values go beyond."""
    left = MARGIN + sheet.columns * sheet.pitch - GAP + BAR_GAP
    length = max(sheet.cell[1], CELL)
    top = max(MARGIN, MARGIN + sheet.map_top(0) + sheet.cell[1] - length)
    axes = sheet.axes(figure, left, top, (BAR, length))
    end = f"{scale:.2g}" if scale < 100 else f"{scale:.0f}"
    colours = ScalarMappable(Normalize(-scale, scale), _colours(palette))
    bar = figure.colorbar(colours, cax=axes, ticks=[-scale, 0, scale], extend="both" if clipped else "neither")
    bar.set_ticklabels([f"−{end}", "0", f"+{end}"], color=INK, fontsize=LABEL_POINTS)
    bar.set_label("contribution (logit)", color=INK, fontsize=LABEL_POINTS, labelpad=2)
    bar.outline.set(linewidth=0.4, edgecolor=EDGE)
    axes.grid(False)
    axes.tick_params(length=2, width=0.4, color=INK, pad=2, right=True, labelright=True, left=False, labelleft=False)


def _write(axes: Axes, words: str, points: float) -> None:
    """Above the axes, taken letter by letter: a dollar sign in a class name is a dollar sign."""
    text = axes.set_title(words, fontsize=points, color=INK, pad=3.2, loc="center", fontweight="normal", y=1.0)
    text.set(parse_math=False, usetex=False)


def _named(explanation: Explanation, image: int, target: int, before: str = "") -> str:
    """'cat p=0.97', on two lines if the name is long."""
    name = before + " ".join(explanation.class_name(target).split())
    probability = f"p={explanation.probabilities[image, target].item():.2f}"
    if before or len(name) + len(probability) < LETTERS:
        room = LETTERS + 4 - len(probability) if before else LETTERS
        return f"{_shortened(name, room)} {probability}"
    return f"{_shortened(name, LETTERS)}\n{probability}"


def _shortened(name: str, letters: int) -> str:
    return name if len(name) <= letters else f"{name[: letters - 1].rstrip()}…"


def _pictures(images: Tensor) -> NDArray[np.uint8]:
    """[N, C, H, W] in [0, 1] as RGB [N, H, W, 3]; anything but three channels is shown in grey."""
    array = _array(images)
    if array.shape[1] != 3:
        array = array.mean(1, keepdims=True).repeat(3, axis=1)
    return np.rint(np.clip(array, 0, 1) * 255).astype(np.uint8).transpose(0, 2, 3, 1)


def _array(values: Tensor | ArrayLike) -> NDArray[np.float64]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"values of shape {list(array.shape)} cannot be drawn: give at least one, all of them finite")
    return array


def _colours(palette: str) -> Colormap:
    if palette not in PALETTES:
        raise ValueError(f"unknown palette {palette!r}{nearest(palette, PALETTES)}")
    return LinearSegmentedColormap.from_list(palette, PALETTES[palette].split(), N=SHADES)
