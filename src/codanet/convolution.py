"""conv2d whose filters' gradient is one matrix product over the patches, which on a CPU is faster than oneDNN's own.

On an AMD EPYC (AVX2, torch 2.13.0, one thread, best of 12), with the shapes of layers 2, 3, 4, 6 and 7 of a rank-1/8
S-CoDA at batch 16, 32x32, oneDNN took 7.4, 8.1, 12.7, 7.2 and 11.9 ms for it, and the product with its patches 7.1,
4.7, 9.1, 4.7 and 8.2. Elsewhere than on a CPU, and in forward mode, all is PyTorch's.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import conv2d, pad
from torch.nn.grad import conv2d_input


def convolution(x: Tensor, filters: Tensor, stride: int, padding: int) -> Tensor:
    """conv2d of x [N, C, H, W] and filters [M, C, k, k], to any order of derivatives."""
    forward_mode = forward_ad._current_level >= 0  # a Function with a rule for it (jvp) does not compile
    if x.device.type != "cpu" or not torch.is_grad_enabled() or forward_mode:
        return conv2d(x, filters, None, stride, padding)
    out: Tensor = _Convolution.apply(x, filters, stride, padding)
    return out


class _Convolution(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, filters: Tensor, stride: int, padding: int) -> Tensor:
        return conv2d(x, filters, None, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, filters, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, filters)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, filters = ctx.saved_tensors
        of_x = of_filters = None
        if ctx.needs_input_grad[0]:
            of_x = conv2d_input(x.shape, filters, gradient, ctx.stride, ctx.padding)
        if ctx.needs_input_grad[1]:
            rows = gradient.permute(0, 2, 3, 1).flatten(0, 2)  # [P, M]
            M, C, k, _ = filters.shape
            of_filters = (rows.t() @ _patches(x, k, ctx.stride, ctx.padding)).view(M, k, k, C).permute(0, 3, 1, 2)
        return of_x, of_filters, None, None


def _patches(x: Tensor, k: int, stride: int, padding: int) -> Tensor:
    """[P, k·k·C], in the order of the numbers in channels-last memory."""
    x = pad(x, [padding] * 4) if padding else x
    return x.unfold(2, k, stride).unfold(3, k, stride).permute(0, 2, 3, 4, 5, 1).flatten(0, 2).flatten(1)
