"""Speed and memory against the paper's Algorithm 1 and a ResNet-56, every measurement in a process of its own.

The implementations take turns, so that noise of the machine meets both; ratios are between medians.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._support.files import replacing
from .._support.version import __version__
from ..models.resnet import resnet56
from ..models.zoo import create_model, list_models
from ..training.loss import objective
from .algorithm1 import Algorithm1Net
from .products import record, replay
from .table import TIMED, markdown

MODELS = ("s_coda", "s_coda_r1_2", "s_coda_r1_4", "s_coda_r1_8")
CLASSES = 10
PRODUCTS = "_products"  # behind what is timed: its matrix products alone
Job = dict[str, Any]


def bench(
    models: tuple[str, ...] = MODELS,
    batch: int = 16,
    size: int = 32,
    threads: int = 2,
    rounds: int = 3,
    repeats: int = 6,
    output: Path | None = None,
    quick: bool = False,
) -> dict[str, Any]:
    """Measure codanet against Algorithm 1 and a ResNet-56; print a table and return what is written as JSON.

    Args:
        models: names of the CoDA-Nets to measure.
        batch: images in a batch.
        size: height and width of the images.
        threads: CPU threads of each measurement.
        rounds: times that every measurement is started, in a process of its own.
        repeats: timings in each process; a third of it for Algorithm 1.
        output: JSON file to write; the table goes beside it as Markdown.
        quick: one round of one timing each.
    """
    rounds, repeats = (1, 1) if quick else (rounds, repeats)
    settings: dict[str, Any] = {"models": list(models), "batch": batch, "size": size, "threads": threads}
    settings |= {"rounds": rounds, "repeats": repeats}
    _check(settings, output)

    shape = {"batch": batch, "size": size, "threads": threads}
    jobs = _jobs(models, shape, repeats)
    measured: dict[tuple[str, str, str], list[float]] = {}
    started, machine = time.perf_counter(), _machine()
    for turn in range(rounds):
        # Every other round backwards, so that neither implementation is always the first.
        for number, job in enumerate(jobs if turn % 2 == 0 else jobs[::-1], 1):
            name = f"{job['model']} {job['what']} ({job['by']})"
            print(f"round {turn + 1}/{rounds}, {number}/{len(jobs)}: {name}", file=sys.stderr, flush=True)
            measured.setdefault((job["model"], job["what"], job["by"]), []).extend(in_own_process(job)["values"])

    result: dict[str, Any] = {
        "command": _command(settings, output),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine,
        "versions": {"codanet": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        "settings": settings,
        "units": dict.fromkeys((*TIMED, "lambda_step", "products"), "s/batch") | {"memory": "bytes above idle"},
        "results": [_compare(name, what, measured) for name in models for what in (*TIMED, "memory")],
        "resnet56": _summary(measured["resnet56", "forward", "resnet56"]),
        "lambda_step": {name: _summary(measured[name, "lambda_step", "codanet"]) for name in models},
        "products": {
            name: {what: _summary(measured[name, what + PRODUCTS, "codanet"]) for what in TIMED} for name in models
        },
        "agreement": {name: _one(name, "agreement", shape)["values"][0] for name in models},
        "profile": {
            name: _one(name, "profile", shape)["operations"] for name in dict.fromkeys((models[0], models[-1]))
        },
    }
    result["seconds"] = round(time.perf_counter() - started, 1)
    table = markdown(result)
    print(table)
    if output is not None:
        for path, text in ((output, json.dumps(result, indent=1)), (output.with_suffix(".md"), table)):
            with replacing(path) as part:
                part.write_text(text + "\n")
    return result


def _check(settings: dict[str, Any], output: Path | None) -> None:
    if not settings["models"]:
        raise ValueError(f"no model to measure: name one or more of {', '.join(list_models())}")
    for name in settings["models"]:
        if name not in list_models():
            create_model(name)  # raises, with the nearest name
    for key in ("batch", "size", "threads", "rounds", "repeats"):
        if settings[key] < 1:
            raise ValueError(f"{key} must be at least 1, not {settings[key]}")
    if output is not None and (output.suffix != ".json" or not output.parent.is_dir()):
        raise ValueError(f"output must be a .json file in an existing directory, not {output}")


def _jobs(models: Sequence[str], shape: Job, repeats: int) -> list[Job]:
    """What is compared is measured close together."""
    ours = ("forward", "explain", "forward_products", "explain_products"), ("step_products", "lambda_step", "step")
    theirs = ("forward", "explain"), ("step",)
    jobs = [{"model": "resnet56", "what": "forward", "by": "resnet56", "repeats": repeats}]
    for name in models:
        for fast, plain in zip(ours, theirs, strict=True):
            jobs += [{"model": name, "what": what, "by": "codanet", "repeats": repeats} for what in fast]
            jobs += [{"model": name, "what": what, "by": "algorithm1", "repeats": -(-repeats // 3)} for what in plain]
        jobs += [{"model": name, "what": "memory", "by": by, "repeats": 1} for by in ("codanet", "algorithm1")]
    return [job | shape for job in jobs]


def _one(name: str, what: str, shape: Job) -> Job:
    print(f"{name} {what}", file=sys.stderr, flush=True)
    return in_own_process({"model": name, "what": what, "by": "codanet", "repeats": 1} | shape)


def in_own_process(job: Job) -> Job:
    """`measure` in a new interpreter."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(job["threads"])}
    command = [sys.executable, "-m", "codanet.benchmarks.bench", json.dumps(job)]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RuntimeError(f"measuring {job['what']} of {job['model']} by {job['by']} failed: {reason}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(job: Job) -> Job:
    """What a worker process does: the values of one job."""
    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    what, repeats = job["what"], job["repeats"]
    if what == "memory":
        return {"values": [_peak_memory(job)]}
    model = _build(job["model"], job["by"])
    images = torch.rand(job["batch"], 3, job["size"], job["size"])
    if what == "agreement":
        return {"values": [_disagreement(model, images)]}
    run = _runner(model, what.removesuffix(PRODUCTS), images)
    run()  # the optimiser's state, thread pools, kernels chosen at the first call
    if what == "profile":
        return {"operations": _profile(run)}
    if what.endswith(PRODUCTS):  # recorded of the second time, when workspaces have their size
        run = replay(record(run))
        run()
    return {"values": [_seconds(run) for _ in range(repeats)]}


def _build(name: str, by: str) -> nn.Module:
    if by == "resnet56":
        return resnet56(CLASSES)
    model = create_model(name, num_classes=CLASSES)
    return Algorithm1Net.from_model(model) if by == "algorithm1" else model


def _runner(model: Any, what: str, images: Tensor) -> Callable[[], Any]:
    if what in ("step", "lambda_step", "profile"):
        model.train()
        optimiser = torch.optim.Adam(model.parameters(), lr=2.5e-4)
        labels = torch.arange(len(images)) % CLASSES
        targets = F.one_hot(labels, CLASSES).float()

        def loss() -> Tensor:
            if what == "lambda_step":
                return objective(model, images, labels, regularisation=0.05)[0]
            return F.binary_cross_entropy_with_logits(model(images), targets)

        def step() -> None:
            optimiser.zero_grad(set_to_none=True)
            loss().backward()
            optimiser.step()

        return step
    model.eval()
    return torch.no_grad()(lambda: model(images) if what == "forward" else model.explain(images, target=0))


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@torch.no_grad()
def _disagreement(model: Any, images: Tensor) -> float:
    """The largest difference from Algorithm 1 in the last map, relative to its largest value.

    Not in the logits: while a new network's are small beside b0, adding b0 rounds every difference away.
    """
    theirs = Algorithm1Net.from_model(model)
    found = expected = theirs.encode(images)
    for fast, plain in zip(model.layers, theirs.layers, strict=True):
        found, expected = fast(found), plain(expected)
    return ((found - expected).abs().max() / expected.abs().max()).item()


def _profile(run: Callable[[], Any], top: int = 10) -> list[Job]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        run()
    events = sorted(profiler.key_averages(), key=lambda event: event.self_cpu_time_total, reverse=True)
    total = sum(event.self_cpu_time_total for event in events)
    rows = [(event.key, event.self_cpu_time_total, event.count) for event in events[:top]]
    return [{"operation": key, "ms": us / 1000, "percent": 100 * us / total, "calls": n} for key, us, n in rows]


def _peak_memory(job: Job) -> int:
    """Bytes of the first training step above what the process held before it: activations, gradients, Adam's state."""
    # Code that is loaded at a first call belongs to no model: a small model of the same implementation loads it.
    _runner(_build("s_coda_r1_8", job["by"]), "step", torch.rand(1, 3, 8, 8))()
    step = _runner(_build(job["model"], job["by"]), "step", torch.rand(job["batch"], 3, job["size"], job["size"]))
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


def _compare(name: str, what: str, measured: dict[tuple[str, str, str], list[float]]) -> Job:
    ours, theirs = _summary(measured[name, what, "codanet"]), _summary(measured[name, what, "algorithm1"])
    ratio = theirs["median"] / ours["median"]
    return {"model": name, "what": what, "codanet": ours, "algorithm1": theirs, "ratio": ratio}


def _summary(values: list[float]) -> Job:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    spread = {"min": min(values), "max": max(values), "iqr": high - low}
    return {"median": middle, **spread, "n": len(values), "values": values}


def _machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.is_file() else []
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "ram_gib": round(ram / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),  # other work at the start spoils timings
    }


def _command(settings: dict[str, Any], output: Path | None) -> str:
    words = ["codanet bench"]
    for key, value in settings.items():
        words.append(f"--{key} {' '.join(value) if isinstance(value, list) else value}")
    return " ".join(words + ([f"--output {output.name}"] if output is not None else []))


if __name__ == "__main__":  # a worker process: its job as JSON in, the values out
    print(json.dumps(measure(json.loads(sys.argv[1]))))
