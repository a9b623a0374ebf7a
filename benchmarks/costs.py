"""What training a CoDA-Net costs: times and memory on GPUs, from the `operations` of its layers.

Times are computed with the constants below; nothing here has been timed on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from operations import (
    WIDE,
    Operation,
    Shape,
    first_backward,
    first_forward,
    first_kept,
    first_working,
    our_backward,
    our_forward,
    our_kept,
    our_working,
    shapes,
)

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

OURS, FIRST = "our layer", "Algorithm 1"


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
    kept, working = partial(our_kept, low=low, recompute=recompute), partial(our_working, low=low, recompute=recompute)
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
