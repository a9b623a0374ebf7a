"""The training objective (eq. 9, 10): BCE(σ(W(x)x / T + b0), y) + λ ⟨|W(x)|⟩, and terms of ours beside it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot, smooth_l1_loss

from ..data.augmentation import least_most_or_patches
from ..models.classifier import baseline
from ..models.network import CoDANet


def wrong_classes(labels: Tensor, classes: int, generator: Generator | None = None) -> Tensor:
    """One class per image, drawn with equal probability from those it does not belong to."""
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


@dataclass(frozen=True)
class Passes:
    """How pictures go through a network: as it is, or compiled.

    Args:
        maps: Images [N, C, H, W] to the last layer's maps, [N, classes, H', W'].
        rows: Images and classes [N, K] to the same maps and the rows [W]_c / T, [N, K, 2C, H, W].
    """

    maps: Callable[[Tensor], Tensor]
    rows: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

    @classmethod
    def plain(cls, model: CoDANet) -> "Passes":
        return cls(lambda images: model.features(model.encode(images)), weight_rows(model))


def weight_rows(model: CoDANet) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """What `Passes.rows` is, differentiable through the transposed layers: no second derivative is taken anywhere."""

    def rows(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        linear_map = model.align(images)[1]
        return linear_map.activations[-1], linear_map.class_rows(targets)

    return rows


def check_one_class(labels: Tensor) -> None:
    if labels.ndim != 1:
        raise ValueError(
            f"labels have shape {list(labels.shape)}: rows of W are for one class per image, so leave mosaics out"
        )


def mean_weight(rows: Tensor, temperature: float) -> Tensor:
    """⟨|W|⟩ of rows of W / T, those of the true class and of one wrong class per image (supplement C.1)."""
    return rows.abs().mean() * temperature


def contributions(rows: Tensor, encoded: Tensor) -> Tensor:
    """s_c(p), what every position p adds to the logit of a class c, [N, H, W]: [W]_c / T ⊙ x, summed over the channels.

    rows: [W]_c / T, [N, 2C, H, W]; encoded: what they are applied to.
    """
    return (rows.to(encoded.dtype) * encoded).sum(1)


def contributions_term(contributed: Tensor) -> Tensor:
    """Σ_p max(0, s_c(p)), what the positions p add to the logit of a wrong class c; the mean over images.

    contributed: s_c, [N, H, W]. `evidence_term` bounds sums over all that a position of the last layer sees, within
    which contributions of both signs may lie beside each other; this bounds every one of them.
    """
    return contributed.clamp(min=0).sum((1, 2)).mean()


def evidence_term(maps: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Σ_p max(0, out_c(p)) / T, what speaks anywhere for a class c that is not there; the mean over these and images.

    maps: the last layer's, [N, classes, H, W], whose sum over the positions p is the logit's. BCE asks for a low sum
    alone, which evidence here and counter-evidence there have as well; next to another image in a grid only the first
    of the two shows.
    """
    wanted = one_hot(labels, maps.shape[1]) if labels.ndim == 1 else labels
    positive = maps.clamp(min=0).sum((2, 3), dtype=torch.promote_types(maps.dtype, torch.float32))
    wrong = 1 - wanted.to(positive.dtype)
    return (positive * wrong).sum() / (wrong.sum().clamp(min=1) * temperature)


def asked_classes(logits: Tensor, labels: Tensor, generator: Generator | None = None) -> Tensor:
    """One class per image: the true one or the wrong one that the network thinks likeliest, with equal probability."""
    wrong = logits.masked_fill(one_hot(labels, logits.shape[1]).bool(), -torch.inf).argmax(1)
    chosen = torch.rand(len(labels), generator=generator).to(labels.device) < 0.5
    return torch.where(chosen, wrong, labels)


