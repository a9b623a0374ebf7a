"""LIME (Ribeiro, Singh, Guestrin 2016): a linear model of which segments, hidden or shown, make the probability."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from codanet._support.limits import MOST_SAMPLES
from codanet._support.numbers import check_whole
from codanet.models.self_explaining import encodes

from .task import MethodSettings, Task

WIDTH = 0.25  # in the kernel sqrt(exp(-d²/width²)) over the cosine distance d, as in the published implementation
RIDGE = 1.0  # α of the linear model, as there


@dataclass(frozen=True)
class Lime(MethodSettings):
    """The weights of the `features` segments that speak most for the class, 0 elsewhere and where none does.

    Settings are those of sec. C.3: segments by quickshift with max_dist 200, ratio 0.2 and kernel_size 4, each shown
    with probability 1/2. As in the implementation that the paper used, a hidden segment shows its mean colour;
    hidden="baseline" removes it as the other methods do. The same seed shows the i-th segment of every image alike.
    """

    colours = True

    samples: int = 256
    features: int = 3
    kernel_size: float = 4
    max_dist: float = 200
    ratio: float = 0.2
    hidden: Literal["mean", "baseline"] = "mean"

    def __post_init__(self) -> None:
        check_whole(1, most=MOST_SAMPLES, samples=self.samples, features=self.features)
        if not (self.kernel_size >= 1 and self.max_dist > 0 and 0 <= self.ratio <= 1):
            raise ValueError(
                f"kernel_size is {self.kernel_size}, max_dist {self.max_dist}, ratio {self.ratio}: quickshift needs "
                "kernel_size ≥ 1, max_dist > 0 and 0 ≤ ratio ≤ 1"
            )
        if self.hidden not in ("mean", "baseline"):
            raise ValueError(f"hidden is {self.hidden!r}: choose mean or baseline")

    def maps(self, task: Task) -> Tensor:
        return task.per_image(lambda inputs, targets: self._map(task, inputs.detach(), targets), 1)

    def _map(self, task: Task, image: Tensor, target: Tensor) -> Tensor:
        """[1, H, W] of an image [1, C, H, W]"""
        from captum._utils.models.linear_model import SkLearnRidge
        from captum.attr import LimeBase

        segments = self._segments(task, image)  # [H, W]
        number = int(segments.max()) + 1
        hidden = _means(image, segments) if self.hidden == "mean" else task.baseline.expand_as(image)
        shown = torch.randint(2, (self.samples, number), generator=task.generator()).to(image)
        shown[0] = 1  # the image itself

        def draws(original: Tensor) -> Iterator[Tensor]:
            yield from shown.split(1)

        def with_hidden(draw: Tensor, original: Tensor) -> Tensor:
            return torch.where(draw[0].bool()[segments], original, hidden)

        def similarity(original: Tensor, perturbed: Tensor, draw: Tensor) -> Tensor:
            # cosine distance to all ones: 1 - Σz / (‖z‖ √S) = 1 - sqrt(Σz / S)
            distance = 1 - draw.mean().sqrt()
            return (-((distance / WIDTH) ** 2) / 2).exp()

        method = LimeBase(
            task.probabilities,
            SkLearnRidge(alpha=RIDGE),
            similarity,
            draws,
            True,
            with_hidden,
            None,
        )
        weights = method.attribute(
            image, target, n_samples=self.samples, perturbations_per_eval=min(self.samples, task.forward_batch)
        )
        weights = weights.view(-1).to(image)
        top = weights.topk(min(self.features, number))
        kept = torch.zeros_like(weights).scatter(0, top.indices, top.values.clamp(min=0))
        return kept[segments][None]

    def _segments(self, task: Task, image: Tensor) -> Tensor:
        """[H, W] of numbers from 0, made on the colours of the picture, which must lie in [0, 1] to be colours."""
        from skimage.segmentation import quickshift

        channels = image.shape[1] // 2 if encodes(task.model) else image.shape[1]
        colours = image[0, :channels].permute(1, 2, 0).double().cpu().numpy()
        low, high = colours.min(), colours.max()
        if low < 0 or high > 1:
            colours = (colours - low) / (high - low or 1)
        segments = quickshift(
            np.ascontiguousarray(colours),
            ratio=self.ratio,
            kernel_size=self.kernel_size,
            max_dist=self.max_dist,
            convert2lab=channels == 3,
            rng=task.seed,
        )
        _, numbers = np.unique(segments, return_inverse=True)
        return torch.from_numpy(numbers.reshape(segments.shape)).to(image.device)


def _means(image: Tensor, segments: Tensor) -> Tensor:
    """The image [1, C, H, W] with every segment in its mean colour."""
    flat, numbers = image[0].flatten(1), segments.flatten()
    sums = flat.new_zeros(len(flat), int(numbers.max()) + 1).index_add_(1, numbers, flat)
    return (sums / numbers.bincount())[:, numbers].view_as(image)
