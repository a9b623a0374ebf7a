"""What a CoDA-Net's decision is made of."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .names import nearest

Target = None | int | str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]] | Tensor


@dataclass(frozen=True)
class Explanation:
    """logits[n, targets] = Σ contributions + bias, exactly.

    K is there only if several targets per image were asked for.
    """

    logits: Tensor  # [N, classes]
    targets: Tensor  # [N] or [N, K]
    rows: Tensor  # W(x) / T of the targets, [N, (K,) 2C, H, W]
    inputs: Tensor  # the encoded images [N, 2C, H, W]
    bias: float
    class_names: tuple[str, ...] | None = None

    @property
    def contributions(self) -> Tensor:
        """W ⊙ x / T per encoded channel, [N, (K,) 2C, H, W] (eq. 9)."""
        inputs = self.inputs if self.targets.ndim == 1 else self.inputs.unsqueeze(1)
        return self.rows * inputs

    @property
    def pixels(self) -> Tensor:
        """Contributions per pixel, [N, (K,) H, W]: the map to look at."""
        return self.contributions.sum(-3)

    @property
    def target_logits(self) -> Tensor:
        """[N] or [N, K]."""
        picked = self.logits.gather(1, self.targets.view(len(self.targets), -1))
        return picked.view_as(self.targets).to(picked.dtype)

    @property
    def probabilities(self) -> Tensor:
        """Of every class on its own, [N, classes]: the classes are one-vs-all."""
        return self.logits.sigmoid()

    @property
    def images(self) -> Tensor:
        """What was explained, without the negative channels, [N, C, H, W]."""
        return self.inputs[:, : self.inputs.shape[1] // 2]

    def completeness_error(self) -> Tensor:
        """|Σ contributions + bias - logit| / max(1, |logit|), [N] or [N, K]: rounding, and nothing else."""
        total = self.contributions.double().sum((-3, -2, -1)) + self.bias
        return (total - self.target_logits).abs() / self.target_logits.abs().clamp(min=1)

    def class_name(self, target: int) -> str:
        return self.class_names[target] if self.class_names else str(target)

    def __len__(self) -> int:
        return len(self.logits)


def _class_number(target: object, classes: int, names: Sequence[str] | None) -> int:
    if isinstance(target, str):
        if names is None:
            raise ValueError(
                f"target is {target!r}: this model has no class names, so give a number from 0 to {classes - 1}"
            )
        if target not in names:
            raise ValueError(f"unknown class {target!r}{nearest(target, names)}")
        return list(names).index(target)
    if isinstance(target, bool) or not isinstance(target, int):
        raise ValueError(f"target is {target!r}: give a class number from 0 to {classes - 1}, or a name")
    return target


def resolve_targets(
    target: Target, number: int, classes: int, names: Sequence[str] | None
) -> tuple[Tensor | None, bool]:
    """Targets as class numbers [N, K], or None for the predicted class; and whether several per image are wanted."""
    if target is None:
        return None, False
    if isinstance(target, str) and target == "all":
        return torch.arange(classes).expand(number, classes), True
    if isinstance(target, (str, int)):
        chosen = torch.full((number,), _class_number(target, classes, names))
    elif isinstance(target, Sequence) and any(isinstance(item, str) for item in target):
        chosen = torch.tensor([_class_number(item, classes, names) for item in target])
    else:
        try:
            chosen = torch.as_tensor(target)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"target is {target!r}: give a class, one per image, or as many for every image") from None
        if chosen.is_floating_point() or chosen.is_complex() or chosen.dtype == torch.bool:
            raise ValueError(f"targets are {chosen.dtype}: they must be class numbers, so integers")
        chosen = chosen.long().expand(number) if chosen.ndim == 0 else chosen.long()
    if chosen.ndim not in (1, 2) or len(chosen) != number or chosen.numel() == 0:
        raise ValueError(
            f"targets have shape {list(chosen.shape)} for {number} images: give one class, [{number}] of them, or "
            f"[{number}, K]"
        )
    if chosen.min() < 0 or chosen.max() >= classes:
        wrong = chosen[(chosen < 0) | (chosen >= classes)][0].item()
        raise ValueError(f"target {wrong} is out of range: the classes are 0 to {classes - 1}")
    return chosen.view(number, -1), chosen.ndim == 2
