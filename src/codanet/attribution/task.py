"""What a method is given: the model, the images as the model sees them, one class each, and bounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from codanet.dau import DAUConv2d
from codanet.models.classifier import at_once, baseline, probabilities
from codanet.models.explanation import Target, resolve_targets
from codanet.models.hybrid import HybridNet
from codanet.models.peers.bcos import BcosConv2d
from codanet.models.self_explaining import SelfExplaining

GRADIENT_PIXELS = 1 << 14  # that go through a model at a time where a gradient keeps every activation: 16 of 32x32
LAYERS = (nn.Conv2d, DAUConv2d, BcosConv2d)  # that make a map

Advance = Callable[[float], None]


@dataclass(frozen=True)
class Task:
    """inputs[n] are to be explained for the class targets[n]; a removed pixel becomes `baseline`."""

    model: nn.Module
    inputs: Tensor  # [N, C, H, W]: encoded for a CoDA-Net, the images themselves for others and in image space
    targets: Tensor  # [N], or [N, K] where a method makes maps for several classes at once
    baseline: Tensor  # [1, C, 1, 1]
    seed: int = 0
    batch_size: int | None = None
    advance: Advance = lambda images: None  # told how many images, or which part of one, are done

    @property
    def size(self) -> tuple[int, int]:
        return self.inputs.shape[2], self.inputs.shape[3]

    @property
    def forward_batch(self) -> int:
        """How many images go through the model at once without gradients."""
        return at_once(self.inputs, self.batch_size)

    @property
    def gradient_batch(self) -> int:
        """How many go through it at once with gradients."""
        return self.batch_size or max(1, GRADIENT_PIXELS // (self.size[0] * self.size[1]))

    def spread(self) -> Task:
        """The same work with one class each: every image as often as it has classes."""
        classes = self.targets.shape[1]
        inputs, targets = self.inputs.repeat_interleave(classes, 0), self.targets.flatten()
        return replace(self, inputs=inputs, targets=targets, advance=lambda images: self.advance(images / classes))

    def generator(self) -> torch.Generator:
        """On the CPU, so that every device draws the same."""
        return torch.Generator().manual_seed(self.seed)

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """[n, classes], in chunks of `forward_batch`."""
        return torch.cat([self.model(chunk) for chunk in inputs.split(self.forward_batch)])

    def probabilities(self, inputs: Tensor) -> Tensor:
        """[n, classes]: each class on its own for a CoDA-Net, which is trained so (sec. 3.3); softmax for others."""
        return probabilities(self.model, self.logits(inputs))

    def per_image(self, maps: Callable[[Tensor, Tensor], Tensor], at_once: int) -> Tensor:
        """maps(inputs, targets), as [n, H, W] or with channels that are summed, over chunks of `at_once` images."""
        parts = []
        for inputs, targets in zip(self.inputs.split(at_once), self.targets.split(at_once), strict=True):
            part = maps(inputs.clone().requires_grad_(), targets).detach()
            parts.append(part.sum(1) if part.ndim == 4 else part)
            self.advance(len(inputs))
        return torch.cat(parts)

    def blocks(self, perturbations: int) -> Iterator[tuple[slice, slice]]:
        """Which perturbations and which images to pair next, so that no more than `forward_batch` meet the model."""
        some = min(perturbations, self.forward_batch)
        images = max(1, self.forward_batch // some)
        for start in range(0, perturbations, some):
            for first in range(0, len(self.inputs), images):
                part = slice(start, min(start + some, perturbations)), slice(first, first + images)
                yield part
                self.advance(len(self.inputs[part[1]]) * (part[0].stop - start) / perturbations)


class MethodSettings(ABC):
    """One way to attribute: a frozen dataclass whose fields are the method's settings."""

    several_targets: ClassVar[bool] = False  # whether maps of several classes share their passes through the model
    signed: ClassVar[bool] = True  # whether 0 divides what speaks for the class from what speaks against it
    colours: ClassVar[bool] = False  # whether it looks at the colours of the image
    needs: ClassVar[Literal["", "own maps", "layer"]] = ""  # of the model: maps of its own, or a layer that makes one

    def lacks(self, model: nn.Module) -> str:
        """Why the model cannot be what this needs, as far as its modules tell without running; "" if it can."""
        if self.needs == "own maps" and not isinstance(model, SelfExplaining):
            return "it has no maps of its own, as a CoDA-Net has"
        if self.needs == "layer" and not any(isinstance(module, LAYERS) for module in model.modules()):
            return "it has no layer that makes a map"
        return ""

    def check(self, model: nn.Module) -> None:
        """A ValueError if this cannot work on the model; before any work."""
        return

    @abstractmethod
    def maps(self, task: Task) -> Tensor:
        """[N, H, W]; [N, K, H, W] if `several_targets` and the task has such"""


