"""Any classifier, seen from outside: what goes in, what a removed pixel becomes, the probabilities that come out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from .hybrid import HybridNet
from .network import CoDANet, bare
from .self_explaining import SelfExplaining, encodes, one_vs_all, separate_heads

PIXELS_AT_ONCE = 1 << 17  # in one forward pass: 128 images of 32x32


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode and without gradients; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def like(model: nn.Module, images: Tensor) -> Tensor:
    """On the model's device, in its precision."""
    for parameter in model.parameters():
        return images.to(parameter.device, parameter.dtype)
    return images


def at_once(images: Tensor, batch_size: int | None = None) -> int:
    """How many inputs of this size go through the model together."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: give at least 1")
    return batch_size or max(1, PIXELS_AT_ONCE // (images.shape[-2] * images.shape[-1]))


def logits_of(model: nn.Module, inputs: Tensor, batch_size: int | None = None) -> Tensor:
    """[N, classes], batch by batch."""
    with evaluating(model):
        parts = inputs.split(at_once(inputs, batch_size))
        return torch.cat([model(like(model, part)).double().cpu() for part in parts])


def probabilities(model: nn.Module, logits: Tensor) -> Tensor:
    """A CoDA-Net's classes are one-vs-all, each with a sigmoid; other classifiers have a softmax."""
    model = bare(model)
    if one_vs_all(model):
        return logits.sigmoid()
    return logits.unflatten(1, (separate_heads(model), -1)).softmax(2).flatten(1)


def log_odds(model: nn.Module, logits: Tensor, classes: Tensor) -> Tensor:
    """log p / (1 - p) of one class each, [N], for logits [N, classes]: exact where p itself rounds to 1."""
    own = logits.gather(1, classes[:, None])[:, 0]
    if one_vs_all(bare(model)):
        return own
    others = logits.scatter(1, classes[:, None], -torch.inf).logsumexp(1)
    return (own - others).nan_to_num(nan=torch.nan)  # infinite for a single class, which a file cannot hold


def explaining(model: nn.Module, name: str) -> CoDANet:
    """The model, if it explains its own decisions; of the peers only B-cos networks do."""
    if not callable(getattr(model, "explain", None)):
        raise ValueError(
            f"{name} holds a {type(model).__name__}, which has no explanations of its own: codanet evaluate measures "
            "those of other methods"
        )
    return cast(CoDANet, model)


def network_input(model: nn.Module, images: Tensor) -> Tensor:
    """What pixels are removed from: a CoDA-Net's six encoded channels, other models' images, a hybrid's too."""
    images, model = like(model, images), bare(model)
    return model.encode(images) if isinstance(model, SelfExplaining) and not isinstance(model, HybridNet) else images


def baseline(model: nn.Module, inputs: Tensor) -> Tensor:
    """What a removed pixel becomes, [1, C, 1, 1]: zero in the space the network computes in.

    That is zero in all encoded channels for a CoDA-Net, which no real colour has (sec. C.4). A model that holds the
    `mean` and `std` of its normalisation, itself or in a direct child, sees zero where an image has the mean colour;
    so does the backbone of a hybrid. For any other model nothing is known, and 0 is taken.
    """
    channels, model = inputs.shape[1], bare(model)
    if isinstance(model, HybridNet) and channels == model.image_channels:
        model = model.backbone
    if not encodes(model):
        for module in (model, *model.children()):
            mean, std = getattr(module, "mean", None), getattr(module, "std", None)
            if isinstance(mean, Tensor) and isinstance(std, Tensor) and mean.numel() == std.numel() == channels:
                return mean.detach().to(inputs).reshape(1, channels, 1, 1)
    return inputs.new_zeros(1, channels, 1, 1)
