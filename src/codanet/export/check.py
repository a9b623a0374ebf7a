"""Whether an exported file says what the model says: on pictures and on noise, before it is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.examples import examples
from ..data.image import fit, to_tensor
from ..models.explanation import completeness_error
from ..models.network import CoDANet

LOGITS, MAPS, SUMS = 1e-4, 1e-4, 1e-5  # the most that a file may differ
OPEN_SIZE = (64, 64)  # what a model that takes any size is checked with
PIXELS = 1 << 17  # at most, in all the images of a check

# (image, target) to logits and contributions
Run = Callable[[NDArray[np.float32], NDArray[np.int64]], tuple[NDArray[np.float32], NDArray[np.float32]]]


@dataclass(frozen=True)
class Differences:
    """The largest ones between two ways to compute the same."""

    images: int
    logits: float  # |Δ logit| / max(1, |logit|)
    maps: float  # |Δ contribution| / the largest contribution of all
    sums: float  # |Σ contributions - (logit - b0)| / Σ |contribution|, less what float32 rounds of the logit
    classes: int  # images that get another class

    @property
    def small(self) -> bool:
        return self.logits <= LOGITS and self.maps <= MAPS and self.sums <= SUMS and self.classes == 0


def check_images(model: CoDANet, size: tuple[int, int] | None) -> Tensor:
    """Photographs, or digits, and as much noise, [N, C, H, W]."""
    height, width = size or model.image_size or OPEN_SIZE
    count = max(1, min(4, PIXELS // (2 * height * width)))
    noise = torch.rand(count, model.image_channels, height, width, generator=torch.Generator().manual_seed(0))
    if model.image_channels not in (1, 3):
        return noise
    mode = "L" if model.image_channels == 1 else "RGB"
    pictures = list(examples(model).values())[:count]
    seen = [to_tensor(fit(picture.convert(mode), (height, width))).float() / 255 for picture in pictures]
    return torch.cat([torch.stack(seen), noise])


def compare(model: CoDANet, run: Run, images: Tensor) -> Differences:
    """Of the predicted class, and of one class after the other."""
    parts = []
    for targets in (torch.full((len(images),), -1), torch.arange(len(images)) % model.num_classes):
        parts.append(differences(model, images, targets, *run(images.numpy(), targets.numpy())))
    return worst(parts)


def differences(
    model: CoDANet, images: Tensor, targets: Tensor, logits: NDArray[np.float32], maps: NDArray[np.float32]
) -> Differences:
    """Of logits [N, classes] and contributions [N, H, W] for `targets` (-1: the predicted class) from the model's."""
    predicted = torch.from_numpy(logits).argmax(1)
    targets = torch.where(targets < 0, predicted, targets)
    why = model.explain(images.to(model.device), targets.to(model.device))
    ours, theirs = why.logits.double().cpu().numpy(), logits.astype(np.float64)
    shown, expected = maps.astype(np.float64), why.contributions.sum(-3).double().cpu().numpy()
    with np.errstate(invalid="ignore"):
        return Differences(
            images=len(images),
            logits=_largest(np.abs(theirs - ours) / np.maximum(1, np.abs(ours))),
            maps=_largest(np.abs(shown - expected)) / (float(np.abs(expected).max()) or 1.0),
            sums=_largest(_sums(shown, theirs[np.arange(len(theirs)), targets.numpy()], model.logit_bias)),
            classes=_confused(ours, predicted.numpy()),
        )


def _sums(maps: NDArray[np.float64], logits: NDArray[np.float64], bias: float) -> NDArray[np.float64]:
    """The completeness errors of maps [N, H, W], less what float32 rounds of logits [N] that hold b0 as well."""
    rounding = 4 * np.finfo(np.float32).eps * np.abs(logits)
    total = np.clip(maps.sum((1, 2)), logits - bias - rounding, logits - bias + rounding)
    return completeness_error(torch.from_numpy(maps).flatten(1), torch.from_numpy(total)).numpy()


def worst(parts: list[Differences]) -> Differences:
    return Differences(
        images=parts[0].images,
        **{name: max(getattr(part, name) for part in parts) for name in ("logits", "maps", "sums", "classes")},
    )


def _confused(logits: NDArray[np.float64], predicted: NDArray[np.int64]) -> int:
    """Images whose predicted class is not the model's, nor one that rounding cannot tell from it."""
    best, chosen = logits.max(1), logits[np.arange(len(logits)), predicted]
    return int((best - chosen > LOGITS * np.maximum(1, np.abs(best))).sum())


def _largest(values: NDArray[np.float64]) -> float:
    """NaN is larger than anything."""
    return float("inf") if np.isnan(values).any() else float(values.max())
