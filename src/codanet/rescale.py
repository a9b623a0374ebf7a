"""Rescalings g(u) = α(‖u‖) u of the unscaled weights (eq. 2), as factors of the norm, and what the norm is made of.

Each rescaling takes a norm ν > 0 and a size s > 0, which together stand for ‖u‖ = s·ν, and gives s·α(s·ν): the scale
that turns u / s into g(u). Since ν and s are given apart, ‖u‖² is never formed. dau.py gives max_i |z_i| s_j as s.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ._support.messages import nearest

Rescale = str | Callable[[Tensor], Tensor]


def squash(norm: Tensor, size: Tensor) -> Tensor:
    """SQ: α(‖u‖) = ‖u‖ / (1 + ‖u‖²), so ‖w‖ < 1.   s α(s ν) = ν / (ν² + 1/s²)"""
    return norm / (norm * norm + size.square().reciprocal())  # 0 where 1/s² is too large for a number


def normalise(norm: Tensor, size: Tensor) -> Tensor:
    """L2 and L1: α(‖u‖) = 1 / ‖u‖, so ‖w‖ = 1.   s α(s ν) = 1 / ν"""
    return norm.reciprocal()


class Rescaling(NamedTuple):
    name: str
    order: int  # 2 or 1: which norm it depends on
    scale: Callable[[Tensor, Tensor], Tensor]  # s·α(s·ν) of ν and s


RESCALINGS = {
    "sq": Rescaling("sq", 2, squash),
    "l2": Rescaling("l2", 2, normalise),
    "l1": Rescaling("l1", 1, normalise),
}


class _Function:
    """A user's α; a class, not a closure, so that a model with it can be pickled if α can."""

    def __init__(self, alpha: Callable[[Tensor], Tensor]):
        self.alpha = alpha

    def __call__(self, norm: Tensor, size: Tensor) -> Tensor:
        return size * self.alpha(size * norm)


def rescaling(rescale: Rescale) -> Rescaling:
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


class NormFactor(NamedTuple):
    """What gives the norms ‖u_j‖ = s_j ‖F_jᵀz‖ of a layer's weights u_j = Â_j z: a function of its parameters alone."""

    matrix: Tensor  # F [R, m, n]: Cholesky factors L / s (m = R), or for the 1-norm Â / s itself (m = d)
    size: Tensor  # s [n], taken out to keep squares in range


def norm_factor(A: Tensor, order: int = 2) -> NormFactor:
    """For Â [R, n, d]; in float64, where there is one, since a Gram matrix squares the condition number of Â."""
    narrow = torch.promote_types(A.dtype, torch.float32)
    wide = A.to(narrow) if A.device.type == "mps" else A.double()
    transposed = wide.transpose(0, 1)  # Â_jᵀ, [n, R, d]
    gram = transposed @ transposed.transpose(1, 2)  # [n, R, R]
    square = gram.detach().diagonal(dim1=1, dim2=2)  # ‖Â_ij‖² [n, R]; s and the shift below are constants
    size2 = square.amax(1)  # s² [n]
    nonzero = size2 > 0
    size2 = torch.where(nonzero, size2, 1.0)
    size = size2.sqrt()
    if order == 1:
        return NormFactor((transposed / size[:, None, None]).permute(1, 2, 0).to(narrow), size.to(narrow))
    # dependent or zero columns of Â_j would leave Cholesky nothing to divide by: add a few roundings to each diagonal
    # entry, of s² to those that are zero, and no more, so that a zero column adds nothing to a norm
    eps = torch.finfo(wide.dtype).eps
    shift = 4 * len(A) * eps * torch.where(square > 0, square, eps * size2[:, None])
    definite = (gram + torch.diag_embed(shift)) / size2[:, None, None]
    F = torch.linalg.cholesky_ex(definite).L * nonzero[:, None, None]  # L / s
    return NormFactor(F.permute(1, 2, 0).to(narrow), size.to(narrow))
