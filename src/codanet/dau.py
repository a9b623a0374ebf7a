"""Dynamic Alignment Units (sec. 3.1): layers that compute their weights from their input, without storing them.

Algorithm 1 of the paper computes, at every patch p of d = C·k² numbers, for units j = 1 … n with A_j [d, r] and b_j [d]
and one B [r, d] for all of them,

    z = B p                          `dim_reduction`
    u_j = A_j z + b_j                `weightings`, n·d numbers at every patch
    w_j = g(u_j) = α(‖u_j‖) u_j      `act_func`, eq. 2
    out_j = w_jᵀp

This file computes the same without `weightings`. Let A_j have b_j as one more column and z have 1 as one more entry,
R = r + 1 in all, and let A_ij be column i of A_j, so that u_j = Σ_i z_i A_ij. Then

    u_jᵀp = Σ_i z_i (A_ijᵀp)     a convolution with R·n fixed filters A_ij, then a sum of R terms
    ‖u_j‖ = ‖F_jᵀz‖              F_j [R, R] is the Cholesky factor of A_jᵀA_j: made of the parameters alone

which is R·n numbers at a patch instead of n·d, fewer wherever R < d, as in nearly all layers. (For the 1-norm there is
no small F_j. There F_j = A_jᵀ [R, d], so that F_jᵀz is u_j itself, n·d numbers as in Algorithm 1.) Norms and α are in
rescale.py.

To explain a logit, the linear map of the later layers gives a row t over this layer's outputs: Σ_j t_j out_j, summed
over the patches, is the logit without the network's fixed bias. Over this layer's inputs it becomes the row
Σ_j t_j w_j = Σ_ij (t_j α_j z_i) A_ij, made by the transposed convolution with the same filters (`pull`).

A tiny z (possible without b) makes α_j = 1 / ‖u_j‖ too large for a float, and a huge one makes ‖u_j‖² too large. So
what the code calls z is z / size, with size = max_i |z_i|, and where α_j stands above it has `scale`, size · α_j: the
product of the two is the same.

Everything is plain PyTorch, so autograd, torch.func, torch.compile and torch.export work.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d
from torch.utils.checkpoint import checkpoint

from ._support.numbers import check_whole
from .rescale import Rescale, Rescaling, find_rescaling, norm_factor, scales

CHUNK_NUMBERS = 16 << 20  # floats t_j scale_j z_i that a pull makes at a time (but at least one row for each image)


class DynamicWeights(NamedTuple):
    """The linear map a layer made of one input, in factors: w_j = scale_j Σ_i z_i A_ij at every patch."""

    z: Tensor  # [P, R] for the P = N·h·w patches: [B p, 1], divided by its largest absolute value, size
    scale: Tensor  # [P, n]: size · α_j
    shape: torch.Size  # of the layer's input, [N, C, H, W]


class _DAU(nn.Module):
    """The parameters of a layer, A (with b) and B, and what it computes of images [N, C, H, W]."""

    stride, padding = 1, 0  # of DAULinear; DAUConv2d sets its own

    def __init__(
        self, channels: int, kernel: int, units: int, rank: int, rescale: Rescale, bias: bool, recompute: bool
    ):
        super().__init__()
        self.rank, self.rescale, self.recompute, self.has_bias = rank, rescale, recompute, bias
        self._rescaling: Rescaling = find_rescaling(rescale)
        self._patch = (kernel, kernel, channels)  # the order of a patch's d numbers: channels last, unlike unfold's
        self._kept: tuple[Tensor, Tensor] | None = None  # A, and the norm factor made of it
        d = channels * kernel**2
        self.B = nn.Parameter(torch.empty(rank, d))
        self.A = nn.Parameter(torch.empty(rank + bias, units, d))  # [R, n, d]: A[i, j] is A_ij; A[-1] is b, if any
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As two plain PyTorch layers, B then A with b: uniform in ±1/√(inputs of the layer)."""
        nn.init.uniform_(self.B, -1 / math.sqrt(self.B.shape[1]), 1 / math.sqrt(self.B.shape[1]))
        nn.init.uniform_(self.A, -1 / math.sqrt(self.rank), 1 / math.sqrt(self.rank))

    @property
    def bias(self) -> Tensor | None:
        """b [units, d], a view of A[-1]."""
        return self.A[-1] if self.has_bias else None

    def _filters(self, vectors: Tensor, dtype: torch.dtype) -> Tensor:
        """Vectors of d numbers as the filters [·, C, k, k] of a convolution, channels last in memory."""
        return vectors.to(dtype).view(-1, *self._patch).permute(0, 3, 1, 2)

    def _compute(self, x: Tensor, F: Tensor, padding: int) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs w_jᵀp [N, n, h, w] for images x, and z and scale: the equations at the head of this file.

        x: in the precision that the convolutions are to have; the rest is in that of F (see `_align`).
        F: all F_j, [R, m, n], as `norm_factor` gives them.
        padding: the layer's, or another one (see `DAUConv2d.align`).
        """
        R, n, _ = self.A.shape
        y = conv2d(x, self._filters(self.A.flatten(0, 1), x.dtype), None, self.stride, padding)  # A_ijᵀp [N, R·n, h, w]
        N, _, h, w = y.shape
        y = y.permute(0, 2, 3, 1).reshape(-1, R, n).to(F.dtype)  # [P, R, n], a view: y is channels last, as filters are
        # one convolution for y and z would be plainer, but to join their gradients takes a fifth of a training step
        z = conv2d(x, self._filters(self.B, x.dtype), None, self.stride, padding)  # B p, [N, r, h, w]
        z = z.permute(0, 2, 3, 1).reshape(-1, self.rank).to(F.dtype)
        if self.has_bias:
            z = torch.cat([z, torch.ones_like(z[:, :1])], 1)  # [P, R]
        # size is a constant for autograd, as scale · z does not depend on it; at least 2⁻¹⁰⁰, against 0 / 0
        size = z.detach().abs().amax(1, keepdim=True).clamp(min=2.0**-100)  # [P, 1]
        z = z / size
        scale = scales(z, size, F, self._rescaling)  # size · α(‖u_j‖), [P, n]
        out = scale * (y * z.unsqueeze(2)).sum(1)  # scale_j Σ_i z_i (A_ijᵀp)
        return out.to(x.dtype).view(N, h, w, n).permute(0, 3, 1, 2), z, scale

    def _pull(self, rows: Tensor, weights: DynamicWeights) -> Tensor:
        """Turns rows t [N, K, n, h, w] over the output, K for each image (say, one for each explained class), into rows
        [N, K, C, H, W] over the input: Σ_j t_j w_j of every patch, added up where patches overlap."""
        z, scale, shape = weights
        N, K, n, h, w = rows.shape
        R = z.shape[1]
        with torch.autocast(rows.device.type, enabled=False):
            t = rows.permute(0, 1, 3, 4, 2).to(scale.dtype) * scale.view(N, 1, h, w, n)
            t = z.view(N, 1, h, w, R, 1) * t.unsqueeze(4)  # t_j scale_j z_i, [N, K, h, w, R, n]
            t = t.reshape(N * K, h, w, R * n).permute(0, 3, 1, 2)
            # pixels at the right and lower end that no patch reached, with a stride: `output_padding`
            unseen = [shape[i] - (t.shape[i] - 1) * self.stride + 2 * self.padding - self._patch[0] for i in (2, 3)]
            filters = self._filters(self.A.flatten(0, 1), t.dtype)
            pulled = conv_transpose2d(t, filters, None, self.stride, self.padding, unseen)
            return pulled.view(N, K, *shape[1:])

    def _align(self, x: Tensor, factor: Tensor | None, padding: int = 0) -> tuple[Tensor, DynamicWeights]:
        """`_compute` with F, made here if no `factor` is given, and with recomputation where it is asked for.

        Convolutions are in the precision of A, or of autocast; but in float32 instead of float16, which ends at 65504:
        sums over a patch can pass that. All that follows them is in the precision of F, float32 at least.
        """
        if not x.is_floating_point():
            raise ValueError(f"input is {x.dtype}: it must be floating point, so convert it with .float()")
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.A.dtype
        dtype = torch.float32 if dtype == torch.float16 else dtype
        with torch.autocast(device, enabled=False):  # what follows casts by itself
            arguments = (x.to(dtype), self.norm_factor() if factor is None else factor, padding)
            if self.recompute and torch.is_grad_enabled():
                out, z, scale = checkpoint(self._compute, *arguments, use_reentrant=False)
            else:
                out, z, scale = self._compute(*arguments)
        return out, DynamicWeights(z, scale, x.shape)

    def norm_factor(self) -> Tensor:
        """F [R, m, n], with m = R (d for the 1-norm). Without gradients or tracing it is kept until A changes.

        Numbers are compared, not A's version, which does not count what is written through `A.data`.
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not _has_numbers(self.A):
            return norm_factor(self.A, self._rescaling.order)
        if self._kept is None or not _same(self._kept[0], self.A):
            with torch.inference_mode(False), torch.no_grad():  # so that it serves outside of inference mode as well
                self._kept = (self.A.detach().clone(), norm_factor(self.A, self._rescaling.order))
        return self._kept[1]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": None}  # a copy makes its own


