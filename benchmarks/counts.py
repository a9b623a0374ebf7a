"""What a network does in a training step, counted as it is dispatched: arithmetic, bytes moved, bytes alive.

The network runs on fake tensors, which have shapes but no numbers, so a GPU's batch of a large network is counted on
any machine in seconds. What is counted is the code itself, operation by operation; nothing is derived by hand but the
arithmetic of Cholesky factors and triangular systems, which PyTorch's own table leaves out.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from codanet.benchmarks.algorithm1 import Algorithm1Net
from codanet.models.network import CoDANet
from codanet.models.zoo import create_model

_ALLOCATE = {"empty", "new_empty", "empty_like", "new_empty_strided", "empty_strided", "_unsafe_view", "detach"}
_FILL = {"zeros", "zeros_like", "new_zeros", "ones_like", "scalar_tensor", "fill_", "zero_"}  # write, do not read
_BY_HAND: dict[str, Callable[..., float]] = {
    "linalg_cholesky_ex": lambda a, **_: math.prod(a.shape) * a.shape[-1] / 3,
    "linalg_solve_triangular": lambda a, b, **_: math.prod(b.shape) * a.shape[-1],
}


@dataclass(frozen=True)
class Operation:
    """One kernel."""

    name: str
    dtype: torch.dtype  # what it computes with
    flops: float
    bytes: float  # read and written: every tensor once, a broadcast one as it is stored
    alive: float  # bytes allocated since counting began and not yet freed, once it is done

    def at(self, other: Operation, batches: tuple[int, int], batch: int) -> Operation:
        """For any batch, of the same operation at two: all of it grows by the same amount with every image."""
        share = (batch - batches[0]) / (batches[1] - batches[0])
        numbers = {
            name: getattr(self, name) + share * (getattr(other, name) - getattr(self, name))
            for name in ("flops", "bytes", "alive")
        }
        return Operation(self.name, self.dtype, **numbers)


class Counter(TorchDispatchMode):
    """Records the operations that are dispatched while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.alive = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        inputs = _storages((args, kwargs))
        out = func(*args, **kwargs)
        for storage in _storages(out).values():
            if storage._cdata not in inputs and storage not in self._seen:
                self._seen.add(storage)
                self.alive += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        if func.is_view or name in _ALLOCATE or func.namespace == "prim":  # prim asks a fake tensor what it is
            return out
        read = [] if name in _FILL else args[1:] if name == "copy_" else args
        flops = 0.0
        if name in _BY_HAND:
            flops = _BY_HAND[name](*args, **kwargs)
        elif func.overloadpacket in flop_registry:
            flops = flop_registry[func.overloadpacket](*args, **kwargs, out_val=out)
        moved = sum(_stored(read).values()) + sum(_stored(out).values())
        floats = [leaf.dtype for leaf in tree_leaves(args) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        self.operations.append(Operation(name, floats[0] if floats else torch.float32, flops, moved, self.alive))
        return out

    def _free(self, size: int) -> None:
        self.alive -= size


def _storages(tree: Any) -> dict[int, Any]:
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}


def _stored(tree: Any) -> dict[tuple[Any, ...], int]:
    sizes = {}
    for tensor in tree_leaves(tree):
        if isinstance(tensor, Tensor):
            numbers = math.prod(s for s, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
            storage = tensor.untyped_storage()  # overlapping windows of an image are no more than the image
            key = storage._cdata, tensor.storage_offset(), tuple(tensor.shape)
            sizes[key] = min(numbers * tensor.element_size(), storage.nbytes())
    return sizes


@dataclass(frozen=True)
class Step:
    """A forward and a backward pass."""

    forward: tuple[Operation, ...]
    backward: tuple[Operation, ...]
    parameters: int

    @property
    def operations(self) -> tuple[Operation, ...]:
        return self.forward + self.backward

    @property
    def kept(self) -> float:
        """Bytes that the forward pass leaves for the backward pass."""
        return self.forward[-1].alive

    @property
    def peak(self) -> float:
        """Bytes at the fullest moment, gradients included, parameters not."""
        return max(operation.alive for operation in self.operations)

    def total(self, field: str) -> float:
        return sum(getattr(operation, field) for operation in self.operations)

    def at(self, other: Step, batches: tuple[int, int], batch: int) -> Step:
        forward, backward = (
            tuple(one.at(two, batches, batch) for one, two in zip(mine, theirs, strict=True))
            for mine, theirs in ((self.forward, other.forward), (self.backward, other.backward))
        )
        return Step(forward, backward, self.parameters)


def count(network: nn.Module, encoded: Tensor, low: torch.dtype = torch.float32) -> Step:
    """Count a step of `network` on encoded images; with `low`, under autocast."""
    precision = torch.autocast("cpu", low) if low != torch.float32 else nullcontext()
    counter = Counter()
    with counter:
        with precision:
            # the values of fake images cannot be looked at, so a CoDANet is not called by way of `encode`
            logits = network.pool(network.features(encoded)) if isinstance(network, CoDANet) else network(encoded)
        forward = len(counter.operations)
        binary_cross_entropy_with_logits(logits, torch.zeros_like(logits)).backward()
    operations = counter.operations
    return Step(tuple(operations[:forward]), tuple(operations[forward:]), sum(p.numel() for p in network.parameters()))


def count_fake(
    name: str, classes: int | None, size: int, batch: int, form: str, low: torch.dtype = torch.float32
) -> Step:
    """Count a model of the zoo by its name. `form` is "plain", "recompute" or "algorithm1"."""
    if form == "algorithm1":
        with torch.device("meta"):  # fake parameters cannot be converted; meta ones know no autocast
            plain = create_model(name, num_classes=classes)
            encoded = torch.empty(batch, 2 * plain.image_channels, size, size, dtype=low)
            # all of it in low precision: autocast would leave some of its maps in float32
            return count(Algorithm1Net.from_model(plain).to(low), encoded)
    with FakeTensorMode():
        model = create_model(name, num_classes=classes, recompute=form == "recompute")
        return count(model.train(), torch.empty(batch, 2 * model.image_channels, size, size), low)
