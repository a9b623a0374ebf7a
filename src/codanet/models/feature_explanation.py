"""What a decision over features is made of, and how features are laid over the photograph."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .explanation import Explanation


def exact_words(layer: str, stride: int) -> str:
    """What the contributions of a hybrid are exact for."""
    return f"exact over the features of {layer}, stride {stride}"


@dataclass(frozen=True)
class FeatureExplanation(Explanation):
    """logits[n, targets] = Σ contributions + bias, exactly, over the features of a layer.

    Args:
        logits: Of all classes, [N, classes].
        targets: The explained ones, [N] or [N, K].
        rows: Of W / T, [N, (K,) C', h, w].
        inputs: The encoded features, [N, C', h, w].
        bias: b0, which no feature adds.
        class_names: One for each class.
        photographs: What was shown to the backbone, [N, 3, H, W]; None if features were explained.
        layer: Of the backbone.
        stride: Pixels from one position of the features to the next.

    Examples:
        >>> codanet.load("waste").explain(images).exact_for  # doctest: +SKIP
        'exact over the features of blocks.10, stride 16'
    """

    photographs: Tensor | None = None
    layer: str = ""
    stride: int = 1

    @property
    def exact_for(self) -> str:
        return exact_words(self.layer, self.stride)

    @property
    def images(self) -> Tensor:
        if self.photographs is None:
            raise ValueError("features were explained, not images: explain the images to see them")
        return self.photographs

    @property
    def positions(self) -> Tensor:
        """Contributions per position of the features, [N, (K,) h, w]."""
        return self.contributions.sum(-3)

    @property
    def pixels(self) -> Tensor:
        """Each position's contribution spread evenly over the pixels it stands for, [N, (K,) H, W].

        The sum stays the same; where inside its square a feature saw what it saw is not known.
        """
        return spread(self.positions, self.images.shape[2], self.images.shape[3])

    @property
    def shown(self) -> Tensor:
        """Each position's contribution, in logits, on every pixel that it stands for, [N, (K,) H, W]."""
        return enlarged(self.positions, self.images.shape[2], self.images.shape[3])

    @classmethod
    def joined(cls, parts: Sequence[Explanation]) -> "FeatureExplanation":
        whole = super().joined(parts)
        assert isinstance(whole, FeatureExplanation)
        if whole.photographs is None:  # features were explained
            return whole
        return replace(whole, photographs=torch.cat([part.images for part in parts]))

    def part(self, images: int | slice, targets: slice = slice(None)) -> "FeatureExplanation":
        some = super().part(images, targets)
        assert isinstance(some, FeatureExplanation)
        return replace(some, photographs=None if self.photographs is None else self.photographs[self._slice(images)])


def enlarged(maps: Tensor, height: int, width: int) -> Tensor:
    """Maps [..., h, w] at a larger size, every pixel with the value of the square it lies in."""
    rows, columns = (_squares(maps, dim, size) for dim, size in ((-2, height), (-1, width)))
    return maps.index_select(-2, rows).index_select(-1, columns)


def spread(maps: Tensor, height: int, width: int) -> Tensor:
    """Maps [..., h, w] at a larger size, every value shared out evenly, so that sums stay what they are."""
    rows, columns = (_squares(maps, dim, size) for dim, size in ((-2, height), (-1, width)))
    heights, widths = (places.bincount()[places].to(maps.dtype) for places in (rows, columns))
    return enlarged(maps, height, width) / (heights[:, None] * widths)


def _squares(maps: Tensor, dim: int, size: int) -> Tensor:
    """In which of the maps' rows or columns each of `size` pixels lies."""
    return torch.arange(size, device=maps.device) * maps.shape[dim] // size
