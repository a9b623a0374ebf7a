"""The norm of every unit's weight at every patch: ‖u_j‖ = ‖F_j z‖ for any F_j with F_jᵀF_j = Â_jᵀÂ_j.

Â_j itself, [d, R], is such a factor, and so is the Cholesky factor of its Gram matrix, [R, R]: cheaper as soon as there
are more patches than a few R. Symbols as in `forms.py`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .forms import Workspace, blocks, flat, mixture


def _is_direct(order: int, rows: int | None, rank: int, size: int, dtype: torch.dtype) -> bool:
    """Whether Â itself is the factor to take, for a number of rows, or for as many as may come.

    It is for a 1-norm; in float64, which is asked for by those who check; and where it is cheaper. Multiplications per
    unit: P·R·d directly; R²·d for the Gram matrix, at half speed in float64, and P·R² after.
    """
    if order != 2 or dtype == torch.float64:
        return True
    return size <= rank if rows is None else rows * size <= 2 * rank * size + rows * rank


@dataclass(frozen=True)
class NormFactor:
    """What gives ‖u_j‖ of z: the Cholesky factor of the Gram matrix, or without one Â itself."""

    order: int
    size: Tensor  # s [n], the size of a unit's weights, taken out so that squares neither overflow nor vanish
    gram: Tensor | None = None  # G / s as [R, R, n]
    cholesky: Tensor | None = None  # L / s with L Lᵀ = G, as [R, R, n]; only the norms themselves need it

    def norms(self, z: Tensor, weight: Tensor) -> Tensor:
        """‖u_j‖ [P, n]."""
        if self.cholesky is None:
            return _direct_norm(z, weight, self.size, self.order).mul_(self.size)
        return _gram_norm(z, self.cholesky).mul_(self.size)

    def moments(self, weight: Tensor) -> Tensor:
        """Zeros, to be added up over blocks into Σ_p ratio_pj z zᵀ [R, R, n], or directly into dÂ."""
        return torch.zeros_like(weight if self.gram is None else self.gram)

    def pull(self, grad: Tensor, norm: Tensor, z: Tensor, weight: Tensor, moments: Tensor) -> Tensor:
        """dz [P, R] of the gradient of the norms; what it adds to the moments is added."""
        ratio = _ratio(grad, norm).mul_(self.size)
        if self.gram is None:
            return _direct_norm_backward(grad if self.order == 1 else ratio, z, weight, self.size, self.order, moments)
        return _gram_norm_backward(ratio, z, self.gram, moments)

    def weight_gradient(self, moments: Tensor, weight: Tensor) -> Tensor:
        """dÂ_j = Â_j Σ_p ratio_pj z zᵀ / s."""
        if self.gram is None:
            return moments
        scaled = (moments / self.size).permute(2, 0, 1)  # [n, R, R]
        return torch.bmm(scaled, weight.transpose(0, 1)).transpose(0, 1)


def norm_factor(weight: Tensor, order: int, rows: int | None) -> NormFactor:
    rank, _, patch = weight.shape
    if _is_direct(order, rows, rank, patch, weight.dtype):
        return NormFactor(order, _unit_sizes(weight))
    return gram_factor(weight)


def gram_factor(weight: Tensor) -> NormFactor:
    """G_j = Â_jᵀÂ_j and its Cholesky factor.

    zᵀGz loses all digits where Az ≈ -b, but ‖Lᵀz‖ is as accurate as ‖Âz‖ if L is: so G and L are computed in float64,
    with a shift near float32's own resolution, which keeps a singular G factorable.
    """
    wide = torch.float32 if weight.device.type == "mps" else torch.float64  # MPS has no float64
    rank, units, size = weight.shape
    gram = weight.new_empty(units, rank, rank, dtype=wide)
    for some in blocks(units, 4 * rank * size, gram):  # [m, R, d] at a time: the copy in float64 stays in the cache
        columns = weight.detach()[:, some].to(wide).transpose(0, 1)
        torch.bmm(columns, columns.transpose(1, 2), out=gram[some])
    largest = gram.diagonal(dim1=1, dim2=2).amax(1)
    square = torch.where(largest > 0, largest, torch.ones_like(largest))  # s² [n]
    gram = gram / square[:, None, None]
    diagonal = gram.diagonal(dim1=1, dim2=2)
    empty = diagonal == 0  # a row of zeros in Â gets a pivot of 1 and loses it again
    shift = 4 * rank * torch.finfo(wide).eps * diagonal + empty
    factor, _ = torch.linalg.cholesky_ex(gram + torch.diag_embed(shift))
    factor = factor.masked_fill(empty.unsqueeze(2), 0)
    narrow = weight.dtype
    gram, factor = (matrix.to(narrow).permute(1, 2, 0).contiguous() for matrix in (gram, factor))
    sizes = square.sqrt().to(narrow)
    return NormFactor(2, sizes, gram.mul_(sizes), factor)


_TRIANGLE = 40  # about how many columns of L are taken at a time, to skip most of its zero half


def _gram_norm(z: Tensor, factor: Tensor) -> Tensor:
    """‖Lᵀz‖, [P, n]."""
    rank, _, units = factor.shape
    step = math.ceil(rank / max(1, round(rank / _TRIANGLE)))
    rows = blocks(len(z), step * units, z)
    out = z.new_zeros(len(z), units)
    for start in range(0, rank, step):
        part = factor[start:, start : start + step]  # [R - start, m, n]; what is above it is zero
        work = Workspace(rows, part.shape[1:], z)
        for block in rows:
            product = torch.mm(z[block, start:], part.flatten(1), out=flat(work.out(block)))
            square = torch.mul(product, product, out=flat(work.out(block)))
            out[block] += square.view(-1, *part.shape[1:]).sum(1)
    return out.sqrt_()


def _gram_norm_backward(ratio: Tensor, z: Tensor, gram: Tensor, moments: Tensor) -> Tensor:
    """With ratio = ∂/∂‖u‖ · s / ‖u‖: dz = Σ_j ratio_j G_j z / s, and Σ_p ratio_pj z zᵀ added to the moments."""
    rank, _, units = gram.shape
    if rank <= units:  # z zᵀ is the smaller
        square = (z.unsqueeze(2) * z.unsqueeze(1)).flatten(1)  # [P, R·R]
        moments.view(rank * rank, units).addmm_(square.t(), ratio)
        mixed = torch.mm(ratio, gram.view(rank * rank, units).t())  # Σ_j ratio_j G_j [P, R·R]
        mixed = mixed.view(-1, rank, rank)
        return mixture(z, mixed, torch.empty_like(z), square.view_as(mixed))
    rows = blocks(len(z), rank * units, z)
    work = Workspace(rows, (rank, units), z)
    grad_z, total = torch.empty_like(z), moments.view(rank, rank * units)
    for block in rows:
        part = torch.mm(z[block], gram.flatten(1), out=flat(work.out(block))).view(-1, rank, units)
        grad_z[block] = part.mul_(ratio[block].unsqueeze(1)).sum(2)
        outer = torch.mul(z[block].unsqueeze(2), ratio[block].unsqueeze(1), out=work.out(block))
        total.addmm_(z[block].t(), outer.flatten(1))
    return grad_z


def _unit_sizes(weight: Tensor) -> Tensor:
    size = weight.detach().abs().amax((0, 2))
    return torch.where(size > 0, size, torch.ones_like(size))  # [n]


def _direct_norm(z: Tensor, weight: Tensor, size: Tensor, order: int) -> Tensor:
    """‖Σ_r z_r Â_rj‖ / s, [P, n], a cache's worth of weights at a time."""
    rank, units, patch = weight.shape
    rows = blocks(len(z), units * patch, z)
    work = Workspace(rows, (units, patch), z)
    out = z.new_empty(len(z), units)
    for block in rows:
        part = torch.mm(z[block], weight.view(rank, -1), out=flat(work.out(block))).view(-1, units, patch)
        out[block] = torch.linalg.vector_norm(part.div_(size[:, None]), order, dim=2)
    return out


def _direct_norm_backward(
    factor: Tensor, z: Tensor, weight: Tensor, size: Tensor, order: int, moments: Tensor
) -> Tensor:
    """dz = Â dw, and dÂ = dw zᵀ added to the moments, with dw = factor · u/s or factor · sign(u)."""
    rank, units, patch = weight.shape
    matrix = weight.view(rank, -1)
    rows = blocks(len(z), 2 * units * patch, z)
    work = Workspace(rows, (units, patch), z)
    grad_z, grad_matrix = torch.empty_like(z), moments.view_as(matrix)
    for block in rows:
        part = torch.mm(z[block], matrix, out=flat(work.out(block))).view(-1, units, patch)
        direction = part.sign_() if order == 1 else part.div_(size[:, None])
        part = direction.mul_(factor[block, :, None])
        grad_z[block] = part.flatten(1) @ matrix.t()
        grad_matrix.addmm_(z[block].t(), part.flatten(1))
    return grad_z


def _ratio(grad: Tensor, norm: Tensor) -> Tensor:
    return (grad / norm).masked_fill_(norm == 0, 0)  # a zero weight has no direction to grow in
