"""A whole layer of Dynamic Alignment Units on rows of patches, and its derivative, a cacheful of patches at a time.

Symbols as in `forms.py`. B is joined to Â, so that Bp and all Âᵀp come from one matrix product, and so do their
derivatives.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from .forms import Workspace, add_product, blocks, mixture
from .norm import NormFactor, norm_factor
from .rescale import Rescaling


class Prepared(NamedTuple):
    """What is made of a layer's parameters alone, before it sees any patch."""

    matrix: Tensor  # Â over B, [R·n + r, d], in the patches' precision
    factor: NormFactor

    def is_of(self, B: Tensor, A: Tensor) -> bool:
        """Whether the parameters still are what they were: compared number by number, however they may be changed."""
        given, held = (A.flatten(0, 1), B), self.matrix.tensor_split([len(self.matrix) - len(B)])
        alike = all(a.shape == b.shape and a.dtype == b.dtype for a, b in zip(given, held, strict=True))
        return alike and all(torch.equal(a, b) for a, b in zip(given, held, strict=True))


def prepare(B: Tensor, A: Tensor, dtype: torch.dtype, order: int, patches: int | None) -> Prepared:
    """For a number of patches in `dtype`, or for as many as may come."""
    rows, units, size = A.shape
    columns = rows * units
    matrix = A.new_empty(columns + len(B), size, dtype=dtype)
    matrix[:columns], matrix[columns:] = A.view(columns, size), B
    return Prepared(matrix, norm_factor(A.to(_wide(A)), order, patches))


def _wide(A: Tensor) -> torch.dtype:
    """Of norms and sums: float32 at least."""
    return torch.promote_types(A.dtype, torch.float32)


