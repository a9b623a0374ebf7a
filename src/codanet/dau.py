"""Dynamic Alignment Units (sec. 3.1): DAU(p) = w(p)ᵀp with w(p) = g(A B p + b), in layers whose units share B.

Algorithm 1 of the paper makes the weights w(p): n·d numbers at every patch p, for n units and d = C·k² inputs. Only the
1-norm needs them. Let Â_j = [A_j, b_j] be d x R, with R = r + 1 (r without b), Â_ij its column i (in code A[i, j]), and
z = [B p, 1]. The unscaled weight of unit j is u_j = Â_j z = Σ_i z_i Â_ij, and

    u_jᵀp = Σ_i z_i (Â_ijᵀp)                      a convolution with the R·n filters Â, one with the r of B, a short sum
    ‖u_j‖ = ‖L_jᵀz‖  with  L_j L_jᵀ = Â_jᵀÂ_j     L is of the parameters alone: one small matrix product
    Σ_j t_j w_j = Σ_ij (z_i t_j scale_j) Â_ij      rows t pulled back through the layer: the transposed convolution

with w_j = scale_j u_j. In Algorithm 1's terms, `dim_reduction` gives z and `act_func` gives scale; to unfold, multiply
and sum becomes the convolution with Â and the sum over i; `weightings` is never evaluated. To keep squares in range, z
is divided by its largest |z_i| and L_j by a size s_j (rescale.py), so in code scale_j = max_i |z_i| · α(‖u_j‖).

All of it is plain PyTorch, so autograd, torch.func, torch.compile and torch.export work. Â and B are two convolutions,
not one: the gradients of y and z would have to be joined for it, a fifth of the time of a compiled training step.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d
from torch.utils.checkpoint import checkpoint

from ._support.numbers import check_whole
from .rescale import NormFactor, Rescale, Rescaling, norm_factor, rescaling

CHUNK_NUMBERS = 16 << 20  # the most floats z_i t_j scale_j that a pull holds at a time


class DynamicWeights(NamedTuple):
    """The linear map a layer made of one input, factored: w_j = scale_j Σ_i z_i Â_ij at every position."""

    z: Tensor  # [P, R], for the P = N·H'·W' patches: [B p, 1] / max_i |z_i|
    scale: Tensor  # [P, n]: max_i |z_i| · α(‖u_j‖)
    shape: torch.Size  # the layer's input, [N, C, H, W]


class _DAU(nn.Module):
    """The parameters of a layer, Â (as A, with b its last row) and B, and what it computes of images [N, C, H, W]."""

    stride, padding = 1, 0

    def __init__(
        self, channels: int, kernel: int, units: int, rank: int, rescale: Rescale, bias: bool, recompute: bool
    ):
        super().__init__()
        self.rank, self.rescale, self.recompute, self.has_bias = rank, rescale, recompute, bias
        self._rescaling: Rescaling = rescaling(rescale)
        self._patch = (kernel, kernel, channels)  # the order of a patch's d numbers: channels last, unlike unfold's
        self._kept: tuple[Tensor, NormFactor] | None = None
        d = channels * kernel**2
        self.B = nn.Parameter(torch.empty(rank, d))
        self.A = nn.Parameter(torch.empty(rank + bias, units, d))  # Â: A[i, j] is column i of Â_j, A[-1] is b
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As two plain PyTorch layers, B then A with b: uniform in ±1/√(inputs of the layer)."""
        nn.init.uniform_(self.B, -1 / math.sqrt(self.B.shape[1]), 1 / math.sqrt(self.B.shape[1]))
        nn.init.uniform_(self.A, -1 / math.sqrt(self.rank), 1 / math.sqrt(self.rank))

    @property
    def bias(self) -> Tensor | None:
        """b [units, d], a view of the last row of A."""
        return self.A[-1] if self.has_bias else None

    def norm_factor(self) -> NormFactor:
        """What the norms need of A. Without gradients or tracing it is kept until A changes, in any number."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not _has_numbers(self.A):
            return norm_factor(self.A, self._rescaling.order)
        if self._kept is None or not _same(self._kept[0], self.A):
            with torch.inference_mode(False), torch.no_grad():  # so that it serves outside of inference mode as well
                self._kept = (self.A.detach().clone(), norm_factor(self.A, self._rescaling.order))
        return self._kept[1]

    def _align(self, x: Tensor, factor: NormFactor | None, padding: int = 0) -> tuple[Tensor, DynamicWeights]:
        """The outputs [N, n, H', W'] for images x [N, C, H, W], and the weights that made them."""
        if not x.is_floating_point():
            raise ValueError(f"input is {x.dtype}: it must be floating point, so convert it with .float()")
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.A.dtype
        # float16 ends at 65504, which sums of aligned numbers pass: weights kept in it are computed with in float32
        dtype = torch.float32 if dtype == torch.float16 else dtype
        arguments = (x.to(dtype), *(self.norm_factor() if factor is None else factor), padding)
        with torch.autocast(device, enabled=False):  # convolutions in low precision, norms and sums over i never
            if self.recompute and torch.is_grad_enabled():
                out, z, scale = checkpoint(self._compute, *arguments, use_reentrant=False)
            else:
                out, z, scale = self._compute(*arguments)
        return out, DynamicWeights(z, scale, x.shape)

    def _compute(self, x: Tensor, F: Tensor, size: Tensor, padding: int) -> tuple[Tensor, Tensor, Tensor]:
        """The equations at the head of this file: the outputs w_jᵀp, and z and scale, of which the weights are made."""
        R, n, _ = self.A.shape
        y = conv2d(x, self._filters(self.A.flatten(0, 1), x.dtype), None, self.stride, padding)  # Â_ijᵀp [N, R·n, h, w]
        N, _, h, w = y.shape
        y = y.permute(0, 2, 3, 1).reshape(-1, R, n).to(F.dtype)  # [P, R, n], a view: such filters give channels last
        z = conv2d(x, self._filters(self.B, x.dtype), None, self.stride, padding)  # B p, [N, r, h, w]
        z = z.permute(0, 2, 3, 1).reshape(-1, self.rank).to(F.dtype)
        if self.has_bias:
            z = torch.cat([z, torch.ones_like(z[:, :1])], 1)
        # max_i |z_i|, [P, 1]; detached, since scale z does not depend on it; at least 2⁻¹⁰⁰, against 0 / 0
        largest = z.detach().abs().amax(1, keepdim=True).clamp(min=2.0**-100)
        z = z / largest

        v = (z @ F.flatten(1)).view(-1, *F.shape[1:])  # F_jᵀz, [P, m, n]; F_j = L_j / s_j, or Â_jᵀ / s_j for the 1-norm
        power = v.abs().sum(1) if self._rescaling.order == 1 else (v * v).sum(1)
        nonzero = power > 0  # where u_j = 0, scale is 0 by definition
        power = torch.where(nonzero, power, 1.0)  # the derivative of √ at 0 is infinite
        norm = power if self._rescaling.order == 1 else power.sqrt()  # ‖u_j‖ / S_j, with S_j = largest s_j
        # S_j α(‖u_j‖) / s_j = largest α(‖u_j‖), [P, n]: z is divided by largest, but Â, unlike F, not by s_j
        scale = torch.where(nonzero, self._rescaling.scale(norm, largest * size), 0.0) / size

        out = scale * (y * z.unsqueeze(2)).sum(1)  # w_jᵀp
        return out.to(x.dtype).view(N, h, w, n).permute(0, 3, 1, 2), z, scale

    def _pull(self, rows: Tensor, weights: DynamicWeights) -> Tensor:
        """Wᵀt: rows [N, K, n, h, w] over the output, K for each image, as rows [N, K, C, H, W] over the input."""
        z, scale, shape = weights
        N, K, n, h, w = rows.shape
        R = z.shape[1]
        with torch.autocast(rows.device.type, enabled=False):
            t = rows.permute(0, 1, 3, 4, 2).to(scale.dtype) * scale.view(N, 1, h, w, n)
            t = z.view(N, 1, h, w, R, 1) * t.unsqueeze(4)  # z_i t_j scale_j; where patches overlap, they add up
            t = t.reshape(N * K, h, w, R * n).permute(0, 3, 1, 2)
            # a stride may leave rows and columns at the end that no patch reached
            rest = [shape[i] - (t.shape[i] - 1) * self.stride + 2 * self.padding - self._patch[0] for i in (2, 3)]
            filters = self._filters(self.A.flatten(0, 1), t.dtype)
            pulled = conv_transpose2d(t, filters, None, self.stride, self.padding, rest)
            return pulled.view(N, K, *shape[1:])

    def _filters(self, vectors: Tensor, dtype: torch.dtype) -> Tensor:
        """Vectors of d numbers as the filters [·, C, k, k] of a convolution."""
        return vectors.to(dtype).view(-1, *self._patch).permute(0, 3, 1, 2)

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
            w = α(‖u‖) u. Where u = 0, w and its gradient are 0.
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

    def forward(self, x: Tensor, factor: NormFactor | None = None) -> Tensor:
        return self.align(x, factor)[0]

    def align(self, x: Tensor, factor: NormFactor | None = None) -> tuple[Tensor, DynamicWeights]:
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
            w = α(‖u‖) u. Where u = 0, w and its gradient are 0.
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

    def forward(self, x: Tensor, factor: NormFactor | None = None) -> Tensor:
        return self.align(x, factor)[0]

    def align(
        self, x: Tensor, factor: NormFactor | None = None, padding: int | None = None
    ) -> tuple[Tensor, DynamicWeights]:
        """The output [N, n, H', W'], and the linear map that made it of x.

        factor: `norm_factor()` of A as it is, if at hand; made without gradients, it counts as a constant. padding:
        another one than the layer's, for a piece cut out of a map; `pull` does not know of it and cannot be used then.
        """
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(f"input has shape {list(x.shape)}: it must be [N, {self.in_channels}, H, W]")
        if padding is None:
            self.output_size(x.shape[2], x.shape[3])
        return self._align(x, factor, self.padding if padding is None else padding)

    def pull(self, rows: Tensor, weights: DynamicWeights) -> Tensor:
        """Rows [N, K, n, H', W'] over the output as rows [N, K, C, H, W] over the input."""
        if torch.compiler.is_compiling():  # whoever compiles has bounded the rows: `CoDANet.explain` does
            return self._pull(rows, weights)
        at_once = max(1, CHUNK_NUMBERS // max(1, weights.z.numel() * self.out_channels))
        return torch.cat([self._pull(part, weights) for part in rows.split(at_once, 1)], 1)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, rank={self.rank}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, rescale={self._rescaling.name}"
        )
