"""What a changed window of an image does to the logits, computed only as far as it reaches.

The window changes a box of the first layer's map, this a larger box of the second's, and so on. Each layer is computed
on its box alone, the surroundings taken from the unchanged image. That is exact: a position outside the box sees no
changed input. (Incremental inference for occlusion: Nakandala, Kumar and Papakonstantinou, SIGMOD 2019.)

Maps are [H, W, C] here, channels last, so that a position is copied in one run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.nn.utils.fusion import fuse_conv_bn_weights

from codanet.dau import DAUConv2d
from codanet.models.hybrid import HybridNet
from codanet.models.network import CoDANet
from codanet.models.peers import ResNetPeer
from codanet.models.resnet import BasicBlock, ResNet

LayerFunction = Callable[[Tensor, int], Tensor]  # [P, h, w, C] and how much to pad it, to [P, h', w', C']


class Boxes(NamedTuple):
    """Other values for a box of a map, in each of P variants of it."""

    values: Tensor  # [P, h, w, C]
    top: Tensor  # [P]
    left: Tensor  # [P]

    @property
    def size(self) -> tuple[int, int]:
        return self.values.shape[1], self.values.shape[2]


class Geometry(NamedTuple):
    """Of a layer, along one side."""

    kernel: int
    stride: int = 1
    padding: int = 0

    def reached(self, start: Tensor, size: int, extent: int) -> tuple[Tensor, int]:
        """Which outputs, of `extent`, see any of `size` places from `start` on: the first, and how many."""
        number = min((size + self.kernel - 2) // self.stride + 1, extent)
        first = -((self.kernel - 1 - self.padding - start) // self.stride)  # rounded up
        return first.clamp(0, extent - number), number

    def seen(self, first: Tensor, number: int) -> tuple[Tensor, int]:
        """Which places `number` outputs from `first` on see; some may be padding."""
        return first * self.stride - self.padding, (number - 1) * self.stride + self.kernel


class Local(Protocol):
    """A network layer by layer."""

    def maps(self, image: Tensor) -> list[Tensor]:
        """All maps [H, W, C] of an image [C, H, W], itself the first."""

    def change(self, maps: list[Tensor], boxes: Boxes) -> Tensor:
        """[P, classes]: by how much the logits change with boxes of the image."""


def local_network(model: nn.Module, inputs: Tensor) -> Local | None:
    """None for a network whose layers are not known here, or that has hooks, which would not be called.

    A hybrid is known where its inputs are features: the layers on them are those of a CoDA-Net.
    """
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return None
    if type(model) is CoDANet or (type(model) is HybridNet and inputs.shape[1] == model.encoded_channels):
        return LocalCoDANet(model)
    inner = model.network if type(model) is ResNetPeer else model
    return LocalResNet(inner) if type(inner) is ResNet else None


class LocalCoDANet:
    def __init__(self, model: CoDANet):
        self.model = model

    def maps(self, image: Tensor) -> list[Tensor]:
        maps = [self.model.encode(image[None])]
        for unit in self.model.dau_layers:
            maps.append(unit(maps[-1]))
        return [_channels_last(each) for each in maps]

    def change(self, maps: list[Tensor], boxes: Boxes) -> Tensor:
        if boxes.values.shape[3] == self.model.image_channels:
            boxes = boxes._replace(values=torch.cat([boxes.values, 1 - boxes.values], 3))
        for unit, before, after in zip(self.model.dau_layers, maps, maps[1:], strict=False):
            geometry = Geometry(unit.kernel_size, unit.stride, unit.padding)
            boxes = follow(before, boxes, after.shape, geometry, _dau(unit))
        return change(maps[-1], boxes) / self.model.temperature


def _dau(unit: DAUConv2d) -> LayerFunction:
    factor = unit.norm_factor()

    def layer(x: Tensor, padding: int) -> Tensor:
        return unit.align(x.permute(0, 3, 1, 2), factor, padding)[0].permute(0, 2, 3, 1)

    return layer


class LocalResNet:
    """With every normalisation taken into the convolution before it."""

    def __init__(self, model: ResNet):
        self.model = model
        self.blocks = [
            cast(BasicBlock, block) for stage in (model.layer1, model.layer2, model.layer3) for block in stage
        ]
        self.first = _convolution(model.conv1, model.bn1, relu=True)
        self.pairs = [
            (_convolution(block.conv1, block.bn1, relu=True), _convolution(block.conv2, block.bn2, relu=False))
            for block in self.blocks
        ]

    def maps(self, image: Tensor) -> list[Tensor]:
        """The normalised image, and the maps behind every convolution."""
        out = (image[None] - self.model.mean) / self.model.std
        maps = [out]
        maps.append(out := self.model.relu(self.model.bn1(self.model.conv1(out))))
        for block in self.blocks:
            maps.append(block.relu1(block.bn1(block.conv1(out))))
            maps.append(out := block(out))
        return [_channels_last(each) for each in maps]

    def change(self, maps: list[Tensor], boxes: Boxes) -> Tensor:
        mean, std = self.model.mean.flatten(), self.model.std.flatten()
        boxes = boxes._replace(values=(boxes.values - mean) / std)
        boxes = follow(maps[0], boxes, maps[1].shape, Geometry(3, 1, 1), self.first)
        for index, (block, (first, second)) in enumerate(zip(self.blocks, self.pairs, strict=True)):
            before, between, after = maps[2 * index + 1 : 2 * index + 4]
            inner = follow(before, boxes, between.shape, Geometry(3, block.stride, 1), first)
            outer = follow(between, inner, after.shape, Geometry(3, 1, 1), second)
            (top, rows), (left, columns) = (
                Geometry(1, block.stride).seen(start, size)
                for start, size in zip((outer.top, outer.left), outer.size, strict=True)
            )
            past = crop(before, boxes, top, left, (rows, columns)).permute(0, 3, 1, 2)
            boxes = outer._replace(values=outer.values.add_(block.shortcut(past).permute(0, 2, 3, 1)).relu_())
        pooled = change(maps[-1], boxes) / (maps[-1].shape[0] * maps[-1].shape[1])
        return pooled @ self.model.linear.weight.T


def _convolution(convolution: nn.Conv2d, norm: nn.BatchNorm2d, relu: bool) -> LayerFunction:
    """norm(convolution(x)) with the running statistics, as one convolution."""
    mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
    fused, bias = fuse_conv_bn_weights(
        convolution.weight, convolution.bias, mean, variance, norm.eps, norm.weight, norm.bias
    )
    weight = fused.contiguous(memory_format=torch.channels_last)
    stride = convolution.stride

    def layer(x: Tensor, padding: int) -> Tensor:
        out = conv2d(x.permute(0, 3, 1, 2), weight, bias, stride, padding)
        return (out.relu_() if relu else out).permute(0, 2, 3, 1)

    return layer


def follow(unchanged: Tensor, boxes: Boxes, extent: tuple[int, ...], geometry: Geometry, layer: LayerFunction) -> Boxes:
    """The box of a layer's output, on a map of `extent`, that boxes of its input change."""
    if boxes.size == unchanged.shape[:2]:
        out = layer(boxes.values, geometry.padding)
        return Boxes(out, torch.zeros_like(boxes.top), torch.zeros_like(boxes.left))
    top, height = geometry.reached(boxes.top, boxes.size[0], extent[0])
    left, width = geometry.reached(boxes.left, boxes.size[1], extent[1])
    (row, rows), (column, columns) = geometry.seen(top, height), geometry.seen(left, width)
    return Boxes(layer(crop(unchanged, boxes, row, column, (rows, columns)), 0), top, left)


