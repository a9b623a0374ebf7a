"""Panels side by side, drawn fast: for a thousand files and for the frames of a video."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from .colours import heatmap
from .sheet import CELL, GAP, INK, PAGE, number

EDGE_GREY = (196, 196, 196)
LETTER, LINE, BORDER = 17, 26, 16  # dots
BAR_SIZE = (96, 12)


def card(
    panels: Sequence[NDArray[np.uint8]],
    titles: Sequence[str],
    *,
    scale: float | None = None,
    palette: str = "red-blue",
    side: int = CELL,
    note: str = "",
) -> Image.Image:
    """RGB panels [H, W, 3] side by side, a line of words above each, and the colour scale below if one is given.

    The longer side of every panel covers about `side` dots, a whole number of them for each pixel where there is room.
    A note stands in the lower right corner, beside the scale.
    """
    if not panels or len(panels) != len(titles):
        raise ValueError(f"{len(panels)} panels and {len(titles)} titles were given: give one title for each panel")
    pictures = [enlarged(panel, side) for panel in panels]
    width = max(max(picture.width for picture in pictures), 120)
    height = max(picture.height for picture in pictures)
    foot = LINE if scale is not None or note else 0
    size = 2 * BORDER + len(pictures) * (width + GAP) - GAP, 2 * BORDER + LINE + height + foot
    page = Image.new("RGB", (size[0] + size[0] % 2, size[1] + size[1] % 2), PAGE)  # even, as video codecs want
    pen = ImageDraw.Draw(page)
    for index, (picture, title) in enumerate(zip(pictures, titles, strict=True)):
        left, top = BORDER + index * (width + GAP) + (width - picture.width) // 2, BORDER + LINE
        page.paste(picture, (left, top))
        pen.rectangle((left - 1, top - 1, left + picture.width, top + picture.height), outline=EDGE_GREY)
        pen.text((left, BORDER - 2), fitted(title, width), fill=INK, font=font())
    used = BORDER
    if scale is not None:
        used = _scale_bar(page, pen, scale, palette, height)
    if note:
        words = fitted(note, size[0] - used - BORDER - GAP)
        left = size[0] - BORDER - round(font().getlength(words))
        pen.text((left, BORDER + LINE + height + 5), words, fill=INK, font=font())
    return page


def enlarged(panel: NDArray[np.uint8], side: int = CELL) -> Image.Image:
    """Every pixel a square of the same whole number of dots; a panel larger than `side` is averaged down."""
    picture, longest = Image.fromarray(panel), max(panel.shape[:2])
    if longest > 2 * side:
        size = max(1, round(picture.width * side / longest)), max(1, round(picture.height * side / longest))
        return picture.resize(size, Image.Resampling.BOX)
    factor = max(1, round(side / longest))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)


def fitted(words: str, dots: int) -> str:
    """On one line, cut to the width there is."""
    words = " ".join(words.split())
    if font().getlength(words) <= dots:
        return words
    while words and font().getlength(words + "…") > dots:
        words = words[:-1]
    return words.rstrip() + "…"


@lru_cache(maxsize=1)
def font() -> ImageFont.FreeTypeFont:
    """The one matplotlib brings, so that cards and figures look alike."""
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", LETTER)


def _scale_bar(page: Image.Image, pen: ImageDraw.ImageDraw, scale: float, palette: str, height: int) -> int:
    """Draws the scale and returns where it ends."""
    top = BORDER + LINE + height + 10
    low, high = f"−{number(scale)}", f"+{number(scale)}"
    pen.text((BORDER, top - 5), low, fill=INK, font=font())
    left = BORDER + round(font().getlength(low)) + 8
    shades = heatmap(np.linspace(-1, 1, BAR_SIZE[0])[None].repeat(BAR_SIZE[1], 0), 1.0, palette)[0]
    page.paste(Image.fromarray(shades), (left, top))
    pen.rectangle((left - 1, top - 1, left + BAR_SIZE[0], top + BAR_SIZE[1]), outline=EDGE_GREY)
    words = f"{high} logit"
    pen.text((left + BAR_SIZE[0] + 8, top - 5), words, fill=INK, font=font())
    return left + BAR_SIZE[0] + 8 + round(font().getlength(words))
