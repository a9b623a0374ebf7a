"""What training a CoDA-Net costs by formula: operations and bytes of each layer, and times and memory on GPUs.

The formulas follow the layer operation by operation, as it runs on a GPU: the whole batch in one block. Times are
computed from them with the constants below; nothing here has been timed on a GPU. `counts` checks them by real runs.

Symbols, as in `codanet.forms`: P patches of d numbers, n units, R = rank + 1 rows of Â (the last is the bias).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch

from codanet.norm import _TRIANGLE, _is_direct
from codanet.patches import output_size
from codanet.zoo import ARCHITECTURES

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
    *layers, last = ARCHITECTURES[name].layers
    channels, made = 2 * ARCHITECTURES[name].image_channels, []
    for index, layer in enumerate([*layers, replace(last, units=classes or last.units)]):
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
    if not s.first:
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
    """Bytes held for a moment: Gz and z ⊗ t, or u and its gradient, and two dp; or Â and four of G in float64."""
    P, d, n, R = s.patches, s.size, s.units, s.rows
    direct = _is_direct(2, P, R, d, torch.float32)
    gram = 0 if direct else 8 * (R * n * d + 4 * n * R * R)
    return max(WIDE * 2 * P * n * (d if direct else R) + (0 if s.first else low * 2 * P * d), gram)


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
    made = 1 if s.first else 2  # gradients of the first product: images need none
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
        Operation("dx, dB", low * (P * r + made * s.inputs + 2 * r * d), 2 * made * P * r * d),
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
    low: int  # bytes of a number in the products with patches
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
    forward, backward = partial(our_forward, low=low), partial(our_backward, low=low, recompute=recompute)
    kept, working = partial(our_kept, low=low, recompute=recompute), partial(our_working, low=low)
    return Method(OURS, arithmetic, low, forward, backward, kept, working, rates)


def algorithm1(low: int, products: float, arithmetic: str) -> Method:
    forward, backward = partial(first_forward, low=low), partial(first_backward, low=low)
    kept, working = partial(first_kept, low=low), partial(first_working, low=low)
    return Method(FIRST, arithmetic, low, forward, backward, kept, working, {"low": products})


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
    micro_batch = math.ceil(per_device / accumulate)
    layers = shapes(MODEL, CLASSES, SIZE, micro_batch)
    operations = [operation for layer in layers for operation in method.step(layer)]
    numbers = sum(layer.parameters for layer in layers)
    add = (accumulate - 1) * 3 * WIDE * numbers / (BANDWIDTH_SHARE * HBM)  # gradients of the parts of a batch
    update = 7 * WIDE * numbers / (BANDWIDTH_SHARE * HBM)  # reads θ, g, m, v; writes θ, m, v
    reduce = all_reduce_seconds(WIDE * numbers, devices)
    compute, bound = (
        accumulate * sum(seconds(operation, method.rates) for operation in chosen) + add
        for chosen in (operations, products_only(operations))
    )
    steps = EPOCHS * IMAGES / global_batch / 3600
    hours, bound_hours = (steps * (passes + update + reduce) for passes in (compute, bound))
    return Run(micro_batch, accumulate, compute, update, reduce, hours, bound_hours)
