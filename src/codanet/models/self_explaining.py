"""Classifiers that come with maps of their own, whatever they are made of: what the methods and metrics ask of them."""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class SelfExplaining(nn.Module, ABC):
    """A classifier whose maps add up to its logits, less a bias that no pixel adds."""

    logit_bias: float
    encodes: bool = False  # whether it computes on [x, 1-x], where a removed pixel is 0 in all channels

    def encode(self, images: Tensor) -> Tensor:
        """What the network computes on; encoded images stay as they are."""
        return images

    @abstractmethod
    def own_maps(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """How much every pixel adds to the logit of the targets [N] or [N, K]: [N, (K,) H, W]."""


def encodes(model: nn.Module) -> bool:
    """Whether the model takes pixels as [x, 1-x]."""
    return isinstance(model, SelfExplaining) and model.encodes


def one_vs_all(model: nn.Module) -> bool:
    """Whether every class has a probability of its own, the sigmoid of its logit, or all share a softmax."""
    return bool(getattr(model, "one_vs_all", False))


def separate_heads(model: nn.Module) -> int:
    """How many classification heads lie side by side in the logits, each with all classes and a softmax of its own."""
    return int(getattr(model, "separate_heads", 1))
