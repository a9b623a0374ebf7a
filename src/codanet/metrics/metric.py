"""What a metric is, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from .._support.errors import DoesNotFit as DoesNotFit
from ..data.pictures import Pictures
from ..data.tiling import Grids
from .maps import Attribute, contributions

if TYPE_CHECKING:
    from .sanity import SanityCheck
    from .scores import Scores

# predictions: the images of `indices` and nothing else; maps: one map per image, for its label; boxes: maps, and a box
# around the object of each image; grids: grids of images, and the method; method: the images and the method itself
Need = Literal["predictions", "maps", "boxes", "grids", "method"]
POINTS = 129  # on a removal curve: every second pixel of the least or most important quarter of a 32x32 image


@dataclass(frozen=True)
class Sample:
    """Some images of a split with all that a metric may ask for; what it does not need is empty."""

    model: nn.Module
    pictures: Pictures
    indices: Sequence[int] = ()  # in the split
    images: Tensor = field(default_factory=lambda: torch.empty(0))  # [n, C, H, W]
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))  # [n]
    maps: Tensor = field(default_factory=lambda: torch.empty(0))  # float64 [n, H, W]
    grids: Grids | None = None
    attribute: Attribute = contributions
    empty: Tensor | None = None  # the network input that the maps are relative to, if not a removed pixel everywhere
    bias: float | None = None  # the logit that no pixel adds to, of a network's own maps
    points: int = POINTS
    seed: int = 0
    keep: Callable[[SanityCheck], None] = lambda check: None  # takes what a figure needs besides the scores


@dataclass(frozen=True)
class Metric:
    """An entry of the registry: everything that is known of a metric, and the function that measures it."""

    name: str
    title: str  # as tables call it
    higher_is_better: bool
    about: str
    needs: Need
    run: Callable[[Sample], Scores]
    unit: str = "images"  # what n counts
    # how many the paper measures on CIFAR-10, None for all there are; metrics on maps share those of 1024 images
    n: int | None = 1024
    n_elsewhere: int | None = None  # on other data, where that is another number
    ranked: bool = True  # whether the best of several methods is worth naming

    @property
    def needs_maps(self) -> bool:
        return self.needs != "predictions"

    def usual_number(self, data: str) -> int | None:
        """The paper's sample size on a data set."""
        return self.n if data == "cifar10" or self.n_elsewhere is None else self.n_elsewhere
