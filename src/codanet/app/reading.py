"""One picture read by one model: what every class got from every pixel, and what can be asked of that."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._support.messages import encodable
from .._support.version import __version__
from ..metrics.share import box_masks, positive_share
from ..models.explanation import Explanation
from ..models.facts import facts, named_classes
from ..models.network import CoDANet

CLASSES_AT_ONCE = 16  # so that a hundred classes of a large picture do not need a hundred times its memory

Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels of the model; right and bottom are not in it


@dataclass(frozen=True)
class Parts:
    """A logit, or the difference of two, as a sum: inside + outside + bias."""

    inside: float
    outside: float
    bias: float
    logit: float

    @property
    def error(self) -> float:
        """What rounding leaves of inside + outside + bias - logit."""
        return abs(self.inside + self.outside + self.bias - self.logit)


class Maps:
    """What every pixel adds to a class, [H, W]: of many classes each is computed when it is first asked for."""

    def __init__(self, model: CoDANet, image: Tensor) -> None:
        self.model, self.image = model, image
        self.known: dict[int, Tensor] = {}

    def explain(self, targets: Tensor | None = None) -> Explanation:
        """For several classes [1, K], or the predicted one."""
        why = self.model.explain(self.image[None].to(self.model.device, self.model.dtype), target=targets)
        found = zip(why.targets.flatten().tolist(), why.pixels.flatten(0, -3).float().cpu(), strict=True)
        self.known |= {target: pixels.clone() for target, pixels in found}
        return why

    def prepare(self, targets: Sequence[int]) -> None:
        """Those that will be asked for, together."""
        missing = torch.tensor([target for target in targets if target not in self.known])
        for some in missing.split(CLASSES_AT_ONCE) if len(missing) else ():
            self.explain(some[None])

    def part(self, targets: Sequence[int]) -> Maps:
        """Of some classes, all of them there."""
        maps = Maps(self.model, self.image)
        maps.known = {target: self.known[target] for target in targets if target in self.known}
        maps.prepare(targets)
        return maps

    def __getitem__(self, target: int) -> Tensor:
        self.prepare([target])
        return self.known[target]

    def __deepcopy__(self, memo: object) -> Maps:
        return self  # Gradio copies what a session begins with, and need not copy the model


@dataclass(frozen=True)
class Reading:
    image: Tensor  # [C, H, W], as the model saw it
    logits: Tensor  # [K]
    pixels: Maps  # contributions to every class
    bias: float
    class_names: tuple[str, ...]
    exact_for: str = ""  # what the contributions are exact for, where that is not the pixels

    @property
    def probabilities(self) -> Tensor:
        """[K], each on its own: the classes are one-vs-all."""
        return self.logits.sigmoid()

    @property
    def size(self) -> tuple[int, int]:
        """(H, W)"""
        height, width = self.image.shape[1:]
        return int(height), int(width)

    def ranked(self, number: int | None = None) -> list[int]:
        """Classes, the most probable first."""
        return self.logits.argsort(descending=True, stable=True)[:number].tolist()

    def map(self, target: int, versus: int | None = None) -> Tensor:
        """[H, W]: contributions to a class, or to its logit less that of another."""
        return self.pixels[target] if versus is None else self.pixels[target] - self.pixels[versus]

    def parts(self, box: Box | None, target: int, versus: int | None = None) -> Parts:
        """How much of a logit comes from a box, and how much from the rest; all of it is inside where there is none."""
        values = self.map(target, versus).double()
        left, top, right, bottom = self.clip(box) if box else (0, 0, *reversed(self.size))
        inside = values[top:bottom, left:right].sum().item()
        logit = self.logits[target].item()
        if versus is None:
            return Parts(inside, values.sum().item() - inside, self.bias, logit)
        return Parts(inside, values.sum().item() - inside, 0.0, logit - self.logits[versus].item())

    def every(self, box: Box | None) -> Iterator[tuple[int, Parts]]:
        """Classes with their parts, the most probable first; maps that are not shown are not kept."""
        order = self.ranked()
        for start in range(0, len(order), CLASSES_AT_ONCE):
            some = order[start : start + CLASSES_AT_ONCE]
            few = replace(self, pixels=self.pixels.part(some))
            yield from [(c, few.parts(box, c)) for c in some]

    def clip(self, box: Sequence[float]) -> Box:
        """The box as whole pixels of this picture, at least one."""
        height, width = self.size
        if len(box) != 4 or not all(isinstance(side, (int, float)) and math.isfinite(side) for side in box):
            raise ValueError(f"the box is {list(box)[:4]!r}: give left, top, right and bottom in pixels")
        left, right = sorted(min(max(int(side), 0), width) for side in (box[0], box[2]))
        top, bottom = sorted(min(max(int(side), 0), height) for side in (box[1], box[3]))
        left, top = min(left, width - 1), min(top, height - 1)
        return left, top, max(right, left + 1), max(bottom, top + 1)

    def numbers(self, model: CoDANet, box: Box | None, target: int, versus: int | None = None) -> dict[str, Any]:
        """Everything the page says of the picture, for JSON."""
        shown = self.parts(box, target, versus)
        return {
            "codanet": __version__,
            "model": model.name,
            "provenance": facts(model),
            "temperature": model.temperature,
            "bias": self.bias,
            **({"exact_for": self.exact_for} if self.exact_for else {}),
            "image_size": list(self.size),
            "box": list(box) if box else None,
            "classes": [
                {
                    "class": self.class_names[c],
                    "logit": self.logits[c].item(),
                    "probability": self.probabilities[c].item(),
                    "inside": parts.inside,
                    "outside": parts.outside,
                }
                for c, parts in self.every(box)
            ],
            "shown": {
                "class": self.class_names[target],
                "rather_than": None if versus is None else self.class_names[versus],
                "logit": shown.logit,
                "inside": shown.inside,
                "outside": shown.outside,
                "bias": shown.bias,
                "contributions": [[round(value, 9) for value in row] for row in self.map(target, versus).tolist()],
            },
        }

    def table(self, box: Box | None) -> str:
        """Every class with its logit and the parts of it, as CSV."""
        stream = io.StringIO()
        lines = csv.writer(stream, lineterminator="\n")
        places = ("inside box", "outside box") if box else ("all pixels",)
        lines.writerow(("class", "probability", "logit", *places, "bias"))
        for c, parts in self.every(box):
            sums = (parts.inside, parts.outside) if box else (parts.inside,)
            numbers = (self.probabilities[c].item(), parts.logit, *sums, parts.bias)
            lines.writerow((plain(self.class_names[c]), *(f"{number:.6g}" for number in numbers)))
        return stream.getvalue()


def plain(name: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{name}" if name[:1] in "=+-@\t\r" and name else name


def read(model: CoDANet, image: Tensor) -> Reading:
    """What `model` makes of an image [C, H, W] in [0, 1]."""
    maps, few = Maps(model, image.cpu()), model.num_classes <= CLASSES_AT_ONCE
    why = maps.explain(torch.arange(model.num_classes)[None] if few else None)  # else: as they are asked for
    return Reading(
        image=maps.image,
        logits=why.logits[0].float().cpu(),
        pixels=maps,
        bias=model.logit_bias,
        class_names=tuple(map(encodable, named_classes(model))),
        exact_for=why.exact_for,
    )


def cell(reading: Reading, n: int, index: int) -> Box:
    """Where picture `index` of an n x n multi-image lies."""
    height, width = reading.size[0] // n, reading.size[1] // n
    row, column = divmod(index, n)
    return column * width, row * height, (column + 1) * width, (row + 1) * height


def share(reading: Reading, target: int, box: Box) -> float:
    """Of the positive contributions to a class, the part inside the box (eq. 11); 0 where there are none."""
    left, top, right, bottom = box
    inside = box_masks(torch.tensor([[left, top, right - 1, bottom - 1]]), *reading.size)
    return positive_share(reading.pixels[target], inside).item()