@dataclass(frozen=True)
class InputSettings(MethodSettings):
    """Of a method that changes the input, or takes gradients with respect to it: which input of a CoDA-Net that is.

    "encoded": [x, 1-x], where a removed pixel is zero in all channels (sec. C.4), as in the model's own contributions.
    On a hybrid these are the features.
    "image": x itself, where a removed pixel is black. The paper's published figures of these methods are of this kind:
    its code has the encoding inside of the model. Other classifiers know only images.
    """

    space: Literal["encoded", "image"] = field(default="encoded", kw_only=True)

    def __post_init__(self) -> None:
        if self.space not in ("encoded", "image"):
            raise ValueError(f"space is {self.space!r}: choose encoded or image")


def space_of(settings: MethodSettings, model: nn.Module) -> str:
    """Where a method works on a CoDA-Net; the features of a hybrid have no colours."""
    if isinstance(model, HybridNet) and settings.colours:
        return "image"
    return settings.space if isinstance(settings, InputSettings) else "encoded"


def prepare(
    model: nn.Module,
    images: Tensor,
    target: Target,
    seed: int = 0,
    batch_size: int | None = None,
    advance: Advance = lambda images: None,
    space: str = "encoded",
) -> Task:
    """The task, checked: nothing is computed but the logits that the target needs."""
    inputs = _checked_images(model, images)
    if isinstance(model, HybridNet):
        with torch.no_grad():
            inputs = inputs if space == "image" else model.encode(inputs)
    elif isinstance(model, SelfExplaining) and model.encodes:
        inputs = model.encode(inputs)
        inputs = _decoded(inputs) if space == "image" else inputs
    task = Task(model, inputs, torch.empty(0), baseline(model, inputs), seed, batch_size, advance)
    logits = _first_logits(task, len(inputs) if target is None else 1)
    # of a class that is given, one image among others may have none: that is told by its map
    if not logits.isfinite().all() and (target is None or _damaged(task)):
        raise ValueError(
            f"{type(model).__name__} gives logits that are not finite: its weights are damaged, or the images too large"
        )
    names = getattr(model, "class_names", None)
    wanted, several = resolve_targets(target, len(inputs), logits.shape[1], names)
    classes = logits.argmax(1, keepdim=True) if wanted is None else wanted.to(inputs.device)
    chosen = classes if several else classes[:, 0]
    return Task(model, inputs, chosen, task.baseline, seed, batch_size, advance)


def _decoded(inputs: Tensor) -> Tensor:
    """x of [x, 1-x]."""
    image, inverse = inputs.chunk(2, 1)
    if (image + inverse - 1).abs().max() > 0.02:  # more than any precision rounds
        raise ValueError(
            "images are encoded, but not as [x, 1-x], like those with pixels removed: such have no colours, so take "
            'space="encoded"'
        )
    return image


def _checked_images(model: nn.Module, images: Tensor) -> Tensor:
    if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point() or 0 in images.shape:
        what = f"{images.dtype} {list(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(f"images are {what}: give floating point images [N, C, H, W], at least one")
    tensors = (tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point())
    like = next(tensors, images)
    if images.device != like.device:
        raise ValueError(f"images are on {images.device}, the model is on {like.device}: move one of them")
    broken = int((~images.detach().isfinite()).flatten(1).any(1).sum())
    if broken:
        raise ValueError(f"{broken} of {len(images)} images hold NaN or infinite values: give finite ones")
    return images.detach().to(like.dtype, copy=True)


def _damaged(task: Task) -> bool:
    """Whether there are no logits even of a picture without a pixel."""
    return not task.logits(task.baseline.expand_as(task.inputs[:1]).contiguous()).isfinite().all()


def _first_logits(task: Task, number: int) -> Tensor:
    """The logits of the first images; the very first shows whether the model takes such images and is a classifier."""
    name = type(task.model).__name__
    try:
        with torch.no_grad():
            probe = task.model(task.inputs[:1])
    except (RuntimeError, IndexError) as error:
        raise ValueError(f"{name} cannot take images of shape {list(task.inputs.shape[1:])}: {error}") from error
    if not isinstance(probe, Tensor) or probe.ndim != 2 or len(probe) != 1:
        what = f"shape {list(probe.shape)}" if isinstance(probe, Tensor) else type(probe).__name__
        raise ValueError(f"{name} gives {what} for one image: a classifier gives logits [N, classes]")
    return task.logits(task.inputs[:number]) if number > 1 else probe
