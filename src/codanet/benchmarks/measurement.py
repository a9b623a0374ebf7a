"""One measurement, in a process of its own: a job as JSON in, its values as JSON out, timed when it is its turn.

Of codanet's networks it uses what every version has, `create_model`, `model(x)` and `model.explain`, so that it also
measures another version that comes first on the path.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import codanet

CLASSES = 10
PLAIN = ("algorithm1", "published")  # forms that make all weights
TURN = "turn"  # said by a process that waits for its turn
PRODUCTS, PASSES = "products", "passes"  # the matrix products of codanet's work alone, and with their memory's traffic
ONNX = "onnxruntime"
Job = dict[str, Any]
Run = Callable[[], Any]


def measure(job: Job, wait: Run = lambda: None) -> Job:
    """The values of one job: {model, what, by, batch, size, threads, repeats, backend}; `wait` comes before each."""
    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    what, by = job["what"], job["by"]
    model = build(job["model"], by, job["backend"])
    images = torch.rand(job["batch"], 3, job["size"], job["size"])
    if what == "memory":
        return {"values": [_peak_memory(model, images)]}
    if what == "agreement":
        return {"values": [_disagreement(model, images)]}
    run = exported(model, images, job["threads"]) if by == ONNX else runner(model, what, images)
    first = _seconds(run)  # compiling; the optimiser's state, thread pools, kernels chosen at the first call
    if what == "profile":
        return {"operations": _profile(run)}
    if by in (PRODUCTS, PASSES):
        from codanet.benchmarks.products import record, replay

        run = replay(record(run), passes=by == PASSES)
        run()
    values, at = [], []
    for _ in range(job["repeats"]):
        wait()
        at.append(time.time())
        if by not in PLAIN:  # whose weights are larger than any cache
            run()
        values.append(_seconds(run))
    return {"values": values, "at": at, "first": first}


def build(name: str, by: str, backend: str = "inductor") -> nn.Module:
    model: nn.Module
    if name == "resnet56":
        from codanet.models.resnet import resnet56

        model = resnet56(CLASSES)
    else:
        model = codanet.create_model(name, num_classes=CLASSES)
    if by in PLAIN:
        from codanet.benchmarks.algorithm1 import Algorithm1Net
        from codanet.benchmarks.published import PublishedNet

        return (Algorithm1Net if by == "algorithm1" else PublishedNet).from_model(model)
    if by == "compiled":
        model.compile(backend=backend)
    return model


def runner(model: Any, what: str, images: Tensor) -> Run:
    """`what` is forward, explain, alone (an explanation too), step, lambda_step or profile (of a step)."""
    if what not in ("forward", "explain", "alone"):
        return _step(model, what, images)
    model.eval()
    return torch.no_grad()(lambda: model(images) if what == "forward" else model.explain(images, target=0))


def _step(model: Any, what: str, images: Tensor) -> Run:
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=2.5e-4)
    labels = torch.arange(len(images)) % CLASSES

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        _loss(model, what, images, labels).backward()
        optimiser.step()

    return step


def _loss(model: Any, what: str, images: Tensor, labels: Tensor) -> Tensor:
    if what == "lambda_step":
        from codanet.training.loss import objective

        return objective(model, images, labels, regularisation=0.05)[0]
    return F.binary_cross_entropy_with_logits(model(images), F.one_hot(labels, CLASSES).float())


def can_export() -> bool:
    """Whether this version exports its networks, and onnxruntime is there to run them."""
    return all(importlib.util.find_spec(name) is not None for name in ("codanet.export", ONNX))


def exported(model: nn.Module, images: Tensor, threads: int) -> Run:
    """An explanation by onnxruntime: logits and contributions."""
    onnxruntime: Any = importlib.import_module(ONNX)
    room: Any = importlib.import_module("codanet.export")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        getattr(room, "export", room)(model, path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    inputs = {"image": images.numpy(), "target": torch.zeros(len(images), dtype=torch.int64).numpy()}
    return lambda: session.run(None, inputs)


def _seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _disagreement(model: Any, images: Tensor) -> float:
    """The largest difference of a class's rows of W(x) from Algorithm 1's, relative to the largest entry."""
    from codanet.benchmarks.algorithm1 import Algorithm1Net

    rows = model.eval().explain(images, target=0).rows
    expected = Algorithm1Net.from_model(model).explain(images, target=0).rows
    return ((rows - expected).abs().max() / expected.abs().max()).item()


def _profile(run: Run, top: int = 10) -> list[Job]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        run()
    events = sorted(profiler.key_averages(), key=lambda event: event.self_cpu_time_total, reverse=True)
    total = sum(event.self_cpu_time_total for event in events)
    rows = [(event.key, event.self_cpu_time_total, event.count) for event in events[:top]]
    return [{"operation": key, "ms": us / 1000, "percent": 100 * us / total, "calls": n} for key, us, n in rows]


def _peak_memory(model: Any, images: Tensor) -> int:
    """Bytes of a first training step above what the process held before it: activations, gradients, Adam's state.

    What a first call loads or compiles belongs to no step, so both passes are done once before.
    """
    step = _step(model, "step", images)
    _loss(model, "step", images, torch.zeros(len(images), dtype=torch.int64)).backward()
    model.zero_grad(set_to_none=True)
    gc.collect()
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again at VmRSS
        read: Callable[[str], int] = _status
    except OSError:
        read = _max_rss
    before = read("VmRSS")
    step()
    return max(read("VmHWM") - before, resource.getpagesize())


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def _max_rss(_: str) -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":

    def turn() -> None:
        print(TURN, flush=True)
        sys.stdin.readline()

    print(json.dumps(measure(json.loads(sys.argv[1]), turn)), flush=True)
