"""What a CoDA-Net costs to train on many GPUs: operations and bytes by formula, checked by counting real runs.

    python benchmarks/scaling.py                             print the tables
    python benchmarks/scaling.py --check                     count real runs on this machine beside the formulas
    python benchmarks/scaling.py --markdown docs/scaling.md  do both and write them into that page

The formulas follow the layer operation by operation, as it runs on a GPU: the whole batch in one block. Times are
computed from them with the constants below; nothing here has been timed on a GPU.

Symbols, as in `codanet.forms`: P patches of d numbers, n units, R = rank + 1 rows of Â (the last is the bias).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from algorithm1 import Algorithm1Net
from codanet import forms
from codanet.norm import _TRIANGLE, _is_direct
from codanet.patches import output_size
from codanet.zoo import ARCHITECTURES, create_model

# The training run
MODEL, CLASSES, SIZE, EPOCHS = "l_coda", 1000, 240, 60  # L-CoDA; resize 256, crop 240; epochs as for ImageNet-100
IMAGES = 1_281_167  # ILSVRC 2012 training set (Russakovsky et al. 2015)
IMAGE_BYTES = 110e3  # mean size of one of its JPEG files: 138 GB in all
RECIPE_BATCH, LARGE_BATCH = 64, 1024  # global: the paper's (sec. C.1), and one that fills 64 GPUs
DEVICES = (8, 64)

# One GPU: NVIDIA H100 SXM, data sheet, dense rates (half of those quoted with sparsity)
TERA = 1e12
BF16, TF32, FP32, FP64 = 989 * TERA, 495 * TERA, 67 * TERA, 67 * TERA  # FP64 on tensor cores
HBM, CAPACITY = 3.35e12, 80e9  # bytes/s, bytes
NVLINK, INFINIBAND = 450e9, 50e9  # bytes/s each way per GPU: NVLink 4, 900 GB/s both ways; NDR, 400 Gb/s
NODE = 8  # GPUs joined by NVLink, one InfiniBand port each

# Our assumptions, not on any data sheet
COMPUTE_SHARE, BANDWIDTH_SHARE, MEMORY_SHARE = 0.4, 0.7, 0.9  # of peak rate, of memory and links, of capacity
CHOLESKY = 1 * TERA  # float64, many small matrices: bound by latency, far below the peak
KERNEL_SECONDS = 5e-6  # eager PyTorch starts a kernel about this often, so none takes less

WIDE = 4  # bytes of float32
OURS, FIRST = "our layer", "Algorithm 1"


@dataclass(frozen=True)
class Shape:
    """One layer on one batch."""

    patches: int  # P
    size: int  # d
    units: int  # n
    rank: int
    inputs: int  # numbers in the batch of inputs
    padded: int  # the same with padding
    kernel: int
    first: bool  # the images need no gradient

    @property
    def rows(self) -> int:
        return self.rank + 1  # R

    @property
    def parameters(self) -> int:
        return self.rank * self.size + self.rows * self.units * self.size  # B and Â


def shapes(name: str, classes: int | None, size: int, batch: int) -> list[Shape]:
    architecture = ARCHITECTURES[name]
    layers = [
        *architecture.layers[:-1],
        replace(architecture.layers[-1], units=classes or architecture.layers[-1].units),
    ]
    channels, made = 2 * architecture.image_channels, []
    for index, layer in enumerate(layers):
        padding = (layer.kernel_size - 1) // 2
        after = output_size(size, layer.kernel_size, layer.stride, padding)
        made.append(
            Shape(
                patches=batch * after**2,
                size=channels * layer.kernel_size**2,
                units=layer.units,
                rank=layer.rank,
                inputs=batch * channels * size**2,
                padded=batch * channels * (size + 2 * padding) ** 2,
                kernel=layer.kernel_size,
                first=index == 0,
            )
        )
        channels, size = layer.units, after
    return made


class Operation(NamedTuple):
    name: str
    bytes: float  # read and written
    flops: float = 0
    kind: str = "low"  # of arithmetic: low, wide (float32), double or cholesky; a key of `Method.rates`
    kernels: int = 1


# ---- our layer ------------------------------------------------------------------------------------------------------


def our_forward(s: Shape, low: int) -> list[Operation]:
    """`low` is the size of a number in the products with patches: 4 bytes (float32, TF32), or 2 (bf16 autocast)."""
    P, d, n, r, R = s.patches, s.size, s.units, s.rank, s.rows
    cast = low != WIDE
    given = WIDE if s.first else low
    ops = []
    if s.kernel > 1:
        ops.append(Operation("unfold", given * (s.inputs + 2 * s.padded + P * d), kernels=2))
    if given != low:
        ops.append(Operation("cast p", P * d * (given + low)))
    ops.append(Operation("z = Bp", low * (P * d + r * d + P * r), 2 * P * r * d))
    if cast:
        ops.append(Operation("cast B, z", (r * d + P * r) * (WIDE + low), kernels=2))
    ops.append(Operation("unit of z", WIDE * (4 * P * r + 3 * P * R + 16 * P), kernels=11))
    ops += _norm_forward(s)
    ops.append(Operation("scale", WIDE * 19.5 * P * n, kernels=9))
    if cast:
        ops.append(Operation("cast A", R * n * d * (WIDE + low)))
    ops.append(Operation("U = Âp", low * (P * d + R * n * d + P * R * n), 2 * P * R * n * d))
    if cast:
        ops.append(Operation("cast U", P * R * n * (low + WIDE)))
    ops.append(Operation("zU", WIDE * (P * R + P * R * n + P * n), 2 * P * R * n, "wide"))
    ops.append(Operation("output", WIDE * 5 * P * n + cast * P * n * (WIDE + low), kernels=2 + cast))
    return ops


def _norm_forward(s: Shape) -> list[Operation]:
    P, d, n, R = s.patches, s.size, s.units, s.rows
    if _is_direct(2, P, R, d, torch.float32):
        return [
            Operation("size of A", WIDE * 3 * R * n * d, kernels=5),
            Operation("u = Âz", WIDE * (P * R + R * n * d + P * n * d), 2 * P * R * n * d, "wide"),
            Operation("‖u‖", WIDE * (3 * P * n * d + 5 * P * n), kernels=4),
        ]
    ops = [
        Operation("A in float64", R * n * d * (WIDE + 8)),
        Operation("G = ÂᵀÂ", 8 * (R * n * d + n * R * R), 2 * n * R * R * d, "double"),
        Operation("L Lᵀ = G", 16 * n * R * R, n * R**3 / 3, "cholesky"),
        Operation("G and L, elementwise", 104 * n * R * R, kernels=17),
    ]
    step = math.ceil(R / max(1, round(R / _TRIANGLE)))
    for start in range(0, R, step):
        m, left = min(step, R - start), R - start
        if step < R:
            ops.append(Operation("part of L", WIDE * 2 * left * m * n))
        ops.append(Operation("Lᵀz", WIDE * (P * left + left * m * n + P * m * n), 2 * P * left * m * n, "wide"))
        ops.append(Operation("‖Lᵀz‖²", WIDE * (3 * P * m * n + 6 * P * n), kernels=4))
    return [*ops, Operation("‖u‖", WIDE * 5 * P * n, kernels=3)]


def our_backward(s: Shape, low: int, recompute: bool = False) -> list[Operation]:
    P, d, n, r, R = s.patches, s.size, s.units, s.rank, s.rows
    cast, U, A = low != WIDE, P * R * n, R * n * d
    ops = [Operation("dt", WIDE * 6 * P * n + cast * P * n * (WIDE + low), kernels=2 + cast)]
    if recompute:
        ops.append(Operation("U again", low * (P * d + A + U), 2 * P * R * n * d))
    ops.append(Operation("dz = Ut", low * U + WIDE * (2 * U + P * n + 3 * P * R), kernels=3))
    ops.append(Operation("z ⊗ t", WIDE * (P * R + P * n + U)))
    if cast:
        ops.append(Operation("cast z ⊗ t", U * (WIDE + low)))
    ops.append(Operation("dp = (z ⊗ t)Â", low * (U + A + P * d), 2 * P * R * n * d))
    if cast:
        ops.append(Operation("dÂ = (z ⊗ t)ᵀp", low * (U + P * d + A), 2 * P * R * n * d))
        ops.append(Operation("sum and cast dÂ", A * (5 * WIDE + 3 * low), kernels=4))
    else:
        ops.append(Operation("dÂ = (z ⊗ t)ᵀp", low * (U + P * d + 2 * A), 2 * P * R * n * d))
        ops.append(Operation("zero dÂ", WIDE * A))
    ops.append(Operation("d scale", WIDE * 54 * P * n, kernels=23))
    ops += _norm_backward(s)
    ops.append(Operation("add dz, dÂ", WIDE * (5 * P * R + 3 * A), kernels=3))
    if cast:
        ops.append(Operation("cast dz, dB", (P * r + r * d) * (WIDE + low), kernels=2))
    ops.append(Operation("dB", low * (P * r + P * d + r * d), 2 * P * r * d))
    if not s.first:
        ops.append(Operation("dp += Bᵀdz", low * (P * r + r * d + P * d), 2 * P * r * d))
        ops.append(Operation("add dp", low * 3 * P * d))
        if s.kernel > 1:
            ops.append(Operation("fold", low * (s.padded + 5 * P * d), kernels=1 + 2 * s.kernel**2))
    return ops


def _norm_backward(s: Shape) -> list[Operation]:
    P, d, n, R = s.patches, s.size, s.units, s.rows
    if _is_direct(2, P, R, d, torch.float32):
        D, flops = P * n * d, 2 * P * R * n * d
        return [
            Operation("u = Âz", WIDE * (P * R + R * n * d + D), flops, "wide"),
            Operation("du", WIDE * (4 * D + P * n), kernels=2),
            Operation("dz = Âdu", WIDE * (D + R * n * d + P * R), flops, "wide"),
            Operation("dÂ = du zᵀ", WIDE * (P * R + D + 3 * R * n * d), flops, "wide", kernels=2),
            Operation("copy dz", WIDE * 2 * P * R),
        ]
    G, U = R * R * n, P * R * n
    return [
        Operation("Gz", WIDE * (P * R + G + U), 2 * P * R * R * n, "wide"),
        Operation("dz = Σ Gz", WIDE * (3 * U + P * n + 3 * P * R + 2 * G), kernels=4),
        Operation("z ⊗ t", WIDE * (P * R + P * n + U)),
        Operation("Σ zzᵀ", WIDE * (U + P * R + 3 * G), 2 * P * R * R * n, "wide", kernels=2),
        Operation("dÂ = ÂΣzzᵀ", WIDE * (3 * G + 2 * R * n * d), 2 * n * R * R * d, "wide", kernels=2),
    ]


def our_kept(s: Shape, low: int, recompute: bool = False) -> float:
    """Bytes kept for the backward pass beside the parameters: p, z, U; nine maps [P, n] and a mask of the rescaling."""
    P, d, n, r, R = s.patches, s.size, s.units, s.rank, s.rows
    maps = WIDE * (P * R + P + 9 * P * n) + P * n
    gram = 0 if _is_direct(2, P, R, d, torch.float32) else WIDE * n * R * R
    casts = low * (r * d + R * n * d) if low != WIDE else 0
    return low * P * d + (0 if recompute else low * P * R * n) + maps + gram + casts


def our_working(s: Shape, low: int) -> float:
    """Bytes held for a moment: Gz and z ⊗ t, or u and its gradient, and two of p; or Â and four of G in float64."""
    P, d, n, R = s.patches, s.size, s.units, s.rows
    direct = _is_direct(2, P, R, d, torch.float32)
    gram = 0 if direct else 8 * (R * n * d + 4 * n * R * R)
    return max(WIDE * 2 * P * n * (d if direct else R) + low * 2 * P * d, gram)


# ---- Algorithm 1, everything in one type ----------------------------------------------------------------------------


def first_forward(s: Shape, low: int) -> list[Operation]:
    P, d, n, r, D = s.patches, s.size, s.units, s.rank, s.patches * s.size * s.units
    return [
        Operation("z = Bx", low * (s.inputs + r * d + P * r), 2 * P * r * d),
        Operation("u = Az + b", low * (P * r + (r + 1) * n * d + D), 2 * P * r * n * d),
        Operation("‖u‖", low * (D + P * n)),
        Operation("scale", low * 13 * P * n + 3 * P * n, kernels=6),
        Operation("w = scale · u", low * (2 * D + P * n)),
        Operation("unfold", low * (s.inputs + P * d)),
        Operation("w ⊙ p", low * (2 * D + P * d)),
        Operation("Σ w ⊙ p", low * (D + P * n)),
    ]


def first_backward(s: Shape, low: int) -> list[Operation]:
    P, d, n, r, D = s.patches, s.size, s.units, s.rank, s.patches * s.size * s.units
    ops = [Operation("dw", low * (D + P * n + P * d))]
    if not s.first:
        ops.append(Operation("dp", low * (3 * D + P * n + P * d), kernels=2))
        ops.append(Operation("fold", low * (4 * s.inputs + P * d), kernels=2))
    return [
        *ops,
        Operation("d scale", low * (3 * D + D + P * n), kernels=2),
        Operation("du, through w", low * (2 * D + P * n)),
        Operation("d norm", low * 29 * P * n + 4 * P * n, kernels=12),
        Operation("du, through ‖u‖", low * (6 * D + 2 * P * n) + P * n, kernels=3),
        Operation("add du", low * 3 * D),
        Operation("dz, dA, db", low * (D + 2 * P * r + (2 * r + 1) * n * d), 4 * P * r * n * d),
        Operation(
            "dx, dB",
            low * (P * r + s.inputs * (1 if s.first else 2) + 2 * r * d),
            (2 if s.first else 4) * P * r * d,
        ),
    ]


def first_kept(s: Shape, low: int) -> float:
    """u and w, [P, d, n] each; the input and its patches; z; six small maps [P, n]."""
    P, d, n = s.patches, s.size, s.units
    weights = 1 if s.first else 2  # w gives the gradient of the patches, which images do not need
    inputs = s.inputs if s.first else 0  # later on it is counted as the output of the layer before, among the six
    return low * (weights * P * d * n + P * d + inputs + P * s.rank + 6 * P * n) + P * n


def first_working(s: Shape, low: int) -> float:
    """Bytes held for a moment: three maps [P, d, n] where the two paths to u meet."""
    return low * 3 * s.patches * s.size * s.units


# ---- time and memory on a GPU ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    name: str
    arithmetic: str
    forward: Callable[[Shape], list[Operation]]
    backward: Callable[[Shape], list[Operation]]
    kept: Callable[[Shape], float]
    working: Callable[[Shape], float]
    rates: dict[str, float]

    @property
    def label(self) -> str:
        return f"{self.name}, {self.arithmetic}"

    def step(self, layer: Shape) -> list[Operation]:
        return self.forward(layer) + self.backward(layer)


def ours(low: int, products: float, norms: float, arithmetic: str, recompute: bool = False) -> Method:
    rates = {"low": products, "wide": norms, "double": FP64}
    return Method(
        OURS,
        arithmetic,
        partial(our_forward, low=low),
        partial(our_backward, low=low, recompute=recompute),
        partial(our_kept, low=low, recompute=recompute),
        partial(our_working, low=low),
        rates,
    )


def algorithm1(low: int, products: float, arithmetic: str) -> Method:
    return Method(
        FIRST,
        arithmetic,
        partial(first_forward, low=low),
        partial(first_backward, low=low),
        partial(first_kept, low=low),
        partial(first_working, low=low),
        {"low": products},
    )


METHODS = (
    ours(4, TF32, TF32, "TF32"),
    ours(2, BF16, TF32, "bf16, norms TF32"),
    ours(2, BF16, FP32, "bf16, norms float32"),
    ours(2, BF16, TF32, "bf16, norms TF32, recompute", recompute=True),
    algorithm1(4, TF32, "TF32"),
    algorithm1(2, BF16, "bf16"),
)


def seconds(operation: Operation, rates: dict[str, float]) -> float:
    """The roofline of one operation: arithmetic, memory traffic or the launch, whichever takes longest."""
    rate = CHOLESKY if operation.kind == "cholesky" else COMPUTE_SHARE * rates[operation.kind]
    traffic = operation.bytes / (BANDWIDTH_SHARE * HBM)
    return max(operation.flops / rate, traffic, operation.kernels * KERNEL_SECONDS)


def products_only(operations: Sequence[Operation]) -> list[Operation]:
    """A bound no compiler can beat: everything but matrix products is merged into them and costs nothing."""
    return [operation for operation in operations if operation.flops > 0]


def all_reduce_seconds(size: float, devices: int) -> float:
    """Ring all-reduce of `size` bytes in a node, then of each GPU's eighth between the nodes; no overlap."""
    inside, nodes = min(devices, NODE), math.ceil(devices / NODE)
    within = 2 * (inside - 1) / inside * size / (BANDWIDTH_SHARE * NVLINK)
    between = 2 * (nodes - 1) / nodes * size / inside / (BANDWIDTH_SHARE * INFINIBAND)
    return within + between


