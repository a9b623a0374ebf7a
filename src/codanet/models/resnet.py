"""ResNet-20/32/44/56 for CIFAR (He et al. 2016, section 4.2): the baseline of the paper's comparisons.

Takes RGB images in [0, 1] like a CoDA-Net; the mean and standard deviation are part of the module. Every activation is
a module of its own, as DeepLIFT needs it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._support.download import cache_root, fetch
from .._support.errors import NetworkError
from .._support.files import file_digest

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

# The networks that the paper's supplement compares with; a file's name ends in the first digits of its sha256.
ADDRESS = "https://github.com/akamaster/pytorch_resnet_cifar10/raw/master/pretrained_models/{}.th"
OFFICIAL = {20: "resnet20-12fca82f", 32: "resnet32-d509ac18", 44: "resnet44-014dd654", 56: "resnet56-4bfd9763"}

Weights = str | os.PathLike[str] | None


class BasicBlock(nn.Module):
    """relu(x + bn(conv(relu(bn(conv(x))))))"""

    def __init__(self, in_planes: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.stride = stride
        self.new_planes = planes - in_planes

    def shortcut(self, x: Tensor) -> Tensor:
        """Option A: the identity, subsampled, with zeros for the new planes, half of them on either side."""
        if self.stride == 1 and self.new_planes == 0:
            return x
        before = self.new_planes // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new_planes - before))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """6n + 2 layers: a convolution, three stages of n blocks with 16, 32, 64 planes, mean-pooling, a linear layer."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        blocks: int,
        num_classes: int = 10,
        mean: tuple[float, ...] = MEAN,
        std: tuple[float, ...] = STD,
    ) -> None:
        super().__init__()
        if blocks < 1 or num_classes < 1:
            raise ValueError(f"blocks and num_classes must be at least 1, not {blocks} and {num_classes}")
        for name, values in (("mean", mean), ("std", std)):
            # made on the CPU even where the network is made on "meta" to be given its weights, which have none of these
            self.register_buffer(name, torch.tensor(values, device="cpu").view(1, 3, 1, 1), persistent=False)
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.layer1 = self._stage(16, 16, blocks, stride=1)
        self.layer2 = self._stage(16, 32, blocks, stride=2)
        self.layer3 = self._stage(32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    @staticmethod
    def _stage(in_planes: int, planes: int, blocks: int, stride: int) -> nn.Sequential:
        first = BasicBlock(in_planes, planes, stride)
        return nn.Sequential(first, *(BasicBlock(planes, planes, 1) for _ in range(blocks - 1)))

    def features(self, images: Tensor) -> Tensor:
        """The last activation map, before pooling: [N, 64, H/4, W/4]."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must be [N, 3, H, W] with values in [0, 1], not {list(images.shape)}")
        out = self.relu(self.bn1(self.conv1((images - self.mean) / self.std)))
        return self.layer3(self.layer2(self.layer1(out)))

    def classify(self, maps: Tensor) -> Tensor:
        """The logits [N, classes] of the last map."""
        return self.linear(maps.mean((2, 3)))

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.features(images))


def resnet20(num_classes: int = 10, weights: Weights = None) -> ResNet:
    return _resnet(3, num_classes, weights)


def resnet32(num_classes: int = 10, weights: Weights = None) -> ResNet:
    return _resnet(5, num_classes, weights)


def resnet44(num_classes: int = 10, weights: Weights = None) -> ResNet:
    return _resnet(7, num_classes, weights)


def resnet56(num_classes: int = 10, weights: Weights = None) -> ResNet:
    return _resnet(9, num_classes, weights)


RESNETS: dict[str, Callable[..., nn.Module]] = {
    "resnet20": resnet20,
    "resnet32": resnet32,
    "resnet44": resnet44,
    "resnet56": resnet56,
}


def _resnet(blocks: int, num_classes: int, weights: Weights) -> ResNet:
    """weights: a safetensors file, a file of the published layout (.th), or "official" to fetch that once."""
    if weights is None:
        return ResNet(blocks, num_classes)
    if weights == "official":
        weights = fetch_official(6 * blocks + 2)
    tensors, metadata = _read(Path(weights))
    mean, std = _normalisation(metadata)
    model = ResNet(blocks, num_classes, mean, std)
    name = f"ResNet-{6 * blocks + 2} with {num_classes} classes"
    # num_batches_tracked only counts training steps: a file may leave it out.
    wanted = {k: v for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}
    tensors = {k: v for k, v in tensors.items() if not k.endswith("num_batches_tracked")}
    wrong = sorted(wanted.keys() ^ tensors.keys())
    if wrong:
        what = "lacks" if wrong[0] in wanted else "has an extra"
        more = f" and {len(wrong) - 1} more differ" if len(wrong) > 1 else ""
        raise ValueError(f"{weights} is not a {name}: it {what} '{wrong[0]}'{more}")
    for key, value in wanted.items():
        if tensors[key].shape != value.shape:
            shapes = f"{list(tensors[key].shape)} instead of {list(value.shape)}"
            raise ValueError(f"{weights} is not a {name}: '{key}' has shape {shapes}")
        if not tensors[key].isfinite().all():
            raise ValueError(f"{weights} is damaged: '{key}' has values that are not finite")
    model.load_state_dict(tensors, strict=True)
    return model


def fetch_official(depth: int) -> Path:
    """The published weights in the cache, fetched there if they are missing."""
    name = OFFICIAL[depth]
    address, path, digits = ADDRESS.format(name), cache_root() / "weights" / f"{name}.th", name.split("-")[1]
    if path.is_file() and file_digest(path, "sha256").startswith(digits):
        return path
    try:
        return fetch(address, path, sha256=digits)
    except NetworkError as error:
        raise ValueError(
            f"the official ResNet-{depth} could not be fetched: download {address} elsewhere and give its path as "
            "weights"
        ) from error


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ValueError(f"there is no weights file {path}: give the path of a safetensors file, or 'official'")
    if path.suffix in (".th", ".pt", ".pth"):
        return _read_published(path), {}
    try:
        with safe_open(path, framework="pt") as file:
            keys: list[str] = file.keys()
            return {key: file.get_tensor(key) for key in keys}, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a readable safetensors file ({error})") from error


def _read_published(path: Path) -> dict[str, Tensor]:
    """A state dict, or a checkpoint that holds one, of a model that was trained inside nn.DataParallel or not."""
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever its unpickler meets
        raise ValueError(f"{path} cannot be read as plain tensors ({type(error).__name__}): refused") from None
    if isinstance(state, Mapping):
        state = state.get("state_dict", state)
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{path} holds no state dict: give a mapping of names to tensors")
    return {str(key).removeprefix("module."): value for key, value in state.items()}


def _normalisation(metadata: dict[str, str]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and standard deviation named in the file's `input` field, 'mean r,g,b, std r,g,b'."""
    number = r"\d+(?:\.\d+)?"
    triple = rf"({number}),\s*({number}),\s*({number})"
    match = re.search(rf"mean {triple}, std {triple}", metadata.get("input", ""))
    if match is None:
        return MEAN, STD
    values = tuple(float(value) for value in match.groups())
    return values[:3], values[3:]
