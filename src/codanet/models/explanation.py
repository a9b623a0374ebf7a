"""What a CoDA-Net's decision is made of."""

import html
import operator
import os
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._support.drawing import drawing
from .._support.limits import shown
from .._support.messages import nearest

Target = None | int | str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]] | Tensor

NOTEBOOK_IMAGES, NOTEBOOK_TARGETS = 8, 10  # as many as a notebook shows


class Explained(Protocol):
    """What an explanation keeps of the model whose decision it explains."""

    logit_bias: float
    class_names: tuple[str, ...] | None


@dataclass(frozen=True)
class Explanation:
    """What a decision is made of: logits[n, targets] = Σ contributions + bias, exactly.

    K is there only if several targets per image were asked for. In a notebook it shows itself.

    Attributes:
        logits: Of all classes, [N, classes].
        targets: The classes that are explained, [N] or [N, K].
        rows: W(x) / T of the targets, [N, (K,) 2C, H, W].
        inputs: The encoded images [x, 1-x], [N, 2C, H, W].
        bias: b0, the part of a logit that no pixel adds.
        class_names: One for each class, or None.

    Examples:
        >>> import codanet, torch
        >>> why = codanet.load("cifar10").explain(torch.rand(2, 3, 32, 32))
        >>> bool((why.completeness_error() < 1e-4).all())
        True
    """

    logits: Tensor  # [N, classes]
    targets: Tensor  # [N] or [N, K]
    rows: Tensor  # W(x) / T of the targets, [N, (K,) 2C, H, W]
    inputs: Tensor  # the encoded images [N, 2C, H, W]
    bias: float
    class_names: tuple[str, ...] | None = None

    @property
    def contributions(self) -> Tensor:
        """W ⊙ x / T per encoded channel, [N, (K,) 2C, H, W] (eq. 8)."""
        inputs = self.inputs if self.targets.ndim == 1 else self.inputs.unsqueeze(1)
        return self.rows * inputs

    @property
    def pixels(self) -> Tensor:
        """Contributions per pixel, [N, (K,) H, W]: the map to look at."""
        return self.contributions.sum(-3)

    @property
    def shown(self) -> Tensor:
        """The map as a picture shows it, [N, (K,) H, W] like the images."""
        return self.pixels

    @property
    def exact_for(self) -> str:
        """What the contributions are exact for, where that is not the pixels."""
        return ""

    @property
    def target_logits(self) -> Tensor:
        """[N] or [N, K]."""
        picked = self.logits.gather(1, self.targets.view(len(self.targets), -1))
        return picked.view_as(self.targets).to(picked.dtype)

    @property
    def probabilities(self) -> Tensor:
        """Of every class on its own, [N, classes]: the classes are one-vs-all."""
        return self.logits.sigmoid()

    @property
    def images(self) -> Tensor:
        """What was explained, without the negative channels, [N, C, H, W]."""
        return self.inputs[:, : self.inputs.shape[1] // 2]

    def completeness_error(self) -> Tensor:
        """|Σ contributions - (logit - bias)| / Σ |contributions|, [N] or [N, K]: rounding, and nothing else."""
        return completeness_error(self.contributions.flatten(-3), self.target_logits.double() - self.bias)

    def class_name(self, target: int) -> str:
        return self.class_names[target] if self.class_names else str(target)

    def __len__(self) -> int:
        return len(self.logits)

    def to_numpy(self) -> dict[str, NDArray[np.generic]]:
        """Everything as NumPy arrays that share no memory with the tensors, by the names used here."""
        names = ("logits", "probabilities", "targets", "pixels", "contributions", "rows", "images")
        return {name: np.array(_plain(getattr(self, name)).numpy()) for name in names}

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        palette: str = "red-blue",
        style: str | None = None,
        scale: float | None = None,
    ) -> Path:
        """Write the picture as PNG, SVG or PDF, by the suffix of the path.

        style: "map", "overlay" (the map on the image) or "weights" (the row of W in the colours it asks for); by
        default the map, and of photographs the overlay.
        palette: "red-blue" or, for those who confuse red and green, "orange-purple". The colours are linear over
        (-scale, scale), in logits; without a scale it is taken from what is shown.
        """
        draw = drawing()
        return draw.save(draw.picture(self, palette=palette, style=style, scale=scale), path)

    @classmethod
    def of(
        cls, model: Explained, inputs: Tensor, logits: Tensor, targets: Tensor, rows: Tensor, several: bool
    ) -> "Explanation":
        """Of targets [N, K] and their rows [N, K, 2C, H, W]; without `several` there is one, and K is left out."""
        return cls(
            logits=logits,
            targets=targets if several else targets[:, 0],
            rows=rows if several else rows[:, 0],
            inputs=inputs,
            bias=model.logit_bias,
            class_names=model.class_names,
        )

    @classmethod
    def joined(cls, parts: "Sequence[Explanation]") -> "Explanation":
        """Explanations of one model as one, in their order."""
        return replace(
            parts[0],
            logits=torch.cat([part.logits for part in parts]),
            targets=torch.cat([part.targets for part in parts]),
            rows=torch.cat([part.rows for part in parts]),
            inputs=torch.cat([part.inputs for part in parts]),
        )

    def part(self, images: int | slice, targets: slice = slice(None)) -> "Explanation":
        """Of some images, or one, and of some of their targets where there are several."""
        images = self._slice(images)
        index = (images, targets) if self.targets.ndim == 2 else (images,)
        return replace(
            self,
            logits=self.logits[images],
            targets=self.targets[index],
            rows=self.rows[index],
            inputs=self.inputs[images],
        )

    def _slice(self, images: int | slice) -> slice:
        """One image, by its number as Python, NumPy or PyTorch has it, as a slice."""
        if isinstance(images, slice):
            return images
        number = operator.index(images)
        if not -len(self) <= number < len(self):
            raise ValueError(f"image {number} was asked for: the explanation has 0 to {len(self) - 1}")
        return slice(number, number + 1 or None)

    def _excerpt(self) -> "Explanation":
        return self.part(slice(NOTEBOOK_IMAGES), slice(NOTEBOOK_TARGETS))

    def _repr_png_(self) -> bytes:
        draw = drawing()
        return draw.png(draw.picture(self._excerpt()))

    def _repr_html_(self) -> str:
        """The picture, and below it each decision as the sum it is."""
        shown = self._excerpt()
        several = shown.targets.view(len(shown), -1)
        contributions = shown.contributions.reshape(*several.shape, -1).double()
        lines = []
        for image in range(len(shown)):
            for column, target in enumerate(several[image].tolist()):
                parts = contributions[image, column]
                numbers = (parts.clamp(min=0).sum(), parts.clamp(max=0).sum(), shown.bias, shown.logits[image, target])
                cells = "".join(f"<td style='text-align:right'>{float(number):+.2f}</td>" for number in numbers)
                probability = f"<td style='text-align:right'>{shown.probabilities[image, target].item():.2f}</td>"
                name = html.escape(shown.class_name(target))
                lines.append(f"<tr><td>{image}</td><td style='text-align:left'>{name}</td>{cells}{probability}</tr>")
        heads = ("image", "class", "for", "against", "bias", "= logit", "probability")
        left_out = len(self) - len(shown)
        note = f"<p>The first {len(shown)} of {len(self)} images.</p>" if left_out else ""
        source = b64encode(self._repr_png_()).decode()
        return (
            "<img alt='contribution maps' style='max-width:100%;background:white' "
            f"src='data:image/png;base64,{source}'>"
            f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{''.join(lines)}</table>{note}"
        )