class Alignment(Function):
    """Of patches p [P, d], B [r, d] and Â [R, n, d]: the outputs w_jᵀp [P, n], z [P, R] and the scale [P, n] of
    w_j = scale_j Σ_r z_r Â_rj, and the power of two [P, 1] that was taken out of z.

    Without a derivative to its rescaling, it leaves that to the caller: outputs u_jᵀp, and norms ‖u_j‖ for the scale.
    What is `prepared` of B and Â may be given.
    """

    @staticmethod
    def forward(
        ctx: Any,
        patches: Tensor,
        B: Tensor,
        A: Tensor,
        rescaling: Rescaling,
        keep: bool,
        prepared: Prepared | None = None,
    ) -> Any:
        rank, (rows, units, _) = len(B), A.shape
        low, wide = patches.dtype, _wide(A)
        columns = rows * units
        matrix, factor = prepared or prepare(B, A, low, rescaling.order, len(patches))
        weight = A.to(wide)
        parts = blocks(len(patches), columns + rank, weight)
        work = Workspace(parts, (columns + rank,), patches, slot=1)
        mixed = Workspace(parts, (rows, units), weight)
        z, unit = (weight.new_empty(len(patches), width) for width in (rows, 1))
        product, norm, scale, out = (weight.new_empty(len(patches), units) for _ in range(4))
        products = []
        for part in parts:
            both = torch.mm(patches[part], matrix.t(), out=None if keep else work.out(part))  # [b, R·n + r]
            z[part], unit[part] = _normalised(both[:, columns:].to(wide), rows > rank)
            norm[part] = factor.norms(z[part], weight)
            u = both[:, :columns].unflatten(1, (rows, units)).to(wide)
            mixture(z[part], u, product[part], mixed.out(part))
            if rescaling.slope is not None:
                scale[part] = rescaling.scale(norm[part], unit[part])
                torch.mul(product[part], scale[part], out=out[part])
            if keep:
                products.append(both)
        ctx.rescaling, ctx.shape = rescaling, (rank, rows, units)
        saved = (patches, matrix, A, z, unit, norm, factor.size, factor.gram)
        ctx.mark_non_differentiable(unit)
        ctx.set_materialize_grads(False)
        if rescaling.slope is None:
            ctx.save_for_backward(*saved, None, None, *products)
            return product, z, norm, unit
        ctx.save_for_backward(*saved, scale, product, *products)
        return out.to(low), z, scale, unit

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_z: Tensor | None, grad_scale: Tensor | None, _: Any) -> Any:
        with torch.no_grad():
            grads = Alignment._backward(ctx, grad_out, grad_z, grad_scale)
        if torch.is_grad_enabled():
            given = ctx.saved_tensors[0], ctx.saved_tensors[2]
            grads = [None if grad is None else _Once.apply(grad, *given) for grad in grads]
        return *grads, None, None, None

    @staticmethod
    def _backward(ctx: Any, grad_out: Tensor | None, grad_z: Tensor | None, grad_scale: Tensor | None) -> Any:
        """The gradients of patches, B and Â."""
        patches, matrix, A, z, unit, norm, size, gram, scale, product, *products = ctx.saved_tensors
        rank, rows, units = ctx.shape
        columns = rows * units
        weight = A.to(z.dtype)
        factor = NormFactor(ctx.rescaling.order, size, gram)
        moments = factor.moments(weight)
        parts = blocks(len(patches), columns + rank, weight)
        work = Workspace(parts, (columns + rank,), z, slot=1)
        again = Workspace([] if products else parts, (columns + rank,), patches, slot=2)
        for_patches, *for_weights = ctx.needs_input_grad[:3]
        grad_patches = torch.empty_like(patches) if for_patches else None
        grad_matrix = z.new_zeros(matrix.shape) if any(for_weights) else None
        for index, part in enumerate(parts):
            g = None if grad_out is None else grad_out[part].to(z.dtype)
            t, slope = _through_scale(ctx.rescaling, g, grad_scale, part, norm, scale, product)
            dz = torch.zeros_like(z[part]) if grad_z is None else grad_z[part].clone()
            if slope is not None:
                dz += factor.pull(slope, norm[part], z[part], weight, moments)
            both = work.out(part)
            both = z.new_empty(len(dz), columns + rank) if both is None else both
            outer = both[:, :columns].unflatten(1, (rows, units))
            if t is None:
                outer.zero_()
            else:
                kept = products[index] if products else torch.mm(patches[part], matrix.t(), out=again.out(part))
                u = kept[:, :columns].unflatten(1, (rows, units))
                dz += torch.mul(u, t.unsqueeze(1), out=outer).sum(2)
                torch.mul(z[part].unsqueeze(2), t.unsqueeze(1), out=outer)
            torch.div(dz[:, :rank], unit[part], out=both[:, columns:])
            both = both.to(matrix.dtype)  # z ⊗ t and Bp's gradient, beside each other
            if grad_patches is not None:
                torch.mm(both, matrix, out=grad_patches[part])
            if grad_matrix is not None:
                add_product(grad_matrix, both.t(), patches[part])
        if grad_matrix is None:
            return grad_patches, None, None
        grad_A = grad_matrix[:columns].view_as(A)
        grad_A += factor.weight_gradient(moments, weight)
        return grad_patches, grad_matrix[columns:].to(A.dtype), grad_A.to(A.dtype)


class _Once(Function):
    """A gradient as it is, which depends on the layer's inputs and cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, *given: Tensor) -> Tensor:
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise RuntimeError(
            "the gradient of a DAU layer is to be differentiated: the layer is once_differentiable, so build the loss "
            "from outputs and explanations, not from gradients"
        )


def _through_scale(
    rescaling: Rescaling,
    grad: Tensor | None,
    grad_scale: Tensor | None,
    part: slice,
    norm: Tensor,
    scale: Tensor | None,
    product: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the unscaled product and of the norm, [b, n]."""
    given = None if grad_scale is None else grad_scale[part]
    if rescaling.slope is None or scale is None or product is None:
        return grad, given
    if grad is None:
        return None, None if given is None else given * rescaling.slope(norm[part], scale[part])
    change = grad * product[part]
    if given is not None:
        change += given
    return grad * scale[part], change.mul_(rescaling.slope(norm[part], scale[part]))


def _normalised(z: Tensor, bias: bool) -> tuple[Tensor, Tensor]:
    """z, a one appended for the bias, over a power of two near its largest entry: no digit of z changes."""
    largest = z.abs().amax(1, keepdim=True)
    if bias:
        largest = largest.clamp_(min=1)
        z = torch.cat([z, torch.ones_like(z[:, :1])], 1)
    unit = torch.where(largest > 0, torch.exp2(torch.floor(torch.log2(largest))), torch.ones_like(largest))
    return z / unit, unit
