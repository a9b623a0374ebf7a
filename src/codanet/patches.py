"""Patches of an image as rows of a matrix, and their sum back into an image: each is the other's transpose.

Images are [N, H, W, C] here, channels last, so that a patch (kernel row, kernel column, channel) is copied in runs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad


def output_size(size: int, kernel: int, stride: int, padding: int) -> int:
    return (size + 2 * padding - kernel) // stride + 1


def _unfold(images: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """[N, H, W, C] to [N·H'·W', k·k·C]."""
    if kernel == 1 and stride == 1 and padding == 0:
        return images.reshape(-1, images.shape[-1])
    padded = pad(images, (0, 0, padding, padding, padding, padding)) if padding else images
    windows = padded.unfold(1, kernel, stride).unfold(2, kernel, stride)  # [N, H', W', C, k, k]
    return windows.permute(0, 1, 2, 4, 5, 3).reshape(-1, kernel * kernel * images.shape[-1])


def _fold(patches: Tensor, shape: tuple[int, ...], kernel: int, stride: int, padding: int) -> Tensor:
    """[N·H'·W', k·k·C] to [N, H, W, C], overlapping patches added up."""
    if kernel == 1 and stride == 1 and padding == 0:
        return patches.reshape(shape)
    number, height, width, channels = shape
    rows, columns = (output_size(size, kernel, stride, padding) for size in (height, width))
    windows = patches.view(number, rows, columns, kernel, kernel, channels)
    out = patches.new_zeros(number, height + 2 * padding, width + 2 * padding, channels)
    for i in range(kernel):
        for j in range(kernel):
            out[:, i : i + stride * rows : stride, j : j + stride * columns : stride] += windows[:, :, :, i, j]
    return out[:, padding : padding + height, padding : padding + width]


class Unfold(Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
        ctx.shape, ctx.geometry = images.shape, (kernel, stride, padding)
        return _unfold(images, kernel, stride, padding)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return Fold.apply(grad, ctx.shape, *ctx.geometry), None, None, None


class Fold(Function):
    @staticmethod
    def forward(ctx: Any, patches: Tensor, shape: tuple[int, ...], kernel: int, stride: int, padding: int) -> Tensor:
        ctx.geometry = (kernel, stride, padding)
        return _fold(patches, shape, kernel, stride, padding)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return Unfold.apply(grad, *ctx.geometry), None, None, None, None


def unfold(images: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    return Unfold.apply(images, kernel, stride, padding)


def fold(patches: Tensor, shape: torch.Size, kernel: int, stride: int, padding: int) -> Tensor:
    return Fold.apply(patches, shape, kernel, stride, padding)
