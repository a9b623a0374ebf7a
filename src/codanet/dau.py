"""Dynamic Alignment Units (sec. 3.1): DAU(x) = w(x)ᵀx with w(x) = g(A B x + b), in layers that share B."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .alignment import Alignment, Prepared, prepare
from .forms import Transpose, has_numbers
from .patches import fold, output_size, unfold
from .rescale import rescaling

Rescale = str | Callable[[Tensor], Tensor]
WEIGHT_NUMBERS = 2 << 20  # floats of weights w(x) made at a time where several rows are pulled back through them


class DynamicWeights(NamedTuple):
    """The linear map a layer made of one input, factored: w_j = scale_j Σ_r z_r Â_rj at every patch."""

    z: Tensor  # [P, R]
    scale: Tensor  # [P, n]
    shape: torch.Size  # of the layer's input
    output_shape: torch.Size


class _DAU(nn.Module):
    _prepared: Prepared | None = None  # of the parameters as they were when last used without gradients

    def __init__(self, size: int, units: int, rank: int, rescale: Rescale, bias: bool, recompute: bool):
        super().__init__()
        self.rank, self.rescale, self.recompute = rank, rescale, recompute
        self.has_bias = bias
        self._rescaling = rescaling(rescale)
        self.B = nn.Parameter(torch.empty(rank, size))
        self.A = nn.Parameter(torch.empty(rank + bias, units, size))  # the last row is the bias b
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As two plain PyTorch layers, B then A with b: uniform in ±1/√(inputs of the layer)."""
        nn.init.uniform_(self.B, -1 / math.sqrt(self.B.shape[1]), 1 / math.sqrt(self.B.shape[1]))
        nn.init.uniform_(self.A, -1 / math.sqrt(self.rank), 1 / math.sqrt(self.rank))

    @property
    def bias(self) -> Tensor | None:
        """b [units, d], a view of the last row of A."""
        return self.A[-1] if self.has_bias else None

    def _align(self, patches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The units' outputs [P, n], and the factors z [P, R] and scale [P, n] of their weights."""
        device = patches.device.type
        autocast = torch.is_autocast_enabled(device)
        patches = patches.to(torch.get_autocast_dtype(device) if autocast else self.A.dtype)
        keep = torch.is_grad_enabled() and not self.recompute
        with torch.autocast(device, enabled=False):  # products in low precision, norms never
            prepared = self._prepare(patches)
            out, z, scale, unit = Alignment.apply(patches, self.B, self.A, self._rescaling, keep, prepared)
            if self._rescaling.slope is None:  # the scale is still to be made, of norms
                scale = self._rescaling.scale(scale, unit)
                out = (out * scale).to(patches.dtype)
            return out, z, scale

    def _prepare(self, patches: Tensor) -> Prepared | None:
        """What is made of the parameters alone, kept while they stay the same and are not trained."""
        if not has_numbers(patches):
            return None
        held = self._prepared
        if torch.is_grad_enabled() or patches.dtype != self.A.dtype:
            held = None
        elif held is None or not held.is_of(self.B, self.A):
            matrix, factor = prepare(self.B, self.A, patches.dtype, self._rescaling.order, None)
            held = Prepared(matrix, replace(factor, gram=None))  # which only derivatives need
        self._prepared = held
        return held

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._prepared = None  # the parameters move
        return super()._apply(*args, **kwargs)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_prepared": None}  # a copy makes its own

    def _pull(self, rows: Tensor, z: Tensor, scale: Tensor) -> Tensor:
        """Σ_j t_j w_j: rows t [P, K, n] of a linear map behind this layer, pulled back before it, [P, K, d]."""
        with torch.autocast(rows.device.type, enabled=False):
            return self._pulled(rows.to(scale.dtype) * scale.unsqueeze(1), z, self.A.to(scale.dtype))

    @staticmethod
    def _pulled(factors: Tensor, z: Tensor, weight: Tensor) -> Tensor:
        if factors.shape[1] == 1 or torch.is_grad_enabled():
            pulled = [Transpose.apply(factors[:, k].contiguous(), z, weight) for k in range(factors.shape[1])]
            return _stacked(pulled)
        # for several rows the weights of a block of patches, made once, cost less than they save
        rank, units, size = weight.shape
        out = factors.new_empty(*factors.shape[:2], size)
        step = max(1, WEIGHT_NUMBERS // (units * size))
        for start in range(0, len(factors), step):
            block = slice(start, start + step)
            weights = (z[block] @ weight.view(rank, -1)).view(-1, units, size)
            out[block] = torch.bmm(factors[block], weights)
        return out


def _stacked(parts: list[Tensor]) -> Tensor:
    """Along a new second dimension; one alone is not copied."""
    return parts[0].unsqueeze(1) if len(parts) == 1 else torch.stack(parts, 1)


def _whole(least: int = 0, **sizes: int) -> None:
    for name, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} is {value!r}: it must be a whole number, {least} or more")


def _floating(x: Tensor) -> None:
    if not x.is_floating_point():
        raise ValueError(f"input is {x.dtype}: it must be floating point, so convert it with .float()")


def _positive(**sizes: int) -> None:
    _whole(1, **sizes)


class DAULinear(_DAU):
    """n units on vectors [..., d]."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int,
        rescale: Rescale = "sq",
        bias: bool = True,
        recompute: bool = False,
    ):
        _positive(in_features=in_features, out_features=out_features, rank=rank)
        super().__init__(in_features, out_features, rank, rescale, bias, recompute)
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x: Tensor) -> Tensor:
        return self.align(x)[0]

    def align(self, x: Tensor) -> tuple[Tensor, DynamicWeights]:
        """The output [..., n], and the linear map that made it of x."""
        if x.ndim < 1 or x.shape[-1] != self.in_features:
            raise ValueError(f"input has shape {list(x.shape)}: the last dimension must be {self.in_features}")
        _floating(x)
        out, z, scale = self._align(x.reshape(-1, self.in_features))
        out = out.view(*x.shape[:-1], self.out_features)
        return out, DynamicWeights(z, scale, x.shape, out.shape)

    def pull(self, rows: Tensor, weights: DynamicWeights) -> Tensor:
        """Rows [*, K, n] over the output, for inputs [*, d], as rows [*, K, d] over the input."""
        flat = rows.reshape(-1, *rows.shape[-2:])
        return self._pull(flat, weights.z, weights.scale).view(*rows.shape[:-1], self.in_features)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, rank={self.rank}, rescale={self._rescaling.name}"


class DAUConv2d(_DAU):
    """n units at every position of images [N, C, H, W]: w_j(p)ᵀp for every patch p (the paper's Algorithm 1)."""

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
        _positive(in_channels=in_channels, out_channels=out_channels, rank=rank, kernel_size=kernel_size, stride=stride)
        padding = (kernel_size - 1) // 2 if padding is None else padding
        _whole(padding=padding)
        super().__init__(in_channels * kernel_size**2, out_channels, rank, rescale, bias, recompute)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        sizes = tuple(output_size(size, self.kernel_size, self.stride, self.padding) for size in (height, width))
        if min(sizes) < 1:
            raise ValueError(
                f"an input of {height}x{width} is too small for a {self.kernel_size}x{self.kernel_size} kernel "
                f"with padding {self.padding}: give a larger one"
            )
        return sizes[0], sizes[1]

    def forward(self, x: Tensor) -> Tensor:
        return self.align(x)[0]

    def align(self, x: Tensor) -> tuple[Tensor, DynamicWeights]:
        """The output [N, n, H', W'], and the linear map that made it of x."""
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(f"input has shape {list(x.shape)}: it must be [N, {self.in_channels}, H, W]")
        _floating(x)
        height, width = self.output_size(x.shape[2], x.shape[3])
        patches = unfold(x.permute(0, 2, 3, 1), self.kernel_size, self.stride, self.padding)
        out, z, scale = self._align(patches)
        out = out.view(len(x), height, width, self.out_channels).permute(0, 3, 1, 2)
        return out, DynamicWeights(z, scale, x.shape, out.shape)

    def pull(self, rows: Tensor, weights: DynamicWeights) -> Tensor:
        """Rows [N, K, n, H', W'] over the output as rows [N, K, C, H, W] over the input."""
        number, targets = rows.shape[:2]
        flat = rows.permute(0, 3, 4, 1, 2).reshape(-1, targets, self.out_channels)
        pulled = self._pull(flat, weights.z, weights.scale)  # [N·H'·W', K, d]
        _, channels, height, width = weights.shape
        images = []
        for k in range(targets):
            shape = torch.Size((number, height, width, channels))
            images.append(fold(pulled[:, k].contiguous(), shape, self.kernel_size, self.stride, self.padding))
        return _stacked(images).permute(0, 1, 4, 2, 3)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, rank={self.rank}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, rescale={self._rescaling.name}"
        )
