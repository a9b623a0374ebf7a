"""What a peer has besides its layers, so that recipes train it, files keep it and metrics judge it."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..claims import checked_names, checked_size
from ..network import LOGIT_BIAS


class Peer(nn.Module):
    """A classifier that stands beside CoDA-Nets in comparisons: images [N, C, H, W] in [0, 1] to logits [N, classes].

    It is trained by the same recipes, so one-vs-all: the probability of a class is the sigmoid of its logit.

    Args:
        name: Its name in the registry of peers.
        num_classes: How many classes there are.
        image_channels: 3 for RGB, 1 for grey.
        image_size: (height, width) of the images that it was trained on; None for any.
        class_names: One for each class, for tables.
        provenance: Where it comes from; kept in files.
    """

    one_vs_all = True
    sums_positions = False  # its head takes the mean over positions, not the sum
    temperature = 1.0
    logit_bias = 0.0

    def __init__(
        self,
        name: str,
        num_classes: int,
        image_channels: int = 3,
        image_size: tuple[int, int] | None = None,
        class_names: tuple[str, ...] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.name, self.num_classes, self.image_channels = name, num_classes, image_channels
        self.image_size = checked_size(image_size, image_channels)
        self.class_names = checked_names(class_names, num_classes)
        self.provenance = dict(provenance or {})

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def encode(self, images: Tensor) -> Tensor:
        """What the network computes on: the images as they are, unless a peer says otherwise."""
        return images

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """The last map [N, K, h, w], before pooling."""

    @abstractmethod
    def classify(self, maps: Tensor) -> Tensor:
        """The logits [N, classes] of the last map."""

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.features(self.encode(images)))


class Centred(nn.Module):
    """2x - 1: images in [0, 1] around zero, which is grey; `mean` and `std` tell those who remove pixels."""

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int):
        super().__init__()
        for name in ("mean", "std"):
            # made on the CPU even where the network is made on "meta" to be given its weights, which have none of these
            half = torch.full((1, channels, 1, 1), 0.5, device="cpu")
            self.register_buffer(name, half, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


def head(planes: int, classes: int) -> nn.Linear:
    """A linear layer that gives every class a probability of 0.1 before training, as a CoDA-Net does."""
    linear = nn.Linear(planes, classes)
    nn.init.constant_(linear.bias, LOGIT_BIAS)
    return linear


def initialised(model: nn.Module) -> None:
    """He's initialisation of all convolutions."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
