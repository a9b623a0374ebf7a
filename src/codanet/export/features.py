"""The way from images to what the first layer sees, as ONNX operations: [x, 1-x], or a backbone's features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from ..models.efficientnet_lite import ConvNorm, InvertedResidual, Normalise
from ..models.hybrid import HybridNet
from ..models.network import CoDANet
from .numbers import numbers

if TYPE_CHECKING:
    from .graph import Graph


def encoded(graph: Graph, model: CoDANet) -> str:
    """What the first layer sees of `image`."""
    if not isinstance(model, HybridNet):
        return graph.add("Concat", "image", graph.add("Sub", graph.number(1), "image"), axis=1)
    if not known(model.backbone):
        raise ValueError(
            f"the backbone is {model.backbone_name}, whose operations are not known in ONNX here: write a .pt2 file, "
            "or use efficientnet_lite0"
        )
    maps = backbone(graph, model.backbone)
    scaled = graph.add("Mul", maps, graph.constant("feature_scale", numbers(model.feature_scale)))
    if model.encoding == "signed":
        return scaled
    return graph.add("Concat", graph.add("Relu", scaled), graph.add("Relu", graph.add("Neg", scaled)), axis=1)


def backbone(graph: Graph, part: nn.Module) -> str:
    """The maps that a known part makes of `image`."""
    maps = "image"
    for name, module in _modules(part):
        if isinstance(module, Normalise):
            maps = graph.add("Sub", graph.add("Mul", maps, graph.number(255)), graph.number(127))
            maps = graph.add("Div", maps, graph.number(128))
        elif isinstance(module, ConvNorm):
            maps = _conv_norm(graph, name, module, maps)
        else:
            maps = _residual(graph, name, cast(InvertedResidual, module), maps)
    return maps


def known(part: nn.Module) -> bool:
    """Whether its operations are known here: of EfficientNet-Lite0, as far as a layer."""
    modules = [module for _, module in _modules(part)]
    return bool(modules) and all(isinstance(module, (Normalise, ConvNorm, InvertedResidual)) for module in modules)


def _modules(part: nn.Module) -> list[tuple[str, nn.Module]]:
    """In the order they run."""
    found: list[tuple[str, nn.Module]] = []
    for name, module in part.named_children():
        several = module.named_children() if type(module) is nn.Sequential else [("", module)]
        found += [(f"backbone.{name}.{inner}".rstrip("."), each) for inner, each in several]
    return found


def _conv_norm(graph: Graph, name: str, module: ConvNorm, maps: str) -> str:
    convolution, norm = module.conv, module.norm
    options: dict[str, Any] = {
        "kernel_shape": list(convolution.kernel_size),
        "strides": list(convolution.stride),
        "group": convolution.groups,
        "auto_pad": "SAME_UPPER",  # ⌈size / stride⌉ positions, whatever the size
    }
    maps = graph.add("Conv", maps, graph.weight(f"{name}.conv", numbers(convolution.weight)), **options)
    parts = {
        "weight": norm.weight,
        "bias": norm.bias,
        "mean": cast(Tensor, norm.running_mean),
        "var": cast(Tensor, norm.running_var),
    }
    constants = [graph.constant(f"{name}.{key}", numbers(values)) for key, values in parts.items()]
    maps = graph.add("BatchNormalization", maps, *constants, epsilon=norm.eps)
    return graph.add("Clip", maps, graph.number(0), graph.number(6)) if hasattr(module, "relu") else maps


def _residual(graph: Graph, name: str, module: InvertedResidual, before: str) -> str:
    maps = before
    for part in ("expand", "depthwise", "project"):
        each = getattr(module, part)
        maps = maps if isinstance(each, nn.Identity) else _conv_norm(graph, f"{name}.{part}", each, maps)
    return graph.add("Add", maps, before) if module.residual else maps