def largest_batch(method: Method, name: str, classes: int, size: int) -> int:
    """Images whose step fits one GPU beside parameters, gradients and Adam's two moments; 0 if not even one."""
    batch = 0
    while memory(method, shapes(name, classes, size, batch + 1)) <= MEMORY_SHARE * CAPACITY:
        batch += 1
    return batch


def memory(method: Method, layers: Sequence[Shape]) -> float:
    fixed = 4 * WIDE * sum(layer.parameters for layer in layers)
    return fixed + sum(map(method.kept, layers)) + max(map(method.working, layers))


@dataclass(frozen=True)
class Run:
    """A training run of `EPOCHS` epochs."""

    micro_batch: int  # images per GPU at a time
    accumulate: int
    compute: float  # seconds of a step
    update: float  # Adam
    all_reduce: float
    hours: float
    bound_hours: float  # `products_only`

    @property
    def step(self) -> float:
        return self.compute + self.update + self.all_reduce

    @property
    def images_per_second(self) -> float:
        return IMAGES * EPOCHS / (self.hours * 3600)


def run(method: Method, devices: int, global_batch: int, largest: int) -> Run:
    per_device = global_batch // devices
    accumulate = math.ceil(per_device / largest)
    layers = shapes(MODEL, CLASSES, SIZE, math.ceil(per_device / accumulate))
    operations = [operation for layer in layers for operation in method.step(layer)]
    numbers = sum(layer.parameters for layer in layers)
    add = (accumulate - 1) * 3 * WIDE * numbers / (BANDWIDTH_SHARE * HBM)  # gradients of the parts of a batch
    update = 7 * WIDE * numbers / (BANDWIDTH_SHARE * HBM)  # reads θ, g, m, v; writes θ, m, v
    reduce = all_reduce_seconds(WIDE * numbers, devices)
    compute = accumulate * sum(seconds(operation, method.rates) for operation in operations) + add
    bound = accumulate * sum(seconds(operation, method.rates) for operation in products_only(operations)) + add
    steps = EPOCHS * IMAGES / global_batch / 3600
    return Run(
        math.ceil(per_device / accumulate),
        accumulate,
        compute,
        update,
        reduce,
        steps * (compute + update + reduce),
        steps * (bound + update + reduce),
    )


