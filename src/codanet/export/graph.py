"""A CoDA-Net and its explanation as one ONNX graph, written operation by operation.

A layer is what `dau.py` says it is, with the positions of a map flattened to P = H'·W':

    y, z = Conv(x, [Â, B, 0] + [0, 0, 1])            the appended one of z is the bias of a filter of zeros
    scale = g(‖Fᵀz‖)                                  F of the parameters alone, made in PyTorch: ONNX has no Cholesky
    out = scale · Σ_r z_r y_r
    back = ConvTranspose(z_r · t_j · scale_j, Â)      the very Â of the way in: it is in the file once

Only operations of opset 17 that every runtime has are used. Batch, height and width are free unless a size is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from torch import Tensor, nn

from .._support.version import __version__
from ..dau import DAUConv2d
from ..models.hybrid import HybridNet
from ..models.network import CoDANet
from ..rescale import in_range
from .features import backbone, encoded
from .numbers import numbers

OPSET, IR_VERSION = 17, 8  # what runtimes of 2022 and later read
SMALLEST = 2.0**-100  # the least size, as in dau.py


class Graph:
    """Nodes and constants, each named when it is added."""

    def __init__(self, half: bool):
        self.half = half
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self.count = 0

    def add(self, kind: str, *inputs: str, out: str | None = None, **attributes: Any) -> str:
        return self.several(kind, inputs, [out or self.fresh(kind)], **attributes)[0]

    def several(self, kind: str, inputs: Sequence[str], outputs: list[str], **attributes: Any) -> list[str]:
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, name=self.fresh(kind), **attributes))
        return outputs

    def fresh(self, kind: str) -> str:
        self.count += 1
        return f"{kind.lower()}_{self.count}"

    def constant(self, name: str, values: Any, dtype: type = np.float32) -> str:
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(values, dtype=dtype), name)
        return name

    def number(self, value: float) -> str:
        return self.constant(f"number_{value!r}", value)

    def shape(self, *sizes: int) -> str:
        return self.constant("shape_" + "_".join(map(str, sizes)), sizes, np.int64)

    def weight(self, name: str, values: NDArray[np.float32]) -> str:
        """A parameter; kept in half precision and widened when the file is loaded, where that is asked for."""
        if not self.half:
            return self.constant(name, values)
        return self.add("Cast", self.constant(f"{name}_half", values, np.float16), to=TensorProto.FLOAT)


class _Layer:
    """A layer in the graph: the way in, and the way back."""

    def __init__(self, graph: Graph, layer: DAUConv2d, factor: Tensor, name: str):
        self.graph, self.layer, self.name = graph, layer, name
        self.R, self.n, _ = layer.A.shape
        self.A = graph.weight(f"{name}.A", _filters(layer, layer.A.flatten(0, 1)))
        self.B = graph.weight(f"{name}.B", _filters(layer, layer.B))
        _, self.m, _ = factor.shape
        factor, s = in_range(factor)
        # rows F_jᵀ, m of them a unit
        self.F = graph.constant(f"{name}.F", numbers(factor.permute(1, 2, 0).flatten(0, 1)))
        self.s = graph.constant(f"{name}.s", numbers(s)[:, None])

    def forward(self, x: str) -> str:
        graph, layer, R, n = self.graph, self.layer, self.R, self.n
        filters = [self.A, self.B]
        if layer.has_bias:
            filters.append(graph.constant(f"{self.name}.zero", np.zeros((1, layer.in_channels, *self._kernel))))
        bias = np.zeros(R * n + R)
        bias[-1] = float(layer.has_bias)
        self.input = x
        joined = graph.add("Concat", *filters, axis=0)
        products = graph.add(
            "Conv", x, joined, graph.constant(f"{self.name}.one", bias), **self._geometry
        )  # [N, R·n + R, H', W']
        positions = graph.add("Slice", graph.add("Shape", products), graph.shape(2), graph.shape(4), graph.shape(0))
        self.output_shape = [graph.add("Concat", graph.shape(0, units), positions, axis=0) for units in (n, R * n)]
        flat = graph.add("Reshape", products, graph.shape(0, R * n + R, -1))
        y, z = graph.several("Split", [flat, graph.shape(R * n, R)], [graph.fresh("y"), graph.fresh("z")], axis=1)
        size = graph.add("ReduceMax", graph.add("Abs", z), axes=[1], keepdims=1)
        size = graph.add("Max", size, graph.number(SMALLEST))  # [N, 1, P]
        z = graph.add("Div", z, size)
        self.scale = self._scale(z, size)  # [N, n, P]
        self.z = graph.add("Reshape", z, graph.shape(0, R, 1, -1))
        y = graph.add("Reshape", y, graph.shape(0, R, n, -1))
        u = graph.add("ReduceSum", graph.add("Mul", y, self.z), graph.shape(1), keepdims=0)
        return graph.add("Reshape", graph.add("Mul", u, self.scale), self.output_shape[0])

    def _scale(self, z: str, size: str) -> str:
        """size · α(‖u_j‖), zero where the weight is; `codanet.rescale.scales`."""
        graph, rescaling = self.graph, self.layer._rescaling
        v = graph.add(
            "Reshape", graph.add("MatMul", self.F, z), graph.shape(0, self.m, self.n, -1)
        )  # F_jᵀz, [N, m, n, P]
        power = graph.add("Abs", v) if rescaling.order == 1 else graph.add("Mul", v, v)
        power = graph.add("ReduceSum", power, graph.shape(1), keepdims=0)
        some = graph.add("Greater", power, graph.number(0))
        power = graph.add("Where", some, power, graph.number(1))
        length = power if rescaling.order == 1 else graph.add("Sqrt", power)
        if rescaling.name == "sq":  # length / (length² + 1/magnitude²)
            magnitude = graph.add("Mul", size, self.s)
            inverse = graph.add("Reciprocal", graph.add("Mul", magnitude, magnitude))
            factor = graph.add("Div", length, graph.add("Add", power, inverse))
        else:
            factor = graph.add("Reciprocal", length)
        return graph.add("Div", graph.add("Where", some, factor, graph.number(0)), self.s)

    def pull(self, rows: str) -> str:
        """Rows [N, n, P or 1] over the output as rows [N, C, H·W] over the input."""
        graph, layer, n = self.graph, self.layer, self.n
        t = graph.add("Reshape", graph.add("Mul", rows, self.scale), graph.shape(0, 1, n, -1))
        t = graph.add("Reshape", graph.add("Mul", self.z, t), self.output_shape[1])
        back = graph.add("ConvTranspose", t, self.A, **self._geometry, output_padding=[layer.stride - 1] * 2)
        if layer.stride > 1:  # as many rows and columns as the input has: a stride may leave some that no patch reached
            ends = graph.add("Slice", graph.add("Shape", self.input), graph.shape(2), graph.shape(4), graph.shape(0))
            back = graph.add("Slice", back, graph.shape(0, 0), ends, graph.shape(2, 3))
        return graph.add("Reshape", back, graph.shape(0, layer.in_channels, -1))

    @property
    def _kernel(self) -> tuple[int, int]:
        return (self.layer.kernel_size, self.layer.kernel_size)

    @property
    def _geometry(self) -> dict[str, Any]:
        stride, padding = self.layer.stride, self.layer.padding
        return {"kernel_shape": list(self._kernel), "strides": [stride] * 2, "pads": [padding] * 4}


def build(
    model: CoDANet,
    metadata: dict[str, str],
    *,
    channels: bool = False,
    rows: bool = False,
    size: tuple[int, int] | None = None,
    half: bool = False,
) -> ModelProto:
    """The graph: `image` [N, C, H, W] and `target` [N] to `logits`, `contributions` and what else is asked for.

    For one image there may be any number M of targets: the way back is walked for each, the way in once.
    """
    graph = Graph(half)
    layers = [
        _Layer(graph, layer, factor, f"layers.{number}")
        for number, (layer, factor) in enumerate(zip(model.dau_layers, model.norm_factors(), strict=True))
    ]
    inputs = maps = encoded(graph, model)
    for layer in layers:
        maps = layer.forward(maps)
    pooled = graph.add(
        "Div", graph.add("ReduceSum", maps, graph.shape(2, 3), keepdims=0), graph.number(model.temperature)
    )
    graph.add("Add", pooled, graph.constant("b0", model.logit_bias), out="logits")
    predicted = graph.add("ArgMax", "logits", axis=1, keepdims=0)
    target = graph.add("Where", graph.add("Less", "target", graph.constant("first", 0, np.int64)), predicted, "target")
    classes = graph.constant("classes", np.arange(model.num_classes), np.int64)
    chosen = graph.add("Equal", graph.add("Unsqueeze", target, graph.shape(1)), classes)  # [N, classes], at most one
    row = graph.add("Unsqueeze", graph.add("Cast", chosen, to=TensorProto.FLOAT), graph.shape(2))
    row = graph.add("Div", row, graph.number(model.temperature))
    for layer in reversed(layers):
        row = layer.pull(row)
    sizes = graph.add("Slice", graph.add("Shape", inputs), graph.shape(1), graph.shape(4), graph.shape(0))
    shape = graph.add("Concat", graph.shape(0), sizes, axis=0)
    # both are in every graph, so that a reader of the file can ask for them
    graph.add("Mul", graph.add("Reshape", row, shape, out="rows"), inputs, out="channels")
    graph.add("ReduceSum", "channels", graph.shape(1), out="contributions", keepdims=0)
    onnx_model = _complete(graph, model.name, _inputs(model, size), _outputs(model, size, channels, rows))
    helper.set_model_props(onnx_model, metadata)
    return onnx_model


def build_backbone(part: nn.Module, size: tuple[int, int]) -> ModelProto:
    """The graph of a backbone alone, known to `features.known`: one `image` [1, 3, H, W] to `maps`."""
    graph = Graph(half=False)
    graph.add("Identity", backbone(graph, part), out="maps")
    return _complete(graph, "backbone", [_floats("image", 1, 3, *size)], [_floats("maps", 1, "C", "h", "w")])


def _complete(
    graph: Graph, name: str, inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]
) -> ModelProto:
    return helper.make_model(
        helper.make_graph(graph.nodes, name, inputs, outputs, list(graph.constants.values())),
        producer_name="codanet",
        producer_version=__version__,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )


def _floats(name: str, *shape: int | str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _inputs(model: CoDANet, size: tuple[int, int] | None) -> list[ValueInfoProto]:
    return [
        _floats("image", "N", model.image_channels, *(size or ("H", "W"))),
        helper.make_tensor_value_info("target", TensorProto.INT64, ["M"]),
    ]


def _outputs(model: CoDANet, size: tuple[int, int] | None, channels: bool, rows: bool) -> list[ValueInfoProto]:
    height, width = size or ("H", "W")
    channels_seen = 2 * model.image_channels
    if isinstance(model, HybridNet):  # contributions of features, as many as the backbone makes
        height, width, channels_seen = "h", "w", model.encoded_channels
    encoded = ["M", channels_seen, height, width]
    shapes: dict[str, list[Any]] = {"logits": ["N", model.num_classes], "contributions": ["M", height, width]}
    shapes |= {"channels": encoded} if channels else {}
    shapes |= {"rows": encoded} if rows else {}
    return [_floats(name, *shape) for name, shape in shapes.items()]


def _filters(layer: DAUConv2d, rows: Any) -> NDArray[np.float32]:
    return numbers(layer._filters(rows, rows.dtype))