def _has_numbers(tensor: Tensor) -> bool:
    """False for meta and fake tensors, inside a FakeTensorMode, and for tensors wrapped by torch.func."""
    plain = type(tensor) in (Tensor, nn.Parameter) and type(torch.empty(0)) is Tensor
    return plain and tensor.device.type != "meta" and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


class DAULinear(_DAU):
    """n units on vectors [..., d].

    Args:
        in_features: d, the numbers of a vector.
        out_features: n, the units.
        rank: r, the rows of B, which the units share: u_j - b_j lies in the span of the r columns of A_j.
        rescale: g as "sq" (‖w‖₂ < 1), "l2" (‖w‖₂ = 1) or "l1" (‖w‖₁ = 1), or a function α of the 2-norm,
            w = α(‖u‖) u. Where u = 0, w is 0.
        bias: Whether there is a b.
        recompute: Compute again in the backward pass what would otherwise be kept for it.

    Examples:
        >>> DAULinear(64, 10, rank=8)(torch.rand(2, 64)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int,
        rescale: Rescale = "sq",
        bias: bool = True,
        recompute: bool = False,
    ):
        check_whole(1, in_features=in_features, out_features=out_features, rank=rank)
        super().__init__(in_features, 1, out_features, rank, rescale, bias, recompute)
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x: Tensor, factor: Tensor | None = None) -> Tensor:
        return self.align(x, factor)[0]

    def align(self, x: Tensor, factor: Tensor | None = None) -> tuple[Tensor, DynamicWeights]:
        """The output [..., n], and the linear map that made it of x."""
        if x.ndim < 1 or x.shape[-1] != self.in_features:
            raise ValueError(f"input has shape {list(x.shape)}: the last dimension must be {self.in_features}")
        out, weights = self._align(x.reshape(-1, self.in_features, 1, 1), factor)
        return out.view(*x.shape[:-1], self.out_features), weights

    def pull(self, rows: Tensor, weights: DynamicWeights) -> Tensor:
        """Rows [*, K, n] over the output, for inputs [*, d], as rows [*, K, d] over the input."""
        flat = rows.reshape(-1, *rows.shape[-2:], 1, 1)
        return self._pull(flat, weights).reshape(*rows.shape[:-1], self.in_features)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, rank={self.rank}, rescale={self._rescaling.name}"


class DAUConv2d(_DAU):
    """n units at every position of images [N, C, H, W]: w_j(p)ᵀp for every patch p.

    Args:
        in_channels: C of the images.
        out_channels: n, the units, and so the channels of the output.
        rank: r, the rows of B, which the units share: u_j - b_j lies in the span of the r columns of A_j.
        kernel_size: k, the side of a patch.
        stride: Pixels from one patch to the next.
        padding: Zeros around the image; (k - 1) // 2 if not given.
        rescale: g as "sq" (‖w‖₂ < 1), "l2" (‖w‖₂ = 1) or "l1" (‖w‖₁ = 1), or a function α of the 2-norm,
            w = α(‖u‖) u. Where u = 0, w is 0.
        bias: Whether there is a b.
        recompute: Compute again in the backward pass what would otherwise be kept for it.

    Raises:
        ValueError: If a size is not a whole number of at least 1 (padding: 0), or the rescaling is unknown.

    Examples:
        >>> DAUConv2d(6, 16, rank=4, kernel_size=3)(torch.rand(2, 6, 32, 32)).shape
        torch.Size([2, 16, 32, 32])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        rank: int,
        kernel_size: int,
        stride: int = 1,
        padding: int | None = None,
        rescale: Rescale = "sq",
        bias: bool = True,
        recompute: bool = False,
    ):
        check_whole(
            1, in_channels=in_channels, out_channels=out_channels, rank=rank, kernel_size=kernel_size, stride=stride
        )
        padding = (kernel_size - 1) // 2 if padding is None else padding
        check_whole(0, padding=padding)
        super().__init__(in_channels, kernel_size, out_channels, rank, rescale, bias, recompute)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """(H', W') for an input of (H, W)."""
        sizes = tuple((side + 2 * self.padding - self.kernel_size) // self.stride + 1 for side in (height, width))
        if min(sizes) < 1:
            raise ValueError(
                f"an input of {height}x{width} is too small for a {self.kernel_size}x{self.kernel_size} kernel "
                f"with padding {self.padding}: give a larger one"
            )
        return sizes[0], sizes[1]

    def forward(self, x: Tensor, factor: Tensor | None = None) -> Tensor:
        return self.align(x, factor)[0]

    def align(
        self, x: Tensor, factor: Tensor | None = None, padding: int | None = None
    ) -> tuple[Tensor, DynamicWeights]:
        """The output [N, n, H', W'], and the linear map that made it of x.

        factor: `norm_factor()`, if it is at hand; if made without gradients, A has none through ‖u_j‖. padding: another
        one than the layer's, for a piece of a larger image; `pull` does not know of it and cannot be used then.
        """
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(f"input has shape {list(x.shape)}: it must be [N, {self.in_channels}, H, W]")
        if padding is None:
            self.output_size(x.shape[2], x.shape[3])  # an error if x is too small
        return self._align(x, factor, self.padding if padding is None else padding)

    def pull(self, rows: Tensor, weights: DynamicWeights) -> Tensor:
        """Rows [N, K, n, H', W'] over the output as rows [N, K, C, H, W] over the input."""
        if torch.compiler.is_compiling():  # whoever compiles limits K: `CoDANet.explain` does
            return self._pull(rows, weights)
        at_once = max(1, CHUNK_NUMBERS // max(1, weights.z.numel() * self.out_channels))
        return torch.cat([self._pull(part, weights) for part in rows.split(at_once, 1)], 1)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, rank={self.rank}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, rescale={self._rescaling.name}"
        )
