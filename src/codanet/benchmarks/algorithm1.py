"""The paper's Algorithm 1: Dynamic Alignment layers with their weights materialised.

Plain on purpose: the tests compare every fast path of codanet with this file, and the benchmark measures against it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rescaled(weights: Tensor, dim: int, alpha: Callable[[Tensor], Tensor], order: int = 2) -> Tensor:
    """g(u) = α(‖u‖) u along `dim`; a zero vector stays zero, and so does its gradient, whatever α(0) is."""
    norm = torch.linalg.vector_norm(weights, ord=order, dim=dim, keepdim=True)
    zero = norm == 0
    return weights * alpha(norm.masked_fill(zero, 1.0)).masked_fill(zero, 0.0)


def SQ(weights: Tensor, dim: int) -> Tensor:
    """SQ(u) = u/‖u‖ · ‖u‖²/(1 + ‖u‖²)   (eq. 2)"""
    return rescaled(weights, dim, lambda norm: norm / (1 + norm * norm))


def L2(weights: Tensor, dim: int) -> Tensor:
    """L2(u) = u/‖u‖   (eq. 2)"""
    return rescaled(weights, dim, torch.reciprocal)


def L1(weights: Tensor, dim: int) -> Tensor:
    """L1(u) = u/‖u‖₁"""
    return rescaled(weights, dim, torch.reciprocal, order=1)


ActFunc = Callable[[Tensor, int], Tensor]
ACT_FUNCS: dict[str, ActFunc] = {"sq": SQ, "l2": L2, "l1": L1}


def act_func_of(rescale: str | Callable[[Tensor], Tensor]) -> ActFunc:
    """The non-linearity of a codanet layer: a name, or α as a function of the norm."""
    if isinstance(rescale, str):
        return ACT_FUNCS[rescale]
    return lambda weights, dim: rescaled(weights, dim, rescale)


class Algorithm1Conv2d(nn.Module):
    """Algorithm 1, `DAUConv2d` in the paper."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        rank: int,
        kernel_size: int,
        stride: int,
        padding: int,
        act_func: ActFunc = SQ,
        bias: bool = True,
    ) -> None:
        super().__init__()
        # B
        self.dim_reduction = nn.Conv2d(in_channels, rank, kernel_size, stride, padding, bias=False)
        # d, in the order of F.unfold: (channel, kernel row, kernel column)
        self.patch_dim = in_channels * kernel_size * kernel_size
        # A and b
        self.weightings = nn.Conv2d(rank, out_channels * self.patch_dim, kernel_size=1, bias=bias)
        self.act_func = act_func
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.rank = rank
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding

    def dynamic_weights(self, in_tensor: Tensor) -> Tensor:
        """w(p) = g(A B p + b) for every patch p and unit: [N, patch_dim, units, h, w]."""
        reduced = self.dim_reduction(in_tensor)  # [N, rank, h, w]
        h, w = reduced.shape[-2:]
        weights = self.weightings(reduced)
        weights = weights.view(in_tensor.shape[0], self.patch_dim, self.out_channels, h, w)
        return self.act_func(weights, 1)

    def apply_weights(self, in_tensor: Tensor, weights: Tensor) -> Tensor:
        """w(p)·p for every patch p and unit: [N, units, h, w]."""
        h, w = weights.shape[-2:]
        patches = F.unfold(in_tensor, self.kernel_size, padding=self.padding, stride=self.stride)
        patches = patches.view(in_tensor.shape[0], self.patch_dim, 1, h, w)
        return (patches * weights).sum(1)

    def forward(self, in_tensor: Tensor) -> Tensor:
        return self.apply_weights(in_tensor, self.dynamic_weights(in_tensor))

    @torch.no_grad()
    def dynamic_matrix(self, in_tensor: Tensor) -> Tensor:
        """W(x) with output = W(x) x: [N, units·h·w, C·H·W], dense, so for small shapes only."""
        weights = self.dynamic_weights(in_tensor)
        n, d, units, h, w = weights.shape
        columns = in_tensor[0].numel()
        # The input column that each patch entry reads, [h·w, d]; 0 stands for padding and is dropped at the end.
        number = torch.arange(1, columns + 1, dtype=torch.float64, device=in_tensor.device).view_as(in_tensor[:1])
        index = F.unfold(number, self.kernel_size, padding=self.padding, stride=self.stride)[0].T.long()
        matrix = weights.new_zeros(n, units, h * w, columns + 1)
        matrix.scatter_(3, index.expand(n, units, h * w, d), weights.flatten(3).permute(0, 2, 3, 1))
        return matrix[..., 1:].reshape(n, units * h * w, columns)

    @classmethod
    def from_model(cls, layer: Any) -> Algorithm1Conv2d:
        """A copy of a `codanet.DAUConv2d`: same function, same parameters in Algorithm 1's layout."""
        rank, k, channels, units = layer.rank, layer.kernel_size, layer.in_channels, layer.out_channels
        has_bias = layer.A.shape[0] > rank
        act_func = act_func_of(layer.rescale)
        copy = cls(channels, units, rank, k, layer.stride, layer.padding, act_func, has_bias).to(layer.A)
        a = layer.A.detach().view(-1, units, k, k, channels).permute(4, 2, 3, 1, 0)  # [C, k, k, units, rank (+ 1)]
        a = a.reshape(channels * k * k * units, -1)
        with torch.no_grad():
            copy.dim_reduction.weight.copy_(layer.B.detach().view(rank, k, k, channels).permute(0, 3, 1, 2))
            copy.weightings.weight.copy_(a[:, :rank, None, None])
            if copy.weightings.bias is not None:
                copy.weightings.bias.copy_(a[:, rank])
        return copy

    def to_factors(self, dim_reduction: Tensor, weightings: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Parameters, or their gradients, in the layout of codanet's B [r, d] and A [r (+ 1), units, d]."""
        k, channels, units = self.kernel_size, self.in_channels, self.out_channels
        b = dim_reduction.permute(0, 2, 3, 1).reshape(self.rank, -1)
        a = weightings.flatten(1) if bias is None else torch.cat([weightings.flatten(1), bias[:, None]], dim=1)
        a = a.view(channels, k, k, units, -1).permute(4, 3, 1, 2, 0)
        return b, a.reshape(-1, units, self.patch_dim)

    def factor_gradients(self) -> tuple[Tensor, Tensor]:
        """The gradients of this layer in the layout of codanet's B and A."""
        b, a, bias = self.dim_reduction.weight, self.weightings.weight, self.weightings.bias
        if b.grad is None or a.grad is None:
            raise ValueError("the layer has no gradients yet: call backward() on a function of its output first")
        return self.to_factors(b.grad, a.grad, None if bias is None else bias.grad)


class Algorithm1Explanation(NamedTuple):
    logits: Tensor  # [N, classes]
    targets: Tensor  # [N]
    rows: Tensor  # the targets' rows of W(x) / T, [N, C, H, W]
    contributions: Tensor  # rows ⊙ encoded input; sums to logit - b0


class Algorithm1Net(nn.Module):
    """A CoDA-Net of Algorithm 1 layers: [x, 1-x] → layers → sum-pool → /T + b0."""

    layer: type[Algorithm1Conv2d] = Algorithm1Conv2d

    def __init__(self, layers: list[Algorithm1Conv2d], temperature: float, logit_bias: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.temperature = temperature
        self.logit_bias = logit_bias

    @classmethod
    def from_model(cls, model: Any) -> Algorithm1Net:
        """A copy of a `codanet.CoDANet`."""
        layers = [cls.layer.from_model(layer) for layer in model.layers]
        return cls(layers, model.temperature, model.logit_bias)

    def encode(self, images: Tensor) -> Tensor:
        """[x, 1-x]; images that already have the first layer's channels pass unchanged."""
        if images.shape[1] == self.layers[0].in_channels:
            return images
        return torch.cat([images, 1 - images], dim=1)

    def to_logits(self, last_map: Tensor) -> Tensor:
        return last_map.sum((2, 3)) / self.temperature + self.logit_bias

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.encode(images)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.to_logits(hidden)

    def explain(self, images: Tensor, target: int | Tensor | None = None) -> Algorithm1Explanation:
        """Rows of W(x) as gradients: with the dynamic weights held fixed, each logit is linear in the encoded input.

        `target` is one class, one per image, or the predicted class.
        """
        encoded = self.encode(images.detach()).requires_grad_()
        with torch.enable_grad():
            hidden = encoded
            for layer in self.layers:
                assert isinstance(layer, Algorithm1Conv2d)
                with torch.no_grad():
                    weights = layer.dynamic_weights(hidden)
                hidden = layer.apply_weights(hidden, weights)
            logits = self.to_logits(hidden)
            if target is None:
                targets = logits.argmax(1)
            else:
                targets = torch.as_tensor(target, device=logits.device).expand(len(logits))
            chosen = logits.gather(1, targets[:, None]).sum()
            (rows,) = torch.autograd.grad(chosen, encoded)
        encoded = encoded.detach()
        return Algorithm1Explanation(logits.detach(), targets, rows, rows * encoded)