# ---- counting real runs ---------------------------------------------------------------------------------------------

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
        if func.is_view or name in _ALLOCATE:
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


def _stored(tree: Any) -> dict[tuple[int, int], int]:
    sizes = {}
    for tensor in tree_leaves(tree):
        if isinstance(tensor, Tensor):
            numbers = math.prod(s for s, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
            whole = tensor.untyped_storage().nbytes()  # overlapping windows of an image are no more than the image
            sizes[tensor.data_ptr(), tensor.ndim] = min(numbers * tensor.element_size(), whole)
    return sizes


@contextmanager
def _one_block() -> Iterator[None]:
    """The batch in one block, as on a GPU."""
    before, forms.BLOCK_BYTES = forms.BLOCK_BYTES, 1 << 60
    try:
        yield
    finally:
        forms.BLOCK_BYTES = before


def measure(network: nn.Module, images: Tensor, classes: int, autocast: bool = False) -> Counts:
    """Count one forward and one backward pass."""
    known = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    held: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    counter = Counter()
    precision = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    with _one_block(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
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
    low = method.forward.keywords["low"] if isinstance(method.forward, partial) else WIDE
    network: nn.Module = create_model(name, recompute="recompute" in method.arithmetic)
    if method.name == FIRST:
        network = Algorithm1Net.from_model(network)
    images = torch.rand(batch, 3, size, size)
    if method.name == FIRST and low == 2:  # all of it in bf16: autocast leaves some of its maps in float32
        network, images = network.bfloat16(), images.bfloat16()
    counts = measure(network, images, layers[-1].units, autocast=method.name == OURS and low == 2)
    return predict(method, layers), counts


# ---- the page -------------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def runs() -> dict[tuple[str, int, int], Run]:
    """By label, GPUs and global batch."""
    made = {}
    for method in METHODS:
        largest = largest_batch(method, MODEL, CLASSES, SIZE)
        if largest < 1:
            raise ValueError(f"{method.label}: not even one image of {SIZE}x{SIZE} fits {CAPACITY / 1e9:.0f} GB")
        for global_batch in (RECIPE_BATCH, LARGE_BATCH):
            for devices in DEVICES:
                made[method.label, devices, global_batch] = run(method, devices, global_batch, largest)
    return made


def opponent(method: Method) -> Method:
    """Algorithm 1 in the same arithmetic."""
    return METHODS[4] if method.arithmetic == "TF32" else METHODS[5]


def answer(made: dict[tuple[str, int, int], Run]) -> str:
    def hours(method: Method, batch: int) -> str:
        return " and ".join(_number(made[method.label, devices, batch].hours) for devices in DEVICES)

    tf32, us, _, again, first_tf32, them = METHODS
    layers = shapes(MODEL, CLASSES, SIZE, 8)
    mine, theirs, more = (predict(method, layers) for method in (us, them, again))
    fits = [largest_batch(method, MODEL, CLASSES, SIZE) for method in (us, again, them)]
    return (
        f"Computed, not timed: {EPOCHS} epochs at a global batch of {LARGE_BATCH} take {hours(us, LARGE_BATCH)} hours "
        f"on {DEVICES[0]} and {DEVICES[1]} H100 with our layer in bf16 ({hours(tf32, LARGE_BATCH)} in TF32), against "
        f"{hours(them, LARGE_BATCH)} with Algorithm 1 ({hours(first_tf32, LARGE_BATCH)}); at the paper's batch of "
        f"{RECIPE_BATCH} it is {hours(us, RECIPE_BATCH)} against {hours(them, RECIPE_BATCH)}, since "
        f"{RECIPE_BATCH // DEVICES[1]} image per GPU leaves it waiting for launches, weights and links.\n"
        f"The gain is in memory: a step keeps {mine.kept / 8e6:.0f} MB per image and moves {mine.bytes / 8e9:.0f} GB, "
        f"against {theirs.kept / 8e6:.0f} MB and {theirs.bytes / 8e9:.0f} GB, so a GPU holds {fits[0]} images, not "
        f"{fits[2]} ({fits[1]} with `recompute`, for {more.flops / mine.flops - 1:.0%} more arithmetic), while the "
        f"arithmetic itself is {mine.flops / theirs.flops:.1f} times Algorithm 1's."
    )


def layer_table() -> str:
    batch, us, them = 8, METHODS[1], METHODS[5]
    rows: list[list[object]] = []
    totals = [0.0] * 6
    for index, layer in enumerate(shapes(MODEL, CLASSES, SIZE, batch), 1):
        numbers = []
        for unit, value in ((1e9, "flops"), (1e9, "bytes")):
            for method in (us, them):
                numbers.append(sum(getattr(op, value) for op in method.step(layer)) / batch / unit)
        numbers += [method.kept(layer) / batch / 1e6 for method in (us, them)]
        totals = [total + number for total, number in zip(totals, numbers, strict=True)]
        sizes = [index, layer.patches // batch, layer.size, layer.units, layer.rank]
        rows.append([*sizes, *(_number(number) for number in numbers)])
    rows.append(["all", "", "", "", "", *(_number(number) for number in totals)])
    head = [
        "layer",
        "P",
        "d",
        "n",
        "rank",
        "GFLOP, ours",
        "Alg. 1",
        "GB moved, ours",
        "Alg. 1",
        "MB kept, ours",
        "Alg. 1",
    ]
    return f"Training step per image, bf16, {batch} images per GPU:\n\n" + table(head, rows)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def method_table() -> str:
    batch, rows = 8, []
    layers = shapes(MODEL, CLASSES, SIZE, batch)
    for method in METHODS:
        total = predict(method, layers)
        numbers = [total.forward_flops / 1e9, total.flops / 1e9, total.forward_bytes / 1e9, total.bytes / 1e9]
        cells = [_number(number / batch) for number in [*numbers, total.kept / 1e6]]
        rows.append([method.label, *cells, largest_batch(method, MODEL, CLASSES, SIZE)])
    head = ["", "GFLOP forward", "step", "GB moved forward", "step", "MB kept", "largest batch per GPU"]
    return f"Per image, {batch} images per GPU, and how many fit {CAPACITY / 1e9:.0f} GB:\n\n" + table(head, rows)


def time_tables(made: dict[tuple[str, int, int], Run]) -> str:
    parts = []
    for global_batch in (RECIPE_BATCH, LARGE_BATCH):
        rows = []
        for method in METHODS:
            for devices in DEVICES:
                this = made[method.label, devices, global_batch]
                ratio = made[opponent(method).label, devices, global_batch].hours / this.hours
                times = [f"{value * 1e3:.1f}" for value in (this.compute, this.update, this.all_reduce)]
                batch = f"{this.micro_batch}" + (f" x {this.accumulate}" if this.accumulate > 1 else "")
                hours = [_number(this.hours), f"{this.hours * devices:,.0f}", f"{this.images_per_second:,.0f}"]
                rows.append([method.label, devices, batch, *times, *hours, f"{ratio:.1f}x", _number(this.bound_hours)])
        head = ["", "GPUs", "images per GPU", "ms: passes", "Adam", "all-reduce"]
        head += ["hours", "GPU-hours", "images/s", "speed-up", "products only, hours"]
        parts.append(f"Global batch {global_batch}, {EPOCHS} epochs:\n\n" + table(head, rows))
    return "\n\n".join(parts)


def input_table(made: dict[tuple[str, int, int], Run]) -> str:
    rows = []
    for global_batch in (RECIPE_BATCH, LARGE_BATCH):
        for devices in DEVICES:
            rate = made[METHODS[1].label, devices, global_batch].images_per_second
            node = rate * NODE / devices
            rows.append([global_batch, devices, f"{rate:,.0f}", f"{node:,.0f}", f"{node * IMAGE_BYTES / 1e6:.0f}"])
    head = ["global batch", "GPUs", "images/s in all", "per node", "MB/s of JPEG per node"]
    return f"What the input must deliver to {METHODS[1].label}:\n\n" + table(head, rows)


def assumption_table() -> str:
    parameters = sum(layer.parameters for layer in shapes(MODEL, CLASSES, SIZE, 1))
    sheet, sizes, guess = "NVIDIA H100 SXM data sheet", "computed", "our assumption"
    rows = [
        ["images, epochs, crop", f"{IMAGES:,}, {EPOCHS}, {SIZE}x{SIZE}", "ILSVRC 2012; the paper, sec. C.1"],
        ["parameters of L-CoDA, 1000 classes", f"{parameters / 1e6:.1f} M", sizes],
        ["all-reduced per step, float32", f"{WIDE * parameters / 1e6:.0f} MB", sizes],
        ["bf16, TF32 matrix rate, dense", f"{BF16 / TERA:.0f}, {TF32 / TERA:.0f} TFLOPS", sheet],
        ["float32, float64 rate", f"{FP32 / TERA:.0f}, {FP64 / TERA:.0f} TFLOPS", sheet + "; float64 on tensor cores"],
        ["memory", f"{CAPACITY / 1e9:.0f} GB at {HBM / 1e12:.2f} TB/s", sheet],
        ["NVLink", f"{NVLINK / 1e9:.0f} GB/s each way, {NODE} GPUs a node", sheet + " (900 GB/s both ways)"],
        ["InfiniBand", f"{INFINIBAND / 1e9:.0f} GB/s per GPU", "NDR, 400 Gb/s, one port per GPU"],
        ["share of the matrix rate reached", f"{COMPUTE_SHARE:.0%}", guess],
        ["share of memory and link bandwidth", f"{BANDWIDTH_SHARE:.0%}", guess],
        ["share of memory usable", f"{MEMORY_SHARE:.0%}", guess],
        ["batched float64 Cholesky", f"{CHOLESKY / TERA:.0f} TFLOPS", guess],
        ["a kernel takes at least", f"{KERNEL_SECONDS * 1e6:.0f} µs", guess + ": eager launches"],
    ]
    return table(["quantity", "value", "from"], rows)


def check_table() -> str:
    rows = []
    for name, size, batch in CHECKS:
        for method in CHECKED:
            formula, counted = check(name, size, batch, method)
            ratios = formula.ratios(counted)
            values = [f"{counted.flops / 1e9:.2f}", f"{counted.bytes / 1e6:.0f}", f"{counted.kept / 1e6:.1f}"]
            pairs = [f"{values[i]} ({ratios[index]:.3f})" for i, index in enumerate((1, 3, 4))]
            what = method.label.replace("TF32", "float32")
            rows.append([name, f"{batch} x {size}x{size}", what, *pairs, f"{counted.kernels:.0f} ({ratios[5]:.2f})"])
    head = ["model", "batch", "", "GFLOP", "MB moved", "MB kept", "kernels"]
    about = (
        f"Counted in one training step on a CPU, torch {torch.__version__}, n = 1 (counts do not vary), "
        "with formula / count in brackets:"
    )
    return f"{about}\n\n{table(head, rows)}"


def tables() -> dict[str, str]:
    """The computed parts of the page, by name."""
    made = runs()
    return {
        "answer": answer(made),
        "layers": layer_table(),
        "methods": method_table(),
        "times": time_tables(made),
        "input": input_table(made),
        "assumptions": assumption_table(),
    }


def fill(page: str, parts: dict[str, str]) -> str:
    """The page with what stands between `<!-- name -->` and `<!-- /name -->` replaced."""
    for name, text in parts.items():
        before, opening, rest = page.partition(f"<!-- {name} -->\n")
        _, closing, after = rest.partition(f"<!-- /{name} -->")
        if not (opening and closing):
            raise ValueError(f"the page has no place for {name!r}: add lines <!-- {name} --> and <!-- /{name} -->")
        page = f"{before}{opening}{text}\n{closing}{after}"
    return page


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="count real runs too")
    parser.add_argument("--markdown", type=Path, help="page to write the tables and the counts into")
    options = parser.parse_args(argv)
    parts = tables()
    if options.check or options.markdown:
        parts["check"] = check_table()
    if options.markdown:
        options.markdown.write_text(fill(options.markdown.read_text(), parts))
    else:
        print("\n\n".join(parts.values()))


if __name__ == "__main__":
    main()
