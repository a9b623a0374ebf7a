"""Four sure decisions as one image, and for each of its classes the network's map beside those of other methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor, nn

from .._support.html import picture_uri, text
from ..attribution import MethodSpec, attribute, has_sign, method_title
from ..data.tiling import tiled_square
from ..metrics.localisation import cell_shares
from ..models.classifier import like
from ..models.network import CoDANet
from ..plot import method_colours, pictures
from . import sections
from .findings import Case, Findings

TITLE = "Beside other methods"
SIDE, OTHERS = 2, 2  # images along a side, methods beside the network's own
QUARTERS = ("upper left", "upper right", "lower left", "lower right")
DOTS = 256  # along a panel's longer side
INK, PAPER = (26, 26, 26), (255, 255, 255)
ABOUT = (
    "Four of the right decisions the network was surest of, put together as one image, and a row for each of the four "
    "classes. The frame is around the quarter that shows the class: the red of a good map lies in it. Every map is on "
    "a scale of its own. Under it stands the share of its positive attribution that lies in the frame (localisation, "
    "eq. 11); evenly spread it is 25%. This is one example of the easiest images, no measurement."
)
RISE = " RISE, which has no sign, is in colours from the least important pixel, blue, to the most, red."


def strongest(rows: Sequence[Mapping[str, Any]], label: str) -> dict[str, float]:
    """Of an evaluation, the post-hoc methods with the highest mean localisation on a model, the best first."""
    means = {}
    for row in rows:
        name, mean = str(row.get("method")), row.get("mean")
        known = MethodSpec.find(name)  # a user's own function cannot be called again from its name
        wanted = row.get("metric") == "localisation" and row.get("model") == label
        if wanted and known and known.method.post_hoc and isinstance(mean, float) and math.isfinite(mean):
            means[name] = mean
    return dict(sorted(means.items(), key=lambda each: -each[1])[:OTHERS])


def usual(size: Sequence[int]) -> list[str]:
    """Where nothing was measured; the stride grows with the image: 2 for four of CIFAR-10, 4 for Tiny-ImageNet."""
    stride = min(9, max(size) // 32)
    return ["gradcam", "occlusion9" if stride <= 2 else f"occlusion9:stride={stride}"]


def beside(
    model: nn.Module, findings: Findings | None, measured: Mapping[str, float], whose: str = "", *, quiet: bool = True
) -> str:
    """The section; nothing without a CoDA-Net that was right about four classes. `measured` is from `strongest`."""
    cases = four(findings)
    if findings is None or not cases or not isinstance(model, CoDANet):
        return ""
    image = tiled_square([case.image for case in cases])[None]  # [1, C, 2H, 2W]
    methods = list(measured) or usual(image.shape[2:])
    maps, failed = _maps(model, image, [case.said for case in cases], methods, quiet)
    left_out = "".join(f"<p class='missing'>{text(words)}</p>" for words in failed)
    if len(maps) < 2:  # nothing to compare
        return sections.section(TITLE + whose, left_out)
    about = ABOUT + (RISE if not all(map(has_sign, maps)) else "")
    return sections.section(TITLE + whose, _rows(findings, cases, image, maps) + left_out, about + _chosen(measured))


def four(findings: Findings | None) -> list[Case]:
    """The surest right decisions of four classes, or none."""
    right = findings.right if findings else ()
    chosen: dict[int, Case] = {}
    for case in right:
        if case.image.shape == right[0].image.shape:
            chosen.setdefault(case.said, case)
    return list(chosen.values())[: SIDE * SIDE] if len(chosen) >= SIDE * SIDE else []


def shares(maps: Tensor) -> list[str]:
    """Of maps [4, 2H, 2W], the share of the positive attribution in the class's own quarter; 0% where there is none."""
    values = cell_shares(maps[None], SIDE).values.tolist()
    return ["none" if math.isnan(value) else f"{value:.0%}" for value in values]


def _maps(
    model: CoDANet, image: Tensor, classes: list[int], methods: Sequence[str], quiet: bool
) -> tuple[dict[str, Tensor], list[str]]:
    """[4, 2H, 2W] of each method that works, and a sentence on each that does not."""
    maps, failed = {}, []
    for name in ("contributions", *methods):
        try:
            settings = MethodSpec.parse(name).settings
            attributions = attribute(model, like(model, image), torch.tensor([classes]), settings, progress=not quiet)
        except (ValueError, RuntimeError) as error:  # out of memory among them
            failed.append(f"{method_title(name)} is left out: {error}.")
            if name == "contributions":
                return {}, failed
        else:
            maps[name] = attributions[0].float().cpu()
    return maps, failed


def _chosen(measured: Mapping[str, float]) -> str:
    if not measured:
        return " No other method's localisation was measured here: two well-known ones are shown."
    means = ", ".join(f"{text(method_title(name))} {mean:.3f}" for name, mean in measured.items())
    return f" The other methods are those with the highest mean localisation measured on this model: {means}."


def _rows(findings: Findings, cases: Sequence[Case], image: Tensor, maps: Mapping[str, Tensor]) -> str:
    whole = pictures(image)[0]
    written = {name: shares(values) for name, values in maps.items()}
    rows = []
    for place, case in enumerate(cases):
        panels = [("", framed(whole, place))]
        for name, values in maps.items():
            title = "contributions" if name == "contributions" else method_title(name)
            panels.append((f"{title} {written[name][place]}", framed(method_colours(name, values[place])[0], place)))
        words = f"<b>{text(findings.classes[case.said])}</b> <small>{QUARTERS[place]}, image {case.index}</small>"
        rows.append(sections.side_by_side(panels, words))
    return f"<div class='cases beside'>{''.join(rows)}</div>"


def framed(picture: NDArray[np.uint8], place: int) -> str:
    """RGB [2H, 2W, 3] with a frame around one quarter; the pixels stay squares where they are enlarged."""
    height, width = picture.shape[:2]
    factor = DOTS / max(height, width)
    factor = int(factor) if factor >= 1 else factor
    size = max(SIDE, round(width * factor)), max(SIDE, round(height * factor))
    drawn = Image.fromarray(picture).resize(size, Image.Resampling.BOX)
    row, column = divmod(place, SIDE)
    left, top, right, bottom = (
        size[0] * column // SIDE,
        size[1] * row // SIDE,
        size[0] * (column + 1) // SIDE - 1,
        size[1] * (row + 1) // SIDE - 1,
    )
    pen = ImageDraw.Draw(drawn)
    pen.rectangle((left, top, right, bottom), outline=INK, width=2)
    if min(right - left, bottom - top) > 8:  # seen on dark images, too
        pen.rectangle((left + 2, top + 2, right - 2, bottom - 2), outline=PAPER)
    return picture_uri(drawn)