def crop(unchanged: Tensor, boxes: Boxes, top: Tensor, left: Tensor, size: tuple[int, int]) -> Tensor:
    """[P, h, w, C] of the changed map from (top, left) on, zero outside it."""
    height, width, channels = unchanged.shape
    if boxes.size == size == (height, width):
        return boxes.values
    rows, in_box_rows, no_rows = _places(top, size[0], height, boxes.top, boxes.size[0])
    columns, in_box_columns, no_columns = _places(left, size[1], width, boxes.left, boxes.size[1])
    box = (
        torch.arange(len(top), device=top.device)[:, None] * boxes.size[0] + in_box_rows
    )  # its rows, one below the other
    index = torch.where(
        (in_box_rows >= 0)[:, :, None] & (in_box_columns >= 0)[:, None],
        height * width + 1 + (box * boxes.size[1])[:, :, None] + in_box_columns[:, None],
        (rows * width)[:, :, None] + columns[:, None],
    )
    index = index.masked_fill(no_rows[:, :, None] | no_columns[:, None], height * width)
    zero = unchanged.new_zeros(1, channels)
    table = torch.cat([unchanged.flatten(0, 1), zero, boxes.values.reshape(-1, channels)])
    return table.index_select(0, index.flatten()).view(*index.shape, channels)


def _places(start: Tensor, number: int, extent: int, first: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """[P, number] along one side: the place in the map, in the box or -1, and whether it is outside the map."""
    place = start[:, None] + torch.arange(number, device=start.device)
    within = place - first[:, None]
    within = within.masked_fill((within < 0) | (within >= size), -1)
    return place, within, (place < 0) | (place >= extent)


def change(unchanged: Tensor, boxes: Boxes) -> Tensor:
    """[P, C]: by how much the sum over the map changes."""
    if boxes.size == unchanged.shape[:2]:
        return (boxes.values - unchanged).sum((1, 2))
    nothing = Boxes(boxes.values[:, :0], boxes.top, boxes.left)
    return (boxes.values - crop(unchanged, nothing, boxes.top, boxes.left, boxes.size)).sum((1, 2))


def _channels_last(maps: Tensor) -> Tensor:
    """[1, C, H, W] to [H, W, C]."""
    return maps[0].permute(1, 2, 0).contiguous()
