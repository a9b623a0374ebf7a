"""The two forms a layer of Dynamic Alignment Units is made of, on rows of patches, without ever holding w(x).

Symbols: P patches p of d numbers, n units, R = rank, or rank + 1 with a bias. Â [R, n, d] holds A and, as its last row,
the bias; z [P, R] holds Bp and, as its last column, a one. Unit j at patch p then has the unscaled weight
u_j = Σ_r z_r Â_rj, and the layer needs only

    product  u_jᵀp = Σ_r z_r (Â_rjᵀ p)         one matrix product with R·n columns, then a short sum
    norm     ‖u_j‖ = ‖F_j z‖                   for any F_j with F_jᵀF_j = Â_jᵀÂ_j, the smaller the better

The product is linear in p, z and Â and, multiplied by a factor t_j per unit and summed, in t too. Its derivative with
respect to p, `Transpose`, is what explanations are made of, and is itself differentiable through the product:
so explanations can be trained without a second derivative. `alignment.py` puts both forms together.
"""

import math
import os
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import Parameter

# What one block of products may take: a quarter of the last-level cache, where the system tells its size.
_CACHE_NAMES = ("SC_LEVEL4_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE")
_CACHE_SIZES = [os.sysconf(name) for name in _CACHE_NAMES if name in getattr(os, "sysconf_names", {})]
BLOCK_BYTES = max(next((size for size in _CACHE_SIZES if size > 0), 32 << 20) // 4, 1 << 20)


def blocks(rows: int, numbers_per_row: int, like: Tensor) -> list[slice]:
    """Slices of rows whose products fit the cache; on an accelerator, or when compiling, one slice of everything."""
    if like.device.type != "cpu" or torch.compiler.is_compiling():
        return [slice(0, rows)]
    step = max(BLOCK_BYTES // (numbers_per_row * like.element_size()), 1)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.buffers: dict[tuple[torch.dtype, int], Tensor] = {}


_scratch = _Scratch()


def has_numbers(like: Tensor) -> bool:
    """Whether what is made of a tensor may be kept: on a CPU, while nothing is traced, compiled or made up (fake)."""
    if torch.compiler.is_compiling() or like.device.type != "cpu":
        return False
    return type(like) in (Tensor, Parameter) and type(torch.empty(0)) is Tensor


class Workspace:
    """A buffer used again by every block of every layer: fresh large ones cost more than the arithmetic done in them.

    What is in it lasts until the next workspace of the same slot, so it never leaves the function that asked for it.
    """

    def __init__(self, rows: list[slice], shape: tuple[int, ...], like: Tensor, slot: int = 0):
        self.buffer = None
        if len(rows) > 0 and has_numbers(like):
            size = (rows[0].stop - rows[0].start, *shape)
            self.buffer = _buffer(math.prod(size), like.dtype, slot).view(size)

    def out(self, rows: slice) -> Tensor | None:
        return None if self.buffer is None else self.buffer[: rows.stop - rows.start]


def _buffer(numbers: int, dtype: torch.dtype, slot: int) -> Tensor:
    held = _scratch.buffers.get((dtype, slot))
    if held is None or len(held) < numbers:
        with torch.inference_mode(False):
            held = _scratch.buffers[dtype, slot] = torch.empty(numbers, dtype=dtype, device="cpu")
    return held[:numbers]


def flat(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.flatten(1)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, the sum over blocks in the precision of the total."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


LOOP_NUMBERS = 400  # numbers of a matrix below which a CPU multiplies a batch of them one by one, in plain loops


def mixture(z: Tensor, parts: Tensor, out: Tensor, work: Tensor | None) -> Tensor:
    """Σ_r z_r u_r, [P, n], of z [P, R] and u [P, R, n]; `work`, as large as u, spares the memory of a product."""
    if parts.device.type == "cpu" and parts.shape[1] * parts.shape[2] < LOOP_NUMBERS:
        return torch.sum(torch.mul(parts, z.unsqueeze(2), out=work), 1, out=out)
    torch.bmm(z.unsqueeze(1), parts, out=out.unsqueeze(1))
    return out


def _pull(t: Tensor, z: Tensor, weight: Tensor, patches: Tensor, products: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The derivatives of Σ_pj t_pj u_pjᵀ p with respect to z [P, R] and Â [R, n, d], given the products Âᵀp."""
    rank, units, size = weight.shape
    rows = blocks(len(t), rank * units, z)
    work = Workspace(rows, (rank, units), z)
    grad_z, grad_matrix = torch.empty_like(z), z.new_zeros(rank * units, size)
    for part, block in zip(products, rows, strict=True):
        grad_z[block] = torch.mul(part, t[block].unsqueeze(1), out=work.out(block)).sum(2)
        outer = torch.mul(z[block].unsqueeze(2), t[block].unsqueeze(1), out=work.out(block))
        add_product(grad_matrix, outer.flatten(1).to(weight.dtype).t(), patches[block])
    return grad_z, grad_matrix.to(weight.dtype).view_as(weight)


def _product(patches: Tensor, z: Tensor, weight: Tensor) -> tuple[Tensor, list[Tensor]]:
    """u_jᵀp [P, n], and the products Â_rjᵀp of every block, [b, R, n]."""
    rank, units, size = weight.shape
    matrix = weight.view(rank * units, size)
    rows = blocks(len(patches), rank * units, z)
    work = Workspace(rows, (rank, units), z)
    out, products = z.new_empty(len(patches), units), []
    for block in rows:
        products.append(torch.mm(patches[block], matrix.t()).view(-1, rank, units))
        mixture(z[block], products[-1].to(z.dtype), out[block], work.out(block))
    return out, products


def _transpose(t: Tensor, z: Tensor, weight: Tensor) -> Tensor:
    """Σ_j t_j u_j [P, d]: the product's derivative with respect to the patch."""
    rank, units, size = weight.shape
    matrix = weight.view(rank * units, size)
    rows = blocks(len(t), rank * units, z)
    work = Workspace(rows, (rank, units), z)
    out = weight.new_empty(len(t), size)
    for block in rows:
        outer = torch.mul(z[block].unsqueeze(2), t[block].unsqueeze(1), out=work.out(block)).flatten(1)
        torch.mm(outer.to(weight.dtype), matrix, out=out[block])
    return out


class Transpose(Function):
    """Σ_j t_j u_j, [P, d]: rows t of a linear map, pulled back through the layer."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, z: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(t, z, weight)
        return _transpose(t, z, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        t, z, weight = ctx.saved_tensors
        grad_t, products = _product(grad, z, weight)
        return grad_t, *_pull(t, z, weight, grad, products)
