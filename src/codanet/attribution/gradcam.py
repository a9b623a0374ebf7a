"""GradCAM: the last map before pooling, its channels weighted by the mean gradient of the logit (sec. C.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from codanet._support.messages import nearest

from .task import MethodSettings, Task

POOLING = (
    nn.AvgPool2d,
    nn.MaxPool2d,
    nn.LPPool2d,
    nn.FractionalMaxPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
)


@dataclass(frozen=True)
class GradCam(MethodSettings):
    """ReLU(Σ_k mean(∂logit/∂A_k) A_k), enlarged to the image.

    A is the output of the module named `layer`; without one, the last map [N, K, h, w] that the logit depends on and
    that no pooling made: of a ResNet the last stage, of a CoDA-Net the last layer, whose maps are the classes' own, so
    that GradCAM is the positive part of the class's map. The ReLU is that of the GradCAM paper, kept in the CoDA-Nets
    paper; its published figures were enlarged with interpolation="nearest", which shows the cells of A.
    """

    needs = "layer"

    layer: str | None = None
    interpolation: Literal["bilinear", "nearest"] = "bilinear"

    def __post_init__(self) -> None:
        if self.interpolation not in ("bilinear", "nearest"):
            raise ValueError(f"interpolation is {self.interpolation!r}: choose bilinear or nearest")

    def check(self, model: nn.Module) -> None:
        names = [name for name, _ in model.named_modules() if name]
        if self.layer is not None and self.layer not in names:
            raise ValueError(f"{type(model).__name__} has no layer {self.layer!r}{nearest(self.layer, names)}")

    def maps(self, task: Task) -> Tensor:
        from captum.attr import LayerAttribution, LayerGradCam

        method = LayerGradCam(task.model, _layer(task, self.layer))

        def enlarged(inputs: Tensor, targets: Tensor) -> Tensor:
            cells = method.attribute(inputs, targets, relu_attributions=True)  # [n, 1, h, w]
            return LayerAttribution.interpolate(cells, task.size, self.interpolation)

        return task.per_image(enlarged, task.gradient_batch)


def _layer(task: Task, name: str | None) -> nn.Module:
    """The module called `name`, or the last that makes a map, for a single image."""
    outputs: list[tuple[str, Tensor]] = []
    pooled: list[Tensor] = []

    def record(name: str) -> Any:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and output.ndim == 4 and output.requires_grad:
                outputs.append((name, output))
                if isinstance(module, POOLING):
                    pooled.append(output)

        return hook

    modules = dict(task.model.named_modules())
    handles = [module.register_forward_hook(record(name)) for name, module in modules.items()]
    try:
        logit = task.model(task.inputs[:1].clone().requires_grad_())[0, task.targets[0]]
    finally:
        for handle in handles:
            handle.remove()
    gradients = torch.autograd.grad(logit, [output for _, output in outputs], allow_unused=True) if outputs else ()
    used = [(key, output) for (key, output), each in zip(outputs, gradients, strict=True) if each is not None]
    what = type(task.model).__name__
    if name is not None:
        if name not in [key for key, _ in used]:
            known = ", ".join(dict.fromkeys(key for key, _ in used)) or "none"
            raise ValueError(f"layer {name!r} of {what} makes no map [N, K, h, w] of the logit: those that do: {known}")
        return modules[name]
    # an eval-mode Dropout, or a Sequential that ends in a pooling, hands the pooled map on
    after_pooling = {output.data_ptr() for output in pooled}
    maps = [key for key, map in used if map.data_ptr() not in after_pooling and map.shape[2] * map.shape[3] > 1]
    if not maps:
        raise ValueError(
            f"GradCAM needs a layer that makes a map [N, K, h, w], and {what} has none before its pooling: name one "
            "with GradCam(layer=...), or choose another method"
        )
    return modules[maps[-1]]
