"""CoDANet: [x, 1 - x] → layers of convolutional DAUs → sum-pool → / T + b0 (sec. 3.3, 3.4)."""

import math
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..dau import CHUNK_NUMBERS, DAUConv2d, Rescale
from .architectures import Layer
from .claims import checked_names, checked_size
from .explanation import Explanation, Target, resolve_targets
from .linear_map import LinearMap
from .self_explaining import SelfExplaining

LOGIT_BIAS = math.log(0.1 / 0.9)  # b0: an untrained network gives every class a probability of 0.1
LOWEST, HIGHEST = -0.5, 1.5  # what an image in [0, 1], noise added, may reach


Factors = Sequence[Tensor] | None  # one for each layer, or None to compute them


def bare(model: nn.Module) -> nn.Module:
    """The module inside torch.compile's wrapper, which knows what it is."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """torch.compile, told what suits Dynamic Alignment layers.

    It keeps 0.3 of what it would keep for the backward pass: the norms' products are made again there, which are cheap
    beside the convolutions; a step of an S-CoDA at rank 1/4, batch 16, 32x32, has its peak at about 100 MiB. And it
    computes a chain of a dozen operations on [P, n] once, before it is spread over the R rows of [P, R, n], instead of
    once in every row: a step of a rank-1/8 S-CoDA in a sixth less time.
    """
    if not options.keys() & {"mode", "backend"}:
        options["options"] = {"realize_opcount_threshold": 12, **(options.get("options") or {})}
    fast = torch.compile(function, **options)

    def run(*inputs: Any) -> Any:
        with torch._functorch.config.patch(activation_memory_budget=0.3):  # read when the first call compiles
            return fast(*inputs)

    return run


class CoDANet(SelfExplaining):
    """Images [N, C, H, W] in [0, 1], or already encoded [N, 2C, H, W], to logits [N, classes].

    logits = W(x) x / T + b0, so the contributions W(x) ⊙ x / T of a class add up to its logit less b0. Each class is
    one-vs-all: its probability is the sigmoid of its logit. `create_model` and `load` build networks by name.

    Args:
        layers: From the image to the classes; the units of the last one are the classes.
        image_channels: C of the images, 3 for RGB; the first layer sees twice as many, [x, 1-x].
        image_size: The side, or (height, width), that pictures are fitted to; None for any. Other sizes work too.
        temperature: T, by which the summed output is divided. The larger it is, the more the weights must align with
            the image, and the sharper the explanations become.
        logit_bias: b0, the same for all classes; log(0.1 / 0.9) if not given.
        rescale: How a unit's weights are bounded: "sq" (‖w‖ < 1), "l2" or "l1" (‖w‖ = 1), or a function of the norm.
        bias: Whether w = g(A B x + b) has its b.
        recompute: Compute activations again in the backward pass instead of keeping them: less memory, more time.
        class_names: One for each class, for explanations and tables.
        name: What to call the network in tables and files.
        provenance: Where it comes from; kept in files.

    Raises:
        ValueError: If there are no layers, or a setting makes no sense.

    Examples:
        >>> import torch
        >>> model = CoDANet([Layer(8, rank=4), Layer(3, rank=4, kernel_size=1)], image_size=8)
        >>> model.explain(torch.rand(2, 3, 8, 8)).pixels.shape
        torch.Size([2, 8, 8])
    """

    encodes = True
    one_vs_all = True

    def __init__(
        self,
        layers: tuple[Layer, ...] | list[Layer],
        *,
        image_channels: int = 3,
        image_size: tuple[int, int] | int | None = None,
        temperature: float = 1.0,
        logit_bias: float = LOGIT_BIAS,
        rescale: Rescale = "sq",
        bias: bool = True,
        recompute: bool = False,
        class_names: tuple[str, ...] | None = None,
        name: str = "coda",
        provenance: dict[str, Any] | None = None,
    ):
        super().__init__()
        if not layers:
            raise ValueError("a CoDANet was given no layers: it needs at least one, whose units are the classes")
        if not isinstance(temperature, (int, float)) or not (math.isfinite(temperature) and temperature > 0):
            raise ValueError(f"temperature is {temperature!r}: it must be a positive number, 1000 for example")
        image_size = checked_size(image_size, image_channels)
        if not isinstance(name, str) or not isinstance(logit_bias, (int, float)) or not math.isfinite(logit_bias):
            raise ValueError(f"name is {name!r} and logit_bias {logit_bias!r}: they must be a text and a finite number")
        self.architecture = tuple(layers)
        self.num_classes = layers[-1].units
        self.image_channels, self.image_size = image_channels, image_size
        self.temperature, self.logit_bias = float(temperature), float(logit_bias)
        self.rescale, self.name = rescale, name
        self.class_names = checked_names(class_names, self.num_classes)
        self.provenance = dict(provenance or {})
        channels = [2 * image_channels, *(layer.units for layer in layers)]
        self.layers = nn.ModuleList(
            DAUConv2d(
                channels[i],
                layer.units,
                layer.rank,
                layer.kernel_size,
                layer.stride,
                rescale=rescale,
                bias=bias,
                recompute=recompute,
            )
            for i, layer in enumerate(layers)
        )

    @property
    def dau_layers(self) -> tuple[DAUConv2d, ...]:
        """The layers, typed."""
        return tuple(cast(DAUConv2d, layer) for layer in self.layers)

    @property
    def dtype(self) -> torch.dtype:
        return self.dau_layers[0].A.dtype

    @property
    def device(self) -> torch.device:
        return self.dau_layers[0].A.device

    def encode(self, images: Tensor) -> Tensor:
        """[r, g, b] to [r, g, b, 1-r, 1-g, 1-b], so that dark pixels count as much as bright ones."""
        images = self._checked_images(images)
        if images.shape[1] == 2 * self.image_channels:
            return images
        return torch.cat([images, 1 - images], 1)

    def _checked_images(self, images: Tensor) -> Tensor:
        channels = self.image_channels
        if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] not in (channels, 2 * channels):
            what = f"a tensor of shape {list(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
            raise ValueError(
                f"images are {what}: they must be [N, {channels}, H, W], "
                f"or [N, {2 * channels}, H, W] if encoded as [x, 1-x]"
            )
        if not images.is_floating_point():
            raise ValueError(
                f"images are {images.dtype}: they must be floating point in [0, 1], so divide 8-bit ones by 255"
            )
        if images.device != self.device:
            raise ValueError(f"images are on {images.device}, the model is on {self.device}: move one of them")
        if 0 in images.shape:
            raise ValueError(
                f"images have shape {list(images.shape)}: there is nothing in them, so give at least one pixel"
            )
        if not torch.compiler.is_compiling() and not (self.training and images.device.type != "cpu"):
            low, high = (bound.item() for bound in torch.aminmax(images.detach()))
            if not (low >= LOWEST and high <= HIGHEST):  # NaN fails too
                raise ValueError(
                    f"image values run from {low:.4g} to {high:.4g}: they must be finite and in [0, 1], "
                    "not 0..255 and not normalised by mean and deviation"
                )
        return images.to(self.dtype)

    def norm_factors(self) -> tuple[Tensor, ...]:
        """What the layers make of their parameters alone."""
        return tuple(layer.norm_factor() for layer in self.dau_layers)

    def features(self, encoded: Tensor, factors: Factors = None) -> Tensor:
        """The last layer's map [N, classes, H', W'], before pooling."""
        encoded = encoded.contiguous(memory_format=torch.channels_last)
        for layer, factor in zip(self.dau_layers, factors or repeat(None), strict=False):
            encoded = layer(encoded, factor)
        return encoded

    def pool(self, maps: Tensor) -> Tensor:
        """Σ over positions / T + b0."""
        return (
            maps.sum((2, 3), dtype=torch.promote_types(maps.dtype, torch.float32)) / self.temperature + self.logit_bias
        )

    def classify(self, maps: Tensor) -> Tensor:
        """The logits of the last layer's map, as other networks have it by this name."""
        return self.pool(maps)

    def forward(self, images: Tensor) -> Tensor:
        # without gradients the factors are kept from call to call; with them they are part of the graph
        return self._logits(self.encode(images), None if torch.is_grad_enabled() else self.norm_factors())

    def _logits(self, encoded: Tensor, factors: Factors) -> Tensor:
        return self.pool(self.features(encoded, factors))

    def compile(self, **options: Any) -> None:
        """Compile forward passes and explanations with torch.compile, on first use.

        options: torch.compile's. Batches of any size share one compilation; another picture size is another one.
        """
        options = {"dynamic": None, **options}
        self._logits = compiled(self._logits, **options)  # type: ignore[method-assign]
        self._explained = compiled(self._explained, **options)  # type: ignore[method-assign]

    def align(self, images: Tensor, factors: Factors = None) -> tuple[Tensor, LinearMap]:
        """The logits, and the linear map that made them of the images; differentiable."""
        activations, weights = [self.encode(images).contiguous(memory_format=torch.channels_last)], []
        for layer, factor in zip(self.dau_layers, factors or repeat(None), strict=False):
            out, dynamic = layer.align(activations[-1], factor)
            activations.append(out)
            weights.append(dynamic)
        logits = self.pool(activations[-1])
        return logits, LinearMap(
            self.dau_layers,
            tuple(activations),
            tuple(weights),
            self.temperature,
            self.logit_bias,
            logits,
            differentiable=torch.is_grad_enabled(),
        )

    @torch.no_grad()
    def trace(self, images: Tensor) -> LinearMap:
        """The dynamic linear map between any two layers for these images [N, C, H, W]."""
        return self.align(images)[1]

    @torch.no_grad()
    def explain(self, images: Tensor, target: Target = None) -> Explanation:
        """Why the model gives the predicted class, or `target`, its logit.

        Memory stays bounded: images, and classes where there are many, are taken in chunks. The model, its mode and
        its gradients are left as they are.

        Args:
            images: [N, C, H, W] in [0, 1], or encoded [N, 2C, H, W].
            target: None for the predicted class; a class, by number or name; one class per image [N]; several per
                image [N, K]; or "all".

        Returns:
            Contributions, rows of W and logits, for one class per image, or for K of them.

        Raises:
            ValueError: If the images are of another shape, type or range, or a class is unknown.
        """
        encoded = self.encode(images)
        wanted, several = resolve_targets(target, len(encoded), self.num_classes, self.class_names)
        largest = self._largest_products(encoded.shape[2], encoded.shape[3])
        targets_at_once = max(1, min(1 if wanted is None else wanted.shape[1], CHUNK_NUMBERS // largest))
        images_at_once = max(1, CHUNK_NUMBERS // (largest * targets_at_once))
        factors = self.norm_factors()
        parts = []
        for start in range(0, len(encoded), images_at_once):
            chunk = slice(start, start + images_at_once)
            targets = None if wanted is None else wanted[chunk].to(encoded.device)
            parts.append(self._explained(encoded[chunk], targets, factors, targets_at_once))
        logits, targets, rows = (torch.cat(part) for part in zip(*parts, strict=True))
        return Explanation.of(self, encoded.detach(), logits, targets, rows, several)

    def own_maps(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.explain(inputs, targets).pixels

    def _explained(
        self, encoded: Tensor, targets: Tensor | None, factors: Factors, targets_at_once: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The logits [N, classes], the targets [N, K], and their rows of W / T [N, K, 2C, H, W]."""
        logits, linear_map = self.align(encoded, factors)
        targets = logits.argmax(1, keepdim=True) if targets is None else targets
        return (
            logits,
            targets,
            torch.cat([linear_map.class_rows(some) for some in targets.split(targets_at_once, 1)], 1),
        )

    def _largest_products(self, height: int, width: int) -> int:
        """The most numbers that one image's products Âᵀp, or rows pulled back, hold in any layer."""
        largest = 1
        for layer in self.dau_layers:
            height, width = layer.output_size(height, width)
            largest = max(largest, height * width * layer.A.shape[0] * layer.A.shape[1])
        return largest

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_logits", "_explained")}
