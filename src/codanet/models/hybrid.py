"""Dynamic Alignment layers on the features of a pre-trained network: logit = W(φ(x)) φ(x) / T + b0.

The authors' follow-up (*Optimising for Interpretability*, 2021): φ is the map of one layer of a backbone, divided by
three standard deviations of each channel; above it everything is a CoDA-Net. So a decision is an exact sum over the
features, one contribution for each channel and position; below them nothing is claimed.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from .._support.messages import nearest
from ..dau import DAUConv2d
from .architectures import USUAL_SIDE
from .backbones import BACKBONES, channels_last, cut
from .explanation import Target
from .feature_explanation import FeatureExplanation, exact_words
from .network import LOGIT_BIAS, CoDANet, Layer

DEVIATIONS = 3  # as many of a channel make a feature of 1
IMAGES_AT_ONCE = 1  # through a frozen backbone: on a CPU one image's maps stay in its cache (22 ms an image, 39 of 4)
ENCODINGS = ("signed", "split")


class HybridNet(CoDANet):
    """Images [N, C, H, W] in [0, 1], or encoded features [N, C', h, w], to logits [N, classes].

    Args:
        features: Images to maps no larger than they are: a backbone as far as the layer. It stays in eval mode, so
            that its batch norms keep what they learnt, and is frozen unless its parameters are set free. It is brought
            to the precision of the layers.
        layers: Of Dynamic Alignment Units; the last one's units are the classes.
        image_channels: 3 for RGB, 1 for grey.
        image_size: The side, or (height, width), of the images that it is meant for.
        temperature: T, by which the summed output is divided.
        logit_bias: b0, the same for all classes.
        encoding: "signed" features φ, or "split" into [φ⁺, φ⁻].
        class_names: One for each class.
        backbone: Its name, for messages and files.
        layer: Where it is cut, likewise.
        name: Of the network.
        provenance: Where it comes from; kept in files.

    Raises:
        ValueError: If the encoding is unknown, or the layer gives no map [N, C, h, w], or one larger than the image.

    Examples:
        >>> net = HybridNet(nn.Conv2d(3, 8, 3, stride=2, padding=1), head_layers(2, (4,), rank=2), image_size=16)
        >>> net.explain(torch.rand(1, 3, 16, 16)).exact_for
        'exact over the features of features, stride 2'
    """

    encodes = False  # it computes on features, and is given images
    feature_scale: Tensor

    def __init__(
        self,
        features: nn.Module,
        layers: tuple[Layer, ...] | list[Layer],
        *,
        image_channels: int = 3,
        image_size: tuple[int, int] | int = USUAL_SIDE,
        temperature: float = 64.0,
        logit_bias: float = LOGIT_BIAS,
        encoding: str = "signed",
        class_names: tuple[str, ...] | None = None,
        backbone: str = "backbone",
        layer: str = "features",
        name: str = "hybrid",
        provenance: dict[str, Any] | None = None,
    ):
        super().__init__(
            layers,
            image_channels=image_channels,
            image_size=image_size,
            temperature=temperature,
            logit_bias=logit_bias,
            class_names=class_names,
            name=name,
            provenance=provenance,
        )
        if encoding not in ENCODINGS:
            raise ValueError(f"unknown encoding {encoding!r}{nearest(encoding, ENCODINGS)}")
        self.encoding, self.backbone_name, self.layer = encoding, backbone, layer
        self.backbone = channels_last(features.requires_grad_(False).to(self.dtype))
        channels, self.stride = self._probe()
        self.encoded_channels = 2 * channels if encoding == "split" else channels
        if self.encoded_channels == image_channels:
            raise ValueError(
                f"layer {layer!r} has {image_channels} channels, as an image has: choose another or encoding='split'"
            )
        self.register_buffer("feature_scale", torch.ones(1, channels, 1, 1))
        first = layers[0]
        self.layers[0] = DAUConv2d(self.encoded_channels, first.units, first.rank, first.kernel_size, first.stride)
        self.train(self.training)

    @property
    def exact_for(self) -> str:
        return exact_words(self.layer, self.stride)

    @torch.no_grad()
    def _probe(self) -> tuple[int, int]:
        """The channels and the stride of the features."""
        assert self.image_size is not None
        self.backbone.eval()
        parameter = next(self.backbone.parameters(), self.dau_layers[0].A)
        blank = torch.zeros(1, self.image_channels, *self.image_size, dtype=self.dtype, device=parameter.device)
        maps = self.backbone(blank)
        if not isinstance(maps, Tensor) or maps.ndim != 4:
            what = f"a tensor {list(maps.shape)}" if isinstance(maps, Tensor) else type(maps).__name__
            raise ValueError(f"layer {self.layer!r} gives {what}: choose one that gives a map [N, C, h, w]")
        if maps.shape[2] > self.image_size[0] or maps.shape[3] > self.image_size[1]:  # several positions to a pixel
            sizes = ["x".join(map(str, sides)) for sides in (maps.shape[2:], self.image_size)]
            raise ValueError(
                f"layer {self.layer!r} gives maps of {sizes[0]} for images of {sizes[1]}: choose one whose maps are no "
                "larger than the image"
            )
        return maps.shape[1], round(self.image_size[0] / maps.shape[2])

    def train(self, mode: bool = True) -> "HybridNet":
        super().train(mode)
        if hasattr(self, "backbone"):
            self.backbone.eval()
        return self

    @torch.no_grad()
    def calibrate(self, maps: Tensor) -> None:
        """Take the spread of every channel from the backbone's maps [N, C, h, w] of training images.

        Raises ValueError if there is none in any of them.
        """
        deviation = maps.double().std((0, 2, 3), keepdim=True)
        least = 1e-3 * deviation.mean()  # a channel that says nothing is not blown up
        if not least > 0:
            raise ValueError(f"maps {list(maps.shape)} do not vary in any channel: calibrate on images that differ")
        self.feature_scale.copy_(1 / (DEVIATIONS * deviation.clamp(min=least)))

    def maps(self, images: Tensor) -> Tensor:
        """The backbone's maps [N, C, h, w], as they are."""
        images = self._checked_photographs(images)
        needed = torch.is_grad_enabled() and (
            images.requires_grad or any(parameter.requires_grad for parameter in self.backbone.parameters())
        )
        # a copy, since a backbone may normalise what it is given in its place
        if needed or torch.compiler.is_compiling() or images.device.type != "cpu":
            maps: Tensor = self.backbone(images.clone())
            return maps
        images = images.clone(memory_format=torch.channels_last)
        return torch.cat([self.backbone(some) for some in images.split(IMAGES_AT_ONCE)])

    def parts(self) -> tuple[nn.Module, nn.Module, str]:
        """The backbone's frozen part, its last blocks, which can be trained, and the layer between them."""
        known = BACKBONES.get(self.backbone_name)
        if known is None or known.parted is None:
            raise ValueError(
                f"finetune was asked for, but {self.backbone_name} is only known frozen here: leave it out"
            )
        return known.parted(self.backbone)

    def encode_maps(self, maps: Tensor) -> Tensor:
        """φ / 3σ of every channel, or its positive and its negative part."""
        scaled = maps.to(self.dtype) * self.feature_scale
        return scaled if self.encoding == "signed" else torch.cat([scaled.clamp(min=0), -scaled.clamp(max=0)], 1)

    def encode(self, images: Tensor) -> Tensor:
        """What the Dynamic Alignment layers see of images, [N, C', h, w]; encoded features stay as they are."""
        if isinstance(images, Tensor) and images.ndim == 4 and images.shape[1] == self.encoded_channels:
            return self._checked_features(images)
        return self.encode_maps(self.maps(images))

    def _checked_features(self, features: Tensor) -> Tensor:
        if not features.is_floating_point() or 0 in features.shape:
            raise ValueError(
                f"features are {features.dtype} {list(features.shape)}: they must be floating point, at least one"
            )
        if features.device != self.device:
            raise ValueError(f"features are on {features.device}, the model is on {self.device}: move one of them")
        unseen = torch.compiler.is_compiling() or (self.training and features.device.type != "cpu")
        if not unseen and not features.isfinite().all():
            raise ValueError("features hold numbers that are not finite: compute them again")
        return features.to(self.dtype)

    def _checked_photographs(self, images: Tensor) -> Tensor:
        channels = self.image_channels
        if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] != channels:
            what = f"a tensor of shape {list(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
            raise ValueError(
                f"images are {what}: they must be [N, {channels}, H, W], or [N, {self.encoded_channels}, h, w] if "
                f"they are encoded features of {self.layer}"
            )
        return self._checked_images(images)

    def explain(self, images: Tensor, target: Target = None) -> FeatureExplanation:
        """Why the model gives the predicted class, or `target`, its logit: as `CoDANet.explain`, over features."""
        with torch.no_grad():
            encoded = self.encode(images)
        why = super().explain(encoded, target)
        shown = images.detach() if images.shape[1] == self.image_channels else None
        return FeatureExplanation(
            why.logits, why.targets, why.rows, why.inputs, why.bias, why.class_names, shown, self.layer, self.stride
        )

    def own_maps(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Over the positions of the features, [N, (K,) h, w]."""
        return self.explain(inputs, targets).positions


def head_layers(num_classes: int, units: tuple[int, ...] = (64, 64), rank: int = 16) -> tuple[Layer, ...]:
    """3x3 layers of so many units, and a 1x1 layer of the classes."""
    return (*(Layer(number, rank) for number in units), Layer(num_classes, rank, kernel_size=1))


def hybrid(
    backbone: str | nn.Module,
    layer: str | None = None,
    num_classes: int | None = None,
    *,
    units: tuple[int, ...] = (64, 64),
    rank: int = 16,
    image_size: tuple[int, int] | int | None = None,
    image_channels: int = 3,
    temperature: float = 64.0,
    encoding: str = "signed",
    class_names: tuple[str, ...] | None = None,
) -> HybridNet:
    """Dynamic Alignment layers, untrained, on a frozen copy of a backbone up to a layer.

    Args:
        backbone: "efficientnet_lite0", "resnet56", or any module that takes images [N, C, H, W] in [0, 1].
        layer: Its name in `backbone.named_modules()`; a named backbone's usual one if not given.
        num_classes: The number of class names if not given.
        units: Units of each 3x3 layer below the classes.
        rank: r of every layer.
        image_size: The side, or (height, width); the backbone's own, or else 224.
        image_channels: 3 for RGB, 1 for grey.
        temperature: T, by which the summed output is divided.
        encoding: "signed" features, or "split" into positive and negative parts.
        class_names: One for each class.

    Raises:
        ValueError: If backbone, layer or encoding is unknown, or neither num_classes nor class_names are given.

    Examples:
        >>> model = hybrid("efficientnet_lite0", class_names=("cat", "dog"))
    """
    if num_classes is None:
        if not class_names:
            raise ValueError("neither num_classes nor class_names were given: say what is to be told apart")
        num_classes = len(class_names)
    if isinstance(backbone, str):
        if backbone not in BACKBONES:
            raise ValueError(f"unknown backbone {backbone!r}{nearest(backbone, BACKBONES)}, or pass a module")
        known, name = BACKBONES[backbone], backbone
        network, layer, image_size = known.build(True), layer or known.layer, image_size or known.image_size
    else:
        if layer is None:
            names = [each for each, _ in backbone.named_modules() if each]
            raise ValueError(f"no layer was given: choose one of {', '.join(names[:12])}{' …' * (len(names) > 12)}")
        network, name = deepcopy(backbone), type(backbone).__name__
    return HybridNet(
        cut(network, layer),
        head_layers(num_classes, units, rank),
        image_channels=image_channels,
        image_size=image_size or USUAL_SIDE,
        temperature=temperature,
        encoding=encoding,
        class_names=class_names,
        backbone=name,
        layer=layer,
    )


__all__ = ["FeatureExplanation", "HybridNet", "head_layers", "hybrid"]
