"""B-cos networks (Böhle, Fritz and Schiele 2022), the successors: out = |cos(x, w)|^(B-1) ŵᵀx with ‖ŵ‖ = 1.

As in a CoDA-Net every layer is a linear map that depends on the input, W(x) x, here with a row |cos|^(B-1) ŵ: rows of
the whole network are made by one backward pass in which the cosines are constants. No biases; images as [x, 1-x].
Layers are scaled by their root mean square in training, a constant factor afterwards that keeps the sum exact.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..classifier import evaluating
from ..explanation import Explanation, Target, resolve_targets
from ..network import LOGIT_BIAS
from ..self_explaining import SelfExplaining
from .peer import Peer

EPSILON = 1e-6
IMAGES_AT_ONCE = 64  # explained together
# whether cosines are constants, as an explanation needs it: in this thread, as others may explain at the same time
_frozen = ContextVar("frozen", default=False)


class BcosConv2d(nn.Module):
    """|cos(x, w)|^(B-1) ŵᵀx for every patch, without padding's help: what is outside of the image is 0."""

    def __init__(self, channels: int, units: int, kernel_size: int = 3, stride: int = 1, exponent: float = 2.0):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(units, channels, kernel_size, kernel_size))
        self.stride, self.padding, self.exponent = stride, kernel_size // 2, exponent
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        weight = F.normalize(self.weight.flatten(1), dim=1).view_as(self.weight)
        linear = F.conv2d(x, weight, None, self.stride, self.padding)  # ŵᵀx
        squares = (x * x).sum(1, keepdim=True)
        kernel = self.weight.shape[2]
        norm = F.avg_pool2d(squares, kernel, self.stride, self.padding, divisor_override=1).add(EPSILON**2).sqrt()
        cosine = (linear / norm).abs()
        if _frozen.get():
            cosine = cosine.detach()
        return linear * cosine.pow(self.exponent - 1)

    def extra_repr(self) -> str:
        units, channels, kernel_size, _ = self.weight.shape
        return f"{channels}, {units}, {kernel_size}, stride={self.stride}, exponent={self.exponent:g}"


class Scaling(nn.Module):
    """x γ / sqrt(E x²) per channel: batch norm that moves nothing, so that 0 stays 0 and the map stays linear."""

    mean_square: Tensor

    def __init__(self, channels: int, momentum: float = 0.1):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.momentum = momentum
        self.register_buffer("mean_square", torch.ones(channels))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.ones_(self.mean_square)

    def forward(self, x: Tensor) -> Tensor:
        mean_square = self.mean_square
        if self.training:
            mean_square = (x * x).mean((0, 2, 3))
            with torch.no_grad():
                self.mean_square.lerp_(mean_square, self.momentum)
        return x * (self.weight * (mean_square + EPSILON).rsqrt())[:, None, None]


class BcosBlock(nn.Module):
    """x + scaled B-cos of scaled B-cos of x; the shortcut is subsampled, with zeros for new planes."""

    def __init__(self, in_planes: int, planes: int, stride: int, exponent: float):
        super().__init__()
        self.conv1, self.scale1 = BcosConv2d(in_planes, planes, 3, stride, exponent), Scaling(planes)
        self.conv2, self.scale2 = BcosConv2d(planes, planes, 3, 1, exponent), Scaling(planes)
        self.stride, self.new_planes = stride, planes - in_planes

    def forward(self, x: Tensor) -> Tensor:
        out = self.scale2(self.conv2(self.scale1(self.conv1(x))))
        before = self.new_planes // 2
        past = x[:, :, :: self.stride, :: self.stride]
        return out + F.pad(past, (0, 0, 0, 0, before, self.new_planes - before))


class BcosResNet(Peer, SelfExplaining):
    """ResNet-20's layout in B-cos layers; the last one, of 1x1, makes a map for every class: its mean is the logit."""

    encodes = True
    logit_bias = LOGIT_BIAS

    def __init__(self, name: str, blocks: int = 3, exponent: float = 2.0, num_classes: int = 10, **facts: Any):
        super().__init__(name, num_classes, **facts)
        layers: list[nn.Module] = [BcosConv2d(2 * self.image_channels, 16, 3, 1, exponent), Scaling(16)]
        planes = 16
        for wide, stride in ((16, 1), (32, 2), (64, 2)):
            for number in range(blocks):
                layers.append(BcosBlock(planes, wide, stride if number == 0 else 1, exponent))
                planes = wide
        self.layers = nn.Sequential(*layers, BcosConv2d(planes, num_classes, 1, 1, exponent), Scaling(num_classes))

    def encode(self, images: Tensor) -> Tensor:
        """[x, 1-x]; encoded images stay as they are."""
        if images.ndim != 4 or images.shape[1] not in (self.image_channels, 2 * self.image_channels):
            channels = self.image_channels
            raise ValueError(f"images are {list(images.shape)}: they must be [N, {channels}, H, W], or encoded")
        if not images.is_floating_point() or 0 in images.shape:
            raise ValueError(
                f"images are {images.dtype} {list(images.shape)}: they must be floating point in [0, 1], at least one"
            )
        images = images.to(self.dtype)
        return images if images.shape[1] != self.image_channels else torch.cat([images, 1 - images], 1)

    def features(self, encoded: Tensor) -> Tensor:
        return self.layers(encoded)

    def classify(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3)) + self.logit_bias

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Cosines as constants: the gradient of a logit is then its row of W(x)."""
        before = _frozen.set(True)
        try:
            yield
        finally:
            _frozen.reset(before)

    def explain(self, images: Tensor, target: Target = None) -> Explanation:
        """Why the model gives the predicted class, or `target`, its logit: exact contributions, as of a CoDA-Net.

        Args:
            images: [N, C, H, W] in [0, 1], or encoded [N, 2C, H, W].
            target: None for the predicted class; a class, by number or name; one class per image [N]; several per
                image [N, K]; or "all".
        """
        encoded = self.encode(images).detach()
        wanted, several = resolve_targets(target, len(encoded), self.num_classes, self.class_names)
        parts = []
        with evaluating(self):
            for start in range(0, len(encoded), IMAGES_AT_ONCE):
                chunk = slice(start, start + IMAGES_AT_ONCE)
                chosen = None if wanted is None else wanted[chunk].to(encoded.device)
                parts.append(self._explained(encoded[chunk], chosen))
        logits, targets, rows = (torch.cat(part) for part in zip(*parts, strict=True))
        return Explanation.of(self, encoded, logits, targets, rows, several)

    def _explained(self, encoded: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        # the gradient is the row, so there must be one under inference mode, too; what was made there is copied
        with torch.inference_mode(False), torch.enable_grad(), self.frozen():
            inputs = encoded.detach().clone().requires_grad_()
            logits = self.classify(self.features(inputs))
            chosen = logits.argmax(1, keepdim=True) if targets is None else targets.clone()
            rows = [
                torch.autograd.grad(logits.gather(1, each[:, None]).sum(), inputs, retain_graph=True)[0]
                for each in chosen.unbind(1)
            ]
        return logits.detach(), chosen, torch.stack(rows, 1)

    def own_maps(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.explain(inputs, targets).pixels
