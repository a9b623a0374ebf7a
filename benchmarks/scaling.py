"""What a CoDA-Net costs to train on many GPUs: the tables of the page docs/scaling.md, computed and counted.

    python benchmarks/scaling.py                             print the tables
    python benchmarks/scaling.py --check                     count real runs on this machine beside the formulas
    python benchmarks/scaling.py --markdown docs/scaling.md  do both and write them into that page

`operations` holds the formulas, `costs` the constants and what follows, `counts` the counting of real runs that checks
the formulas.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from costs import (
    BANDWIDTH_SHARE,
    BF16,
    CAPACITY,
    CHOLESKY,
    CLASSES,
    COMPUTE_SHARE,
    DEVICES,
    EPOCHS,
    FP32,
    FP64,
    HBM,
    IMAGE_BYTES,
    IMAGES,
    INFINIBAND,
    KERNEL_SECONDS,
    LARGE_BATCH,
    MEMORY_SHARE,
    METHODS,
    MODEL,
    NODE,
    NVLINK,
    RECIPE_BATCH,
    SIZE,
    TERA,
    TF32,
    Method,
    Run,
    largest_batch,
    run,
)
from counts import CHECKED, CHECKS, check, predict
from operations import WIDE, shapes


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
    head = ["layer", "P", "d", "n", "rank"]
    head += ["GFLOP, ours", "Alg. 1", "GB moved, ours", "Alg. 1", "MB kept, ours", "Alg. 1"]
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