def removal_term(contributed: Tensor, gone: Tensor, lost: Tensor) -> Tensor:
    """How far Σ_p s(p) over removed pixels p is from what the logit loses when they go; Huber's loss, mean over images.

    contributed: s, to one class of each image, [N, H, W]; gone: the pixels, as many booleans; lost: that class's
    logit less the one without the pixels, [N]. The error is 0 where W(x) does not depend on the pixels that go.
    """
    return smooth_l1_loss((contributed * gone).sum((1, 2)), lost)


def at_temperature(logits: Tensor, model: CoDANet, temperature: float) -> Tensor:
    """The logits that the model would give with another T: b0 + (logits - b0) T / T'."""
    if temperature == model.temperature:
        return logits
    return model.logit_bias + (logits - model.logit_bias) * (model.temperature / temperature)


def objective(
    model: CoDANet,
    images: Tensor,
    labels: Tensor,
    *,
    regularisation: float = 0.0,
    wrong_evidence: float = 0.0,
    wrong_contributions: float = 0.0,
    removal_error: float = 0.0,
    generator: Generator | None = None,
    temperature: float | None = None,
    weights: Tensor | None = None,
    passes: Passes | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss, at another temperature if one is given, and the logits.

    Rows of W are computed where they are needed: for λ those of every image, for `wrong_contributions` and
    `removal_error` alone those of a quarter of them.

    regularisation: λ, the weight of `mean_weight`.
    wrong_evidence: the weight of `evidence_term`.
    wrong_contributions: the weight of `contributions_term`.
    removal_error: the weight of `removal_term`.
    weights: how much an image of each class counts, [classes].
    passes: how pictures go through the model, if not plainly.
    """
    temperature = model.temperature if temperature is None else temperature
    of_rows = bool(regularisation or wrong_contributions or removal_error)
    if passes is None and not (of_rows or wrong_evidence):  # which any network can do
        logits = model(images)
        return classification_loss(at_temperature(logits, model, temperature), labels, weights), logits
    passes = passes or Passes.plain(model)
    if not of_rows:
        maps = passes.maps(images)
    else:
        check_one_class(labels)
        few = len(images) if regularisation else max(1, len(images) // 4)
        some = model.encode(images[:few])
        wrong = wrong_classes(labels, model.num_classes, generator)[:few]
        targets: dict[str, Tensor] = {}  # the classes whose rows are needed, [few] each
        if removal_error:
            with torch.no_grad():
                likely = model.pool(passes.maps(some))
            targets["asked"] = asked_classes(likely, labels[:few], generator)
        if regularisation:
            targets["true"] = labels[:few]
        if regularisation or wrong_contributions:
            targets["wrong"] = wrong
        column = {name: place for place, name in enumerate(targets)}
        maps, rows = passes.rows(some, torch.stack(list(targets.values()), 1))  # rows: [few, len(column), 2C, H, W]
        if few < len(images):
            maps = torch.cat([maps, passes.maps(images[few:])])
    logits = model.pool(maps)
    loss = classification_loss(at_temperature(logits, model, temperature), labels, weights)
    colder = model.temperature / temperature
    if regularisation:
        both = rows[:, column["true"] : column["wrong"] + 1]  # which stand side by side
        loss = loss + regularisation * mean_weight(both, model.temperature)
    if wrong_evidence:
        loss = loss + wrong_evidence * evidence_term(maps, labels, temperature)
    if wrong_contributions:
        against = contributions(rows[:, column["wrong"]], some)
        loss = loss + wrong_contributions * contributions_term(against) * colder
    if removal_error:
        contributed = contributions(rows[:, column["asked"]], some)
        gone = least_most_or_patches(contributed.detach(), generator)
        left = model.pool(passes.maps(torch.where(gone[:, None], baseline(model, some), some)))
        lost = (logits[:few] - left).gather(1, targets["asked"][:, None])[:, 0]
        loss = loss + removal_error * removal_term(contributed * colder, gone, lost * colder)
    return loss, logits
