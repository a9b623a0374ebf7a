"""Operations, bytes and kernels of real runs, counted as they are dispatched, to check the formulas of `costs`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from codanet import forms
from codanet.benchmarks.algorithm1 import Algorithm1Net
from codanet.models.zoo import create_model
from costs import FIRST, METHODS, OURS, Method
from operations import WIDE, Shape, shapes

_ALLOCATE = {"empty", "new_empty", "empty_like", "new_empty_strided", "empty_strided", "_unsafe_view", "promote_types"}
_FILL = {"zeros", "zeros_like", "new_zeros", "ones_like", "scalar_tensor", "fill_", "zero_"}  # write, do not read


@dataclass(frozen=True)
class Counts:
    forward_flops: float
    flops: float  # of a step
    forward_bytes: float
    bytes: float
    kept: float  # bytes
    kernels: float

    def ratios(self, other: Counts) -> list[float]:
        return [getattr(self, field) / getattr(other, field) for field in self.__dataclass_fields__]


class Counter(TorchDispatchMode):
    """Operations and bytes of every kernel: each tensor it reads or writes counts once, a broadcast one as stored.

    FlopCounterMode sees `mm` and `bmm`, with out= too, but neither `addmm_` nor Cholesky.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.bytes = self.kernels = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if func.is_view or name in _ALLOCATE or (name == "copy_" and _same(*args[:2])):
            return out
        read = [] if name in _FILL else args[1:] if name == "copy_" else args
        self.bytes += sum(_stored(read).values()) + sum(_stored(out).values())
        self.kernels += 1
        if name == "addmm_":
            self.flops += 2 * math.prod(args[1].shape) * args[2].shape[1]
        elif name == "linalg_cholesky_ex":
            self.flops += math.prod(args[0].shape) * args[0].shape[-1] / 3
        elif func.overloadpacket in flop_registry:
            inputs = {key: value for key, value in kwargs.items() if key != "out"}
            self.flops += flop_registry[func.overloadpacket](*args, **inputs, out_val=out)
        return out


def _same(to: Tensor, of: Tensor) -> bool:
    """`x[i] += y` ends in a copy of x[i] onto itself, which PyTorch leaves out."""
    return to.is_set_to(of) and to.dtype == of.dtype


def _stored(tree: Any) -> dict[tuple[int, int], int]:
    sizes = {}
    for tensor in tree_leaves(tree):
        if isinstance(tensor, Tensor):
            numbers = math.prod(s for s, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
            whole = tensor.untyped_storage().nbytes()  # overlapping windows of an image are no more than the image
            sizes[tensor.data_ptr(), tensor.ndim] = min(numbers * tensor.element_size(), whole)
    return sizes


@contextmanager
def one_block() -> Iterator[None]:
    """The batch in one block, and all products as products, as on a GPU."""
    before = forms.BLOCK_BYTES, forms.LOOP_NUMBERS
    forms.BLOCK_BYTES, forms.LOOP_NUMBERS = 1 << 60, 0
    try:
        yield
    finally:
        forms.BLOCK_BYTES, forms.LOOP_NUMBERS = before


def measure(network: nn.Module, images: Tensor, classes: int, autocast: bool = False) -> Counts:
    """Count one forward and one backward pass."""
    known = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    held: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    counter = Counter()
    precision = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    with one_block(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with counter, precision:
            logits = network(images)
        forward_flops, forward_bytes = counter.flops, counter.bytes
        kept = sum(tensor.untyped_storage().nbytes() for place, tensor in held.items() if place not in known)
        loss = binary_cross_entropy_with_logits(logits, torch.zeros(len(images), classes, dtype=logits.dtype))
        with counter:
            loss.backward()
    return Counts(forward_flops, counter.flops, forward_bytes, counter.bytes, kept, counter.kernels)


def predict(method: Method, layers: Sequence[Shape]) -> Counts:
    forward = [operation for layer in layers for operation in method.forward(layer)]
    step = [operation for layer in layers for operation in method.step(layer)]
    return Counts(
        sum(operation.flops for operation in forward),
        sum(operation.flops for operation in step),
        sum(operation.bytes for operation in forward),
        sum(operation.bytes for operation in step),
        sum(map(method.kept, layers)),
        sum(operation.kernels for operation in step),
    )


CHECKS = (("s_coda", 32, 2), ("l_coda", 48, 2))  # model, image size, batch: small enough for any machine
CHECKED = tuple(method for method in METHODS if method.arithmetic != "bf16, norms float32")  # counts as with TF32


def check(name: str, size: int, batch: int, method: Method) -> tuple[Counts, Counts]:
    """The formulas for a model, and the counts of a real run of it."""
    layers = shapes(name, None, size, batch)
    network: nn.Module = create_model(name, recompute="recompute" in method.arithmetic)
    if method.name == FIRST:
        network = Algorithm1Net.from_model(network)
    images = torch.rand(batch, 3, size, size)
    if method.name == FIRST and method.low < WIDE:  # all of it in bf16: autocast leaves some of its maps in float32
        network, images = network.bfloat16(), images.bfloat16()
    counts = measure(network, images, layers[-1].units, autocast=method.name == OURS and method.low < WIDE)
    return predict(method, layers), counts