def completeness_error(parts: Tensor, total: Tensor) -> Tensor:
    """How far parts [..., n] are from their total [...], over what they distribute: |Σ parts - total| / Σ |parts|.

    Parts too small to make up the total are measured against the total instead, so that nothing at all has an error of
    1, unless nothing is the total: then it is 0.
    """
    parts, total = parts.double(), total.double()
    scale = torch.maximum(parts.abs().sum(-1), total.abs())
    return (parts.sum(-1) - total).abs() / torch.where(scale > 0, scale, 1.0)


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _class_number(target: object, classes: int, names: Sequence[str] | None) -> int:
    if isinstance(target, str):
        if names is None:
            raise ValueError(
                f"target is {target!r}: this model has no class names, so give a number from 0 to {classes - 1}"
            )
        if target not in names:
            raise ValueError(f"unknown class {target!r}{nearest(target, names)}")
        return list(names).index(target)
    if isinstance(target, bool) or not isinstance(target, int):
        raise ValueError(f"target is {target!r}: give a class number from 0 to {classes - 1}, or a name")
    if not 0 <= target < classes:  # before it meets a tensor, which has no room for every number
        raise ValueError(f"target {shown(target)} is out of range: the classes are 0 to {classes - 1}")
    return target


def resolve_targets(
    target: Target, number: int, classes: int, names: Sequence[str] | None
) -> tuple[Tensor | None, bool]:
    """Targets as class numbers [N, K], or None for the predicted class; and whether several per image are wanted."""
    if target is None:
        return None, False
    if isinstance(target, str) and target == "all":
        return torch.arange(classes).expand(number, classes), True
    if isinstance(target, (str, int)):
        chosen = torch.full((number,), _class_number(target, classes, names))
    elif isinstance(target, Sequence) and any(isinstance(item, str) for item in target):
        chosen = torch.tensor([_class_number(item, classes, names) for item in target])
    else:
        try:
            chosen = torch.as_tensor(target)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise ValueError(
                f"target is {shown(target)}: give a class, one per image, or as many for every image"
            ) from None
        if chosen.is_floating_point() or chosen.is_complex() or chosen.dtype == torch.bool:
            raise ValueError(f"targets are {chosen.dtype}: they must be class numbers, so integers")
        chosen = chosen.long().expand(number) if chosen.ndim == 0 else chosen.long()
    if chosen.ndim not in (1, 2) or len(chosen) != number or chosen.numel() == 0:
        raise ValueError(
            f"targets have shape {list(chosen.shape)} for {number} images: give one class, [{number}] of them, or "
            f"[{number}, K]"
        )
    if chosen.min() < 0 or chosen.max() >= classes:
        wrong = chosen[(chosen < 0) | (chosen >= classes)][0].item()
        raise ValueError(f"target {wrong} is out of range: the classes are 0 to {classes - 1}")
    return chosen.view(number, -1), chosen.ndim == 2
