"""Speed and memory of codanet, eager and compiled, beside other forms of the same networks and a ResNet-56.

Every measurement has a process of its own. Those that are compared are all made ready first and then take turns, one
timing each, so that noise of the machine meets all alike; ratios are between medians.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from .._support.allocator import KEEPING
from .._support.files import replacing
from .._support.limits import memory
from .._support.version import __version__
from ..models.zoo import create_model, list_models
from . import measurement
from .measurement import ONNX, PASSES, PLAIN, PRODUCTS, TURN, Job, can_export
from .table import markdown

MODELS = ("s_coda", "s_coda_r1_2", "s_coda_r1_4", "s_coda_r1_8")
QUICK_BACKEND = "aot_eager"  # traces and splits, but writes no C++
Key = tuple[str, str, str]  # model, what, by


def bench(
    models: tuple[str, ...] = MODELS,
    batch: int = 16,
    size: int = 32,
    threads: int = 2,
    rounds: int = 3,
    repeats: int = 6,
    before: Path | None = None,
    output: Path | None = None,
    quick: bool = False,
) -> dict[str, Any]:
    """Measure, print a table and return what is written as JSON.

    Args:
        models: names of the CoDA-Nets to measure.
        batch: images in a batch.
        size: height and width of the images.
        threads: CPU threads of each measurement.
        rounds: times that every measurement is started, in a process of its own.
        repeats: timings in each process; a third of it for the forms that make all weights.
        before: folder with another version's package `codanet`, to measure that beside this one.
        output: JSON file to write; the table goes beside it as Markdown.
        quick: one round of one timing each, and compiled by tracing alone, without a C++ compiler.
    """
    rounds, repeats = (1, 1) if quick else (rounds, repeats)
    settings: dict[str, Any] = {"models": list(models), "batch": batch, "size": size, "threads": threads}
    settings |= {"rounds": rounds, "repeats": repeats, "backend": QUICK_BACKEND if quick else "inductor"}
    settings |= {"before": None if before is None else str(before)}
    _check(settings, output)

    jobs = _jobs(settings)
    measured: dict[Key, list[float]] = {}
    first: dict[Key, list[float]] = {}
    started, machine = time.perf_counter(), _machine()
    with tempfile.TemporaryDirectory() as cache:  # compiled in the first round, taken from torch's cache in the others
        environment = {"TORCHINDUCTOR_CACHE_DIR": cache}

        for turn in range(rounds):
            # Every other round backwards, so that nobody is always the first. Memory does not vary: once.
            turns = [job for job in jobs if turn == 0 or job["what"] != "memory"]
            turns = turns if turn % 2 == 0 else turns[::-1]
            groups = [list(group) for _, group in groupby(turns, lambda job: (job["model"], job["what"]))]
            for number, group in enumerate(groups, 1):
                name = f"{group[0]['model']} {group[0]['what']}"
                print(f"round {turn + 1}/{rounds}, {number}/{len(groups)}: {name}", file=sys.stderr, flush=True)
                for job, answer in zip(group, in_turns(group, environment, before), strict=True):
                    key = job["model"], job["what"], job["by"]
                    measured.setdefault(key, []).extend(answer["values"])
                    if "first" in answer:
                        first.setdefault(key, []).append(answer["first"])
        once = {"batch": batch, "size": size, "threads": threads, "repeats": 1, "backend": settings["backend"]}
        agreement = {
            name: {
                by: in_own_process(once | {"model": name, "what": "agreement", "by": by}, environment)["values"][0]
                for by in ("codanet", "compiled")
            }
            for name in models
        }
        profile = {
            name: in_own_process(once | {"model": name, "what": "profile", "by": "codanet"}, environment)["operations"]
            for name in dict.fromkeys((models[0], models[-1]))
        }

    result: dict[str, Any] = {
        "command": _command(settings, output, quick),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine,
        "versions": {"codanet": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        "settings": settings,
        "units": "seconds per batch; alone: seconds per picture; memory: bytes above idle",
        "results": _results(measured),
        "compiling": {
            f"{model} {what}": _compiling(first[model, what, by], values)
            for (model, what, by), values in measured.items()
            if by == "compiled" and (model, what, by) in first
        },
        "agreement": agreement,
        "profile": profile,
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
    before = settings["before"]
    if before is not None and not (Path(before) / "codanet" / "__init__.py").is_file():
        raise ValueError(f"before must be a folder with a package codanet in it, not {before}")
    if output is not None and (output.suffix != ".json" or not output.parent.is_dir()):
        raise ValueError(f"output must be a .json file in an existing directory, not {output}")


def _jobs(settings: dict[str, Any]) -> list[Job]:
    """What is compared is measured close together."""
    ours = ("codanet", "compiled", *(("before",) if settings["before"] else ()))
    onnx = (ONNX,) if can_export() else ()
    jobs: list[Job] = [
        {"model": "resnet56", "what": what, "by": by} for what in ("forward", "step") for by in ("codanet", "compiled")
    ]
    by_what = {
        "forward": (*ours, PRODUCTS, PASSES, *PLAIN),
        "explain": (*ours, *onnx, PRODUCTS, *PLAIN),
        "alone": (*ours, *onnx, PRODUCTS),
        "step": (*ours, PRODUCTS, PASSES, *PLAIN),
        "lambda_step": ("codanet",),
        "memory": (*ours, *PLAIN),
    }
    jobs += [
        {"model": name, "what": what, "by": by}
        for name in settings["models"]
        for what, makers in by_what.items()
        for by in makers
    ]
    shape = {key: settings[key] for key in ("size", "threads", "backend")}
    return [job | shape | _extent(job, settings) for job in jobs]


def _extent(job: Job, settings: dict[str, Any]) -> Job:
    repeats = -(-settings["repeats"] // 3) if job["by"] in PLAIN else settings["repeats"]
    return {"batch": 1 if job["what"] == "alone" else settings["batch"], "repeats": repeats}


def in_own_process(job: Job, environment: dict[str, str] | None = None, before: Path | None = None) -> Job:
    """`measure` in a new interpreter; a job by "before", of the package in that folder."""
    return in_turns([job], environment, before)[0]


def in_turns(jobs: list[Job], environment: dict[str, str] | None = None, before: Path | None = None) -> list[Job]:
    """`measure` in a new interpreter each, one timing at a time: a process that waits for its turn prints "turn"."""
    processes = []
    try:
        for job in jobs:  # made ready one by one
            process = _start(job, environment, before if job["by"] == "before" else None)
            processes.append((job, process, _answer(job, process)))
        while any(answer == TURN for *_, answer in processes):
            for i, (job, process, answer) in enumerate(processes):
                if answer == TURN and process.stdin is not None:
                    process.stdin.write("\n")
                    process.stdin.flush()
                    processes[i] = job, process, _answer(job, process)
    finally:
        for _, process, _ in processes:
            process.kill()
            process.communicate()
    return [json.loads(answer) for *_, answer in processes]


def _start(job: Job, environment: dict[str, str] | None, before: Path | None) -> subprocess.Popen[str]:
    package = Path(__file__).parents[2] if before is None else before
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(job["threads"])} | (environment or {})
    if job["what"] != "memory":
        variables |= KEEPING  # as `codanet train` and `codanet evaluate` do; here for whatever is compared alike
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (the process holds it; a pipe that nobody reads would fill up)
    process = subprocess.Popen(
        [sys.executable, measurement.__file__, json.dumps(job)], env=variables, stderr=errors, text=True, **pipes
    )
    process.errors = errors  # type: ignore[attr-defined]
    return process


def _answer(job: Job, process: subprocess.Popen[str]) -> str:
    """The next line: TURN, or the answer."""
    assert process.stdout is not None
    if line := process.stdout.readline().strip():
        return line
    errors = process.errors  # type: ignore[attr-defined]
    errors.seek(0)
    reason = (errors.read().strip().splitlines() or [f"exit code {process.wait()}"])[-1]
    raise RuntimeError(f"measuring {job['what']} of {job['model']} by {job['by']} failed: {reason}")


def _results(measured: dict[Key, list[float]]) -> list[Job]:
    rows: dict[tuple[str, str], Job] = {}
    for (model, what, by), values in measured.items():
        rows.setdefault((model, what), {"model": model, "what": what})[by] = _summary(values)
    return list(rows.values())


def _summary(values: Sequence[float]) -> Job:
    values = list(values)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    spread = {"min": min(values), "max": max(values), "iqr": high - low}
    return {"median": middle, **spread, "n": len(values), "values": values}


def _compiling(first: Sequence[float], values: Sequence[float]) -> Job:
    """Seconds that the first call took beyond another one: when it was compiled, and when torch had it in its cache."""
    extra = [max(seconds - statistics.median(values), 0.0) for seconds in first]
    return {"first": extra[0], "cached": statistics.median(extra[1:]) if len(extra) > 1 else None}


def _machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.is_file() else []
    ram = memory()
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "ram_gib": ram and round(ram / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),  # other work at the start spoils timings
    }


def _command(settings: dict[str, Any], output: Path | None, quick: bool) -> str:
    words = ["codanet bench"]
    for key, value in settings.items():
        if key == "before":
            words += [] if value is None else ["--before FOLDER"]
        elif key != "backend":
            words.append(f"--{key} {' '.join(value) if isinstance(value, list) else value}")
    return " ".join(words + ["--quick"] * quick + ([f"--output {output.name}"] if output is not None else []))
