"""Features as the images of a split: every pass over them sees another view of each picture."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from codanet.data.features import FeatureCache
from codanet.data.split import Batch, Split


class FeatureSplit(Split):
    """Maps float16 [n, C, h, w] of a cache.

    An index below len(split) is a picture's first view; the others follow, so many indices further on each.

    pictures: their numbers in the cache, [N].
    photographs: the split that shows them.
    """

    at_hand = True

    def __init__(self, cache: FeatureCache, pictures: Tensor, photographs: Split) -> None:
        self.cache, self.pictures, self.photographs = cache, pictures, photographs
        self.labels = photographs.labels
        self.views = cache.shape[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        view, place = chosen // len(self), chosen % len(self)
        return self.cache.read(view, self.pictures[place]), self.labels[place]

    def order(self, generator: torch.Generator, epoch: int) -> Tensor:
        places = torch.randperm(len(self), generator=generator)
        return (places + epoch) % self.views * len(self) + places

    def subset(self, indices: Tensor) -> "FeatureSplit":
        return FeatureSplit(self.cache, self.pictures[indices], self.photographs.subset(indices))

    def _identify(self, told: Callable[[bytes], None]) -> None:
        self.photographs._identify(told)
