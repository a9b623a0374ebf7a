"""Rescalings w = g(u) = α(‖u‖) u of the unscaled weights (eq. 2), and the norms ‖u‖ they need.

So that no square overflows or vanishes, ‖u_j‖ comes as two factors, ‖u_j‖ = magnitude · length, the second not huge and
rarely tiny. Here magnitude = size · s_j: the size of z, as in dau.py, times the largest number in the norm factor F_j.
A rescaling takes both and gives magnitude · α(‖u_j‖); `scales` divides that by s_j and so gives size · α(‖u_j‖).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ._support.messages import nearest

Rescale = str | Callable[[Tensor], Tensor]


def squash(length: Tensor, magnitude: Tensor) -> Tensor:
    """SQ: α(‖u‖) = ‖u‖ / (1 + ‖u‖²), so ‖w‖ < 1.   magnitude · α = length / (length² + 1/magnitude²)"""
    return length / (length * length + magnitude.square().reciprocal())  # 0 where 1/magnitude² is too large for a float


def normalise(length: Tensor, magnitude: Tensor) -> Tensor:
    """L2 and L1: α(‖u‖) = 1 / ‖u‖, so ‖w‖ = 1.   magnitude · α = 1 / length"""
    return length.reciprocal()


class Rescaling(NamedTuple):
    name: str
    order: int  # 2 or 1: which norm it depends on
    scale: Callable[[Tensor, Tensor], Tensor]  # magnitude · α(‖u‖), of length and magnitude


RESCALINGS = {
    "sq": Rescaling("sq", 2, squash),
    "l2": Rescaling("l2", 2, normalise),
    "l1": Rescaling("l1", 1, normalise),
}


class _Function:
    """A user's α; a class, not a closure, so that a model with it can be pickled if α can."""

    def __init__(self, alpha: Callable[[Tensor], Tensor]):
        self.alpha = alpha

    def __call__(self, length: Tensor, magnitude: Tensor) -> Tensor:
        return magnitude * self.alpha(magnitude * length)


def find_rescaling(rescale: Rescale) -> Rescaling:
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


def norm_factor(A: Tensor, order: int = 2) -> Tensor:
    """F [R, m, n] with ‖A_j z‖ = ‖F_jᵀz‖ for all z, of A [R, n, d]: A_jᵀ for the 1-norm (m = d), else the Cholesky
    factor of A_jᵀA_j (m = R). Computed in float64, where there is one: A_jᵀA_j squares the condition number of A_j."""
    R, narrow = len(A), torch.promote_types(A.dtype, torch.float32)
    if order == 1:
        return A.to(narrow).transpose(1, 2)
    wide = A.to(narrow) if A.device.type == "mps" else A.double()
    eps = torch.finfo(wide.dtype).eps
    columns = wide.transpose(0, 1)  # A_jᵀ, [n, R, d]
    gram = columns @ columns.transpose(1, 2)  # A_jᵀA_j, [n, R, R]
    # A_jᵀA_j = diag(norms) · cosines · diag(norms), so its Cholesky factor is diag(norms) times that of the cosines.
    # Any positive numbers in place of the norms would give the same, so they are constants for autograd.
    norms = gram.detach().diagonal(dim1=1, dim2=2).sqrt()  # ‖A_ij‖, [n, R]
    largest = norms.amax(1, keepdim=True)
    # a column of zeros: √eps · largest instead of 0, by which the next line could not divide (why √eps: below)
    norms = torch.where(norms > 0, norms, math.sqrt(eps) * torch.where(largest > 0, largest, 1.0))
    cosines = gram / norms[:, :, None] / norms[:, None, :]
    # Dependent columns make the cosines singular, so 4R · eps is added to their diagonal. For a column
    # of zeros L then has √(4R · eps) times its norm from above on its diagonal, a rounding beside `largest`.
    cosines = cosines + 4 * R * eps * torch.eye(R, dtype=wide.dtype, device=A.device)
    L = norms[:, :, None] * torch.linalg.cholesky_ex(cosines).L  # _ex: does not wait for a GPU to say that it succeeded
    return (L * (largest > 0)[:, :, None]).permute(1, 2, 0).to(narrow)  # 0 if A_j = 0


def in_range(F: Tensor) -> tuple[Tensor, Tensor]:
    """F_j / s_j [R, m, n] and s_j [n], the largest |number| in F_j (or 1 if there are only zeros)."""
    largest = F.detach().abs().amax((0, 1))
    s = torch.where(largest > 0, largest, 1.0)
    return F / s, s


def scales(z: Tensor, size: Tensor, F: Tensor, rescaling: Rescaling) -> Tensor:
    """size · α(‖u_j‖) [P, n] for weights u_j = size · A_j z, of z [P, R], size [P, 1] and the norm factor F of A.

    Where F_jᵀz = 0 it is 0, and so is its gradient.
    """
    F, s = in_range(F)
    v = (z @ F.flatten(1)).view(-1, *F.shape[1:])  # F_jᵀz / s_j for all j in one product, [P, m, n]
    power = v.abs().sum(1) if rescaling.order == 1 else (v * v).sum(1)
    nonzero = power > 0
    power = torch.where(nonzero, power, 1.0)  # the derivative of √ at 0 is infinite
    length = power if rescaling.order == 1 else power.sqrt()  # ‖A_j z‖ / s_j
    magnitude = size * s  # [P, n], so that ‖u_j‖ = magnitude · length
    return torch.where(nonzero, rescaling.scale(length, magnitude), 0.0) / s  # magnitude · α_j / s_j = size · α_j
