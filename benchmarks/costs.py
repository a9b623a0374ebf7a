"""What training a CoDA-Net costs: times and memory on GPUs, from `counts` of its operations.

Times are computed with the constants below; nothing here has been timed on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from counts import Operation, Step, count_fake

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
COMPUTE_SHARE, BANDWIDTH_SHARE, MEMORY_SHARE = 0.4, 0.7, 0.9  # shares of peak rate, of memory and links, of capacity
CHOLESKY = 1 * TERA  # float64, many small matrices, and triangular systems: bound by latency, far below the peak
KERNEL_SECONDS = 5e-6  # eager PyTorch starts a kernel about this often, so none takes less

WIDE = 4  # bytes of float32
COUNTED = (2, 3)  # batches that are counted; every operation grows by the same amount with each image more


@dataclass(frozen=True)
class Method:
    label: str
    form: str  # how the layers are computed, as in `count_fake`
    low: torch.dtype  # what the products with patches are computed in
    single: float = TF32  # rate of float32 products

    def step(self, batch: int) -> Step:
        one, two = _counted(self.form, self.low)
        return one.at(two, COUNTED, batch)

    def rate(self, operation: Operation) -> float:
        if operation.name in ("linalg_cholesky_ex", "linalg_solve_triangular"):
            return CHOLESKY
        rates = {torch.bfloat16: BF16, torch.float64: FP64}
        return COMPUTE_SHARE * rates.get(operation.dtype, self.single)

    def seconds(self, operation: Operation) -> float:
        """The roofline of one operation: arithmetic, memory traffic or the launch, whichever takes longest."""
        traffic = operation.bytes / (BANDWIDTH_SHARE * HBM)
        return max(operation.flops / self.rate(operation), traffic, KERNEL_SECONDS)


@cache
def _counted(form: str, low: torch.dtype) -> tuple[Step, Step]:
    one, two = (count_fake(MODEL, CLASSES, SIZE, batch, form, low) for batch in COUNTED)
    return one, two


OURS_TF32 = Method("our layer, TF32", "plain", torch.float32)
OURS = Method("our layer, bf16, norms TF32", "plain", torch.bfloat16)
OURS_FP32 = Method("our layer, bf16, norms float32", "plain", torch.bfloat16, FP32)
AGAIN = Method("our layer, bf16, norms TF32, recompute", "recompute", torch.bfloat16)
FIRST_TF32 = Method("Algorithm 1, TF32", "algorithm1", torch.float32)
FIRST = Method("Algorithm 1, bf16", "algorithm1", torch.bfloat16)
METHODS = (OURS_TF32, OURS, OURS_FP32, AGAIN, FIRST_TF32, FIRST)


def products_only(operations: Sequence[Operation]) -> list[Operation]:
    """A bound no compiler can beat: everything but matrix products is merged into them and costs nothing."""
    return [operation for operation in operations if operation.flops > 0]


def all_reduce_seconds(size: float, devices: int) -> float:
    """Ring all-reduce of `size` bytes in a node, then of each GPU's eighth between the nodes; no overlap."""
    inside, nodes = min(devices, NODE), math.ceil(devices / NODE)
    within = 2 * (inside - 1) / inside * size / (BANDWIDTH_SHARE * NVLINK)
    between = 2 * (nodes - 1) / nodes * size / inside / (BANDWIDTH_SHARE * INFINIBAND)
    return within + between


def memory(step: Step) -> float:
    """Bytes on a GPU: the fullest moment of a step beside parameters and Adam's two moments, all in float32."""
    return 3 * WIDE * step.parameters + step.peak


@cache
def largest_batch(method: Method) -> int:
    """Images whose step fits one GPU; 0 if not even one."""
    batch = 0
    while memory(method.step(batch + 1)) <= MEMORY_SHARE * CAPACITY:
        batch += 1
    return batch


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
    step = method.step(micro_batch)
    add = (accumulate - 1) * 3 * WIDE * step.parameters / (BANDWIDTH_SHARE * HBM)  # gradients of the parts of a batch
    update = 7 * WIDE * step.parameters / (BANDWIDTH_SHARE * HBM)  # reads θ, g, m, v; writes θ, m, v
    reduce = all_reduce_seconds(WIDE * step.parameters, devices)
    compute, bound = (
        accumulate * sum(method.seconds(operation) for operation in chosen) + add
        for chosen in (step.operations, products_only(step.operations))
    )
    steps = EPOCHS * IMAGES / global_batch / 3600
    hours, bound_hours = (steps * (passes + update + reduce) for passes in (compute, bound))
    return Run(micro_batch, accumulate, compute, update, reduce, hours, bound_hours)
