"""The matrix products of a run, convolutions among them: recorded as they are dispatched, and done again with nothing
between them, or with the least that operations apart from the products can do: write what goes into a product, and read
what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

MATRICES = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "addbmm", "addbmm_", "mv", "addmv", "addmv_"}
CONVOLUTIONS = {"convolution", "convolution_backward", "mkldnn_convolution"}  # they make their results anew, as there


@dataclass(frozen=True)
class Place:
    """Where the numbers of a tensor are, without keeping them."""

    address: int  # where its storage begins: what shared memory, at once or one after the other, shares it again
    numbers: int  # in the whole storage
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> Place:
        numbers = tensor.untyped_storage().nbytes() // tensor.element_size()
        offset = int(tensor.storage_offset())
        return cls(_address(tensor), numbers, tensor.dtype, tuple(tensor.shape), tensor.stride(), offset)


@dataclass(frozen=True)
class Product:
    function: Any  # an overload of aten
    args: tuple[Any, ...]  # a `Place` for every tensor
    kwargs: dict[str, Any]
    written: tuple[Place, ...] = ()  # operands that something else than a product has made since the last one used them

    def places(self) -> Iterator[Place]:
        return (leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Place))


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.products: list[Product] = []
        self.written: set[int] = set()  # addresses of what was written, and that no product has used yet

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name, given = func.overloadpacket.__name__, kwargs
        operands, results = {_address(t): t for t in _tensors((args, kwargs))}, {_address(t) for t in _tensors(result)}
        if name in MATRICES | CONVOLUTIONS:
            if name in MATRICES and func is func.overloadpacket.default and not func._schema.is_mutable:
                func, given = func.overloadpacket.out, kwargs | {"out": result}  # the result's memory is given too
            written = tuple(Place.of(t) for address, t in operands.items() if address in self.written)
            places, named = tree_map(_place, (tuple(args), given))
            self.products.append(Product(func, places, named, written))
            self.written -= operands.keys() | results
        else:  # a view writes nothing
            self.written |= results if func._schema.is_mutable else results - operands.keys()
        return result


def _place(leaf: Any) -> Any:
    return Place.of(leaf) if isinstance(leaf, Tensor) else leaf


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def record(run: Callable[[], Any]) -> list[Product]:
    """The matrix products of `run`, in order; those of a backward pass too, which on a CPU has no thread of its own."""
    with _Recorder() as recorder:
        run()
    return recorder.products


def replay(products: Sequence[Product], passes: bool = False) -> Callable[[], None]:
    """What does these products again, on memory that is shared as it was; it is allocated here, once.

    passes: also write, once, what was written for a product, and read what it gives.
    """
    numbers: dict[tuple[int, torch.dtype], int] = {}
    for place in (place for product in products for place in product.places()):
        key = place.address, place.dtype
        numbers[key] = max(numbers.get(key, 0), place.numbers)
    # Around one: sums of products of these are never so small that they are slow.
    memory = {key: torch.rand(count, dtype=key[1]).add_(0.5) for key, count in numbers.items()}

    def tensor(leaf: Any) -> Any:
        if not isinstance(leaf, Place):
            return leaf
        return memory[leaf.address, leaf.dtype].as_strided(leaf.shape, leaf.stride, leaf.offset)

    calls = [(p.function, *tree_map(tensor, (p.args, p.kwargs, p.written if passes else ()))) for p in products]

    def run() -> None:
        for function, args, kwargs, written in calls:
            for operand in written:
                operand.fill_(1.0)
            result = function(*args, **kwargs)
            if passes:
                for numbers in _tensors(result):
                    numbers.sum()

    return torch.no_grad()(run)
