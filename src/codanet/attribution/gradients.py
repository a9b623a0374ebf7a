"""Methods made of one or a few gradients of the class logit with respect to the input (sec. C.3), through captum.

Channels are summed with their signs, as the paper's evaluation does, also for Grad.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from codanet._support.errors import DoesNotFit
from codanet._support.limits import MOST_SAMPLES
from codanet._support.numbers import check_whole

from .task import InputSettings, Task


@dataclass(frozen=True)
class Grad(InputSettings):
    """∂logit/∂x"""

    def maps(self, task: Task) -> Tensor:
        from captum.attr import Saliency

        method = Saliency(task.model)
        return task.per_image(lambda x, c: method.attribute(x, c, abs=False), task.gradient_batch)


@dataclass(frozen=True)
class InputTimesGradient(InputSettings):
    """x ⊙ ∂logit/∂x"""

    def maps(self, task: Task) -> Tensor:
        from captum.attr import InputXGradient

        return task.per_image(InputXGradient(task.model).attribute, task.gradient_batch)


@dataclass(frozen=True)
class IntegratedGradients(InputSettings):
    """(x - x₀) ⊙ ∫ ∂logit/∂x along the straight line from the baseline x₀, by Gauss-Legendre quadrature"""

    steps: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(1, most=MOST_SAMPLES, steps=self.steps)

    def maps(self, task: Task) -> Tensor:
        from captum.attr import IntegratedGradients as Method

        method, at_once = Method(task.model), task.gradient_batch

        def integrate(inputs: Tensor, targets: Tensor) -> Tensor:
            start = task.baseline.expand_as(inputs)
            return method.attribute(inputs, start, targets, n_steps=self.steps, internal_batch_size=at_once)

        return task.per_image(integrate, max(1, at_once // self.steps))


@dataclass(frozen=True)
class DeepLift(InputSettings):
    """(x - x₀) ⊙ multipliers of the rescale rule, Δout/Δin at every activation that captum knows.

    Where a network has no such activation the multiplier is the gradient: on a CoDA-Net this is IxG, as in the paper's
    figures. captum sees activations only as modules, each used once; a model that is built otherwise is refused, for
    the result would silently be another one.
    """

    def maps(self, task: Task) -> Tensor:
        from captum.attr import DeepLift as Method

        _check_activations(task)

        def lift(inputs: Tensor, targets: Tensor) -> Tensor:
            return Method(task.model).attribute(inputs, task.baseline.expand_as(inputs), targets)

        return task.per_image(lift, max(1, task.gradient_batch // 2))  # the baselines go through the model too


ACTIVATIONS = ("relu", "leaky_relu", "elu", "sigmoid", "tanh", "softplus", "_softmax", "max_pool2d_with_indices")


class _FunctionalActivations(TorchDispatchMode):
    """Notes the activations that run while no module that captum knows is running."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.removesuffix("_")
        if not self.inside and name in ACTIVATIONS:
            self.found.add(name.removeprefix("_").removesuffix("_with_indices"))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def _check_activations(task: Task) -> None:
    from captum.attr._core.deep_lift import SUPPORTED_NON_LINEAR

    known = {name: module for name, module in task.model.named_modules() if type(module) in SUPPORTED_NON_LINEAR}
    calls, watch = dict.fromkeys(known, 0), _FunctionalActivations()

    def enter(name: str) -> Any:
        def hook(module: nn.Module, inputs: object) -> None:
            calls[name] += 1
            watch.inside += 1

        return hook

    def leave(module: nn.Module, inputs: object, output: object) -> None:
        watch.inside -= 1

    handles = []
    for name, module in known.items():
        handles += [module.register_forward_pre_hook(enter(name)), module.register_forward_hook(leave)]
    try:
        with watch:
            task.model(task.inputs[:1])
    finally:
        for handle in handles:
            handle.remove()
    what = type(task.model).__name__
    if reused := [name for name, number in calls.items() if number > 1]:
        raise DoesNotFit(
            f"DeepLIFT needs every activation to be a module of its own, but {what} uses {reused[0]!r} "
            f"{calls[reused[0]]} times: give each place its own module, or choose another method"
        )
    if watch.found:
        raise DoesNotFit(
            f"DeepLIFT needs activations as modules, but {what} calls {', '.join(sorted(watch.found))} as a function: "
            "use modules such as nn.ReLU, or choose another method"
        )
