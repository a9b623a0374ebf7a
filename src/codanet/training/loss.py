"""The training objective (eq. 9, 10): BCE(σ(W(x)x / T + b0), y) + λ ⟨|W(x)|⟩, and a term of ours beside it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from ..models.network import CoDANet


def wrong_classes(labels: Tensor, classes: int, generator: Generator | None = None) -> Tensor:
    """One class per image, drawn evenly from those it does not belong to."""
    step = torch.randint(1, classes, labels.shape, generator=generator).to(labels.device)
    return (labels + step) % classes


def classification_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """One-vs-all: every class has a yes and a no of its own; the mean over images and classes.

    Labels are class numbers [N], or [N, classes] with a one for every class that is there. Weights [classes] say how
    much an image of each class counts.
    """
    wanted = one_hot(labels, logits.shape[1]) if labels.ndim == 1 else labels
    counted = None if weights is None else weights.to(logits.dtype)[labels][:, None]
    return binary_cross_entropy_with_logits(logits, wanted.to(logits.dtype), counted)


def class_weights(labels: Tensor, classes: int, power: float) -> Tensor:
    """(1 / images of the class) ** power, [classes], with a mean of 1 over the images."""
    counts = labels.bincount(minlength=classes).clamp(min=1).double()
    weights = counts**-power
    return (weights / weights[labels].mean()).float()


def weight_rows(model: CoDANet) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images and classes [N, K] to the logits and the rows [W]_c / T, [N, K, 2C, H, W].

    Differentiable through the transposed layers: no second derivative is taken anywhere.
    """

    def rows(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits, linear_map = model.align(images)
        return logits, linear_map.class_rows(targets)

    return rows


def mean_weight(
    model: CoDANet,
    images: Tensor,
    labels: Tensor,
    generator: Generator | None = None,
    rows: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
) -> tuple[Tensor, Tensor]:
    """The logits, and ⟨|W|⟩ over the rows of the true class and of one wrong class per image (supplement C.1).

    rows: what `weight_rows` gives, if it is not to be made by the model as it is.
    """
    if labels.ndim != 1:
        raise ValueError(f"labels have shape {list(labels.shape)}: λ needs one class per image, so leave mosaics out")
    targets = torch.stack([labels, wrong_classes(labels, model.num_classes, generator)], 1)
    logits, weights = (rows or weight_rows(model))(images, targets)
    return logits, weights.abs().mean() * model.temperature


def wrong_evidence(maps: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Σ_p max(0, out_c(p)) / T, what speaks anywhere for a class c that is not there; the mean over these and images.

    maps: the last layer's, [N, classes, H, W], whose sum over the positions p is the logit's. BCE asks for a low sum
    alone, which evidence here and counter-evidence there have as well; next to another image in a grid only the first
    of the two shows.
    """
    wanted = one_hot(labels, maps.shape[1]) if labels.ndim == 1 else labels
    positive = maps.clamp(min=0).sum((2, 3), dtype=torch.promote_types(maps.dtype, torch.float32))
    wrong = 1 - wanted.to(positive.dtype)
    return (positive * wrong).sum() / (wrong.sum().clamp(min=1) * temperature)


def at_temperature(logits: Tensor, model: CoDANet, temperature: float) -> Tensor:
    """The logits that the model would give with another T: b0 + (logits - b0) T / T'."""
    if temperature == model.temperature:
        return logits
    return model.logit_bias + (logits - model.logit_bias) * (model.temperature / temperature)


def objective(
    model: CoDANet,
    images: Tensor,
    labels: Tensor,
    regularisation: float = 0.0,
    generator: Generator | None = None,
    temperature: float | None = None,
    weights: Tensor | None = None,
    evidence: float = 0.0,
    compiled: Callable[..., Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss, at another temperature if one is given, and the logits. With λ = 0 the rows of W are not computed.

    evidence: the weight of `wrong_evidence`, where λ is 0.
    compiled: `model.features` of images, or with λ `weight_rows(model)`, if not to be made by the model as it is.
    """
    temperature = model.temperature if temperature is None else temperature
    if regularisation:
        logits, weight = mean_weight(model, images, labels, generator, compiled)
        loss = classification_loss(at_temperature(logits, model, temperature), labels, weights)
        return loss + regularisation * weight, logits
    if not evidence and compiled is None:
        logits = model(images)
        return classification_loss(at_temperature(logits, model, temperature), labels, weights), logits
    maps = compiled(images) if compiled else model.features(model.encode(images))
    logits = model.pool(maps)
    loss = classification_loss(at_temperature(logits, model, temperature), labels, weights)
    return loss + evidence * wrong_evidence(maps, labels, temperature) if evidence else loss, logits
