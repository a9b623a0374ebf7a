"""Rescalings g(u) = α(‖u‖) u of the unscaled weights (eq. 2), as functions of the norm.

Each takes the norm divided by a positive `unit`, and that unit, and gives unit · α(unit · norm): the factor of the
weight divided by the same unit. So the norm's own scale, however large or small, cancels before it can overflow.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ._support.messages import nearest


def _positive(norm: Tensor) -> Tensor:
    return torch.where(norm > 0, norm, torch.ones_like(norm))


def squash(norm: Tensor, unit: Tensor) -> Tensor:
    """SQ: α(n) = n / (1 + n²) = 1 / (n + 1/n), so ‖w‖ = n² / (1 + n²) < 1."""
    least = torch.finfo(norm.dtype).tiny  # so that a zero norm has an infinite 1/n, and a factor of zero
    return unit.reciprocal().square().clamp(min=least).div(norm).add_(norm).reciprocal_()


def normalise(norm: Tensor, unit: Tensor) -> Tensor:
    """L2 and L1: α(n) = 1 / n, so ‖w‖ = 1; a zero weight stays zero."""
    return torch.where(norm > 0, 1 / _positive(norm), torch.zeros_like(norm))


def squash_slope(norm: Tensor, scale: Tensor) -> Tensor:
    """With β = ‖w‖ = n² / (1 + n²), so scale = β / norm: d scale / d norm = β (1 - 2β) / norm²."""
    positive = norm.clamp(min=torch.finfo(norm.dtype).tiny)  # where the norm is zero, so is the scale
    return torch.addcmul(scale / positive, scale, scale, value=-2)


def normalise_slope(norm: Tensor, scale: Tensor) -> Tensor:
    return -scale.square()


class Rescaling(NamedTuple):
    name: str
    order: int  # of the norm it looks at
    scale: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor] | None = None  # d scale / d norm of norm and scale; None: by autograd


RESCALINGS = {
    "sq": Rescaling("sq", 2, squash, squash_slope),
    "l2": Rescaling("l2", 2, normalise, normalise_slope),
    "l1": Rescaling("l1", 1, normalise, normalise_slope),
}


class _Function:
    """A user's α(n); a class, not a closure, so that a model with it can be pickled if α can."""

    def __init__(self, alpha: Callable[[Tensor], Tensor]):
        self.alpha = alpha

    def __call__(self, norm: Tensor, unit: Tensor) -> Tensor:
        return torch.where(norm > 0, unit * self.alpha(_positive(unit * norm)), torch.zeros_like(norm))


def rescaling(rescale: str | Callable[[Tensor], Tensor]) -> Rescaling:
    """A rescaling by its name, or from any function α of the (2-)norm, applied elementwise to a tensor."""
    if callable(rescale):
        probe = torch.tensor([0.5, 1.0, 2.0])
        answer = rescale(probe)
        if not isinstance(answer, Tensor) or answer.shape != probe.shape:
            raise ValueError(
                f"rescale function gave {answer!r} for {probe}: it must return one factor α(‖u‖) for each norm"
            )
        return Rescaling(getattr(rescale, "__name__", "custom"), 2, _Function(rescale))
    if not isinstance(rescale, str) or rescale not in RESCALINGS:
        raise ValueError(f"unknown rescale {rescale!r}{nearest(rescale, RESCALINGS)}, or pass a function of the norm")
    return RESCALINGS[rescale]
