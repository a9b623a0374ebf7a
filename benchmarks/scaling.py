"""What a CoDA-Net costs to train on many GPUs: the tables of the page docs/scaling.md.

    python benchmarks/scaling.py                             print the tables
    python benchmarks/scaling.py --markdown docs/scaling.md  write them into that page

`counts` counts what the layers do, `costs` holds the constants and what follows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import costs
from costs import DEVICES, EPOCHS, LARGE_BATCH, METHODS, RECIPE_BATCH, SIZE, TERA, WIDE, Method, Run, largest_batch, run

Runs = dict[tuple[Method, int, int], Run]  # by method, GPUs and global batch
TABLE_BATCH = 8  # images per GPU, of the table of operations


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def runs() -> Runs:
    made = {}
    for method in METHODS:
        largest = largest_batch(method)
        if largest < 1:
            raise ValueError(f"{method.label}: not one image of {SIZE}x{SIZE} fits {costs.CAPACITY / 1e9:.0f} GB")
        for global_batch in (RECIPE_BATCH, LARGE_BATCH):
            for devices in DEVICES:
                made[method, devices, global_batch] = run(method, devices, global_batch, largest)
    return made


def opponent(method: Method) -> Method:
    """Algorithm 1 in the same arithmetic."""
    return costs.FIRST_TF32 if method.low == costs.FIRST_TF32.low else costs.FIRST


def answer(made: Runs) -> str:
    def hours(method: Method, batch: int) -> str:
        return " and ".join(_number(made[method, devices, batch].hours) for devices in DEVICES)

    def bound(method: Method, batch: int) -> str:
        return " and ".join(_number(made[method, devices, batch].bound_hours) for devices in DEVICES)

    us, them = costs.OURS, costs.FIRST
    mine, theirs, more = (method.step(TABLE_BATCH) for method in (us, them, costs.AGAIN))
    fits = [largest_batch(method) for method in (us, costs.AGAIN, them)]
    return (
        f"Computed, not timed: {EPOCHS} epochs at a global batch of {LARGE_BATCH} take {hours(us, LARGE_BATCH)} hours "
        f"on {DEVICES[0]} and {DEVICES[1]} H100 with our layer, eager, in bf16 "
        f"({hours(costs.OURS_TF32, LARGE_BATCH)} in TF32), against {hours(them, LARGE_BATCH)} with Algorithm 1 "
        f"({hours(costs.FIRST_TF32, LARGE_BATCH)}). A compiler that merged all else into the matrix products would "
        f"bring ours to {bound(us, LARGE_BATCH)}. At the paper's batch of {RECIPE_BATCH} it is "
        f"{hours(us, RECIPE_BATCH)} against {hours(them, RECIPE_BATCH)}.\n"
        f"A step keeps {mine.kept / TABLE_BATCH / 1e6:.0f} MB per image and moves "
        f"{mine.total('bytes') / TABLE_BATCH / 1e9:.0f} GB, against {theirs.kept / TABLE_BATCH / 1e6:.0f} MB and "
        f"{theirs.total('bytes') / TABLE_BATCH / 1e9:.0f} GB; a GPU holds {fits[0]} images, against {fits[2]} "
        f"({fits[1]} with `recompute`, for {more.total('flops') / mine.total('flops') - 1:.0%} more arithmetic). The "
        f"arithmetic is {mine.total('flops') / theirs.total('flops'):.1f} times Algorithm 1's: its rank is high."
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def method_table() -> str:
    rows = []
    for method in METHODS:
        step = method.step(TABLE_BATCH)
        forward = [sum(getattr(operation, field) for operation in step.forward) for field in ("flops", "bytes")]
        numbers = [forward[0] / 1e9, step.total("flops") / 1e9, forward[1] / 1e9, step.total("bytes") / 1e9]
        cells = [_number(number / TABLE_BATCH) for number in [*numbers, step.kept / 1e6]]
        rows.append([method.label, *cells, len(step.operations), largest_batch(method)])
    head = ["", "GFLOP forward", "step", "GB moved forward", "step", "MB kept", "kernels of a step", "largest batch"]
    return f"Per image, {TABLE_BATCH} images per GPU, and how many fit {costs.CAPACITY / 1e9:.0f} GB:\n\n" + table(
        head, rows
    )


def time_tables(made: Runs) -> str:
    parts = []
    for global_batch in (RECIPE_BATCH, LARGE_BATCH):
        rows = []
        for method in METHODS:
            for devices in DEVICES:
                this = made[method, devices, global_batch]
                ratio = made[opponent(method), devices, global_batch].hours / this.hours
                times = [f"{value * 1e3:.1f}" for value in (this.compute, this.update, this.all_reduce)]
                batch = f"{this.micro_batch}" + (f" x {this.accumulate}" if this.accumulate > 1 else "")
                hours = [_number(this.hours), f"{this.hours * devices:,.0f}", f"{this.images_per_second:,.0f}"]
                rows.append([method.label, devices, batch, *times, *hours, f"{ratio:.1f}x", _number(this.bound_hours)])
        head = ["", "GPUs", "images per GPU", "ms: passes", "Adam", "all-reduce"]
        head += ["hours", "GPU-hours", "images/s", "speed-up", "products only, hours"]
        parts.append(f"Global batch {global_batch}, {EPOCHS} epochs:\n\n" + table(head, rows))
    return "\n\n".join(parts)


def input_table(made: Runs) -> str:
    rows = []
    for global_batch in (RECIPE_BATCH, LARGE_BATCH):
        for devices in DEVICES:
            rate = made[costs.OURS, devices, global_batch].images_per_second
            node = rate * costs.NODE / devices
            rows.append(
                [global_batch, devices, f"{rate:,.0f}", f"{node:,.0f}", f"{node * costs.IMAGE_BYTES / 1e6:.0f}"]
            )
    head = ["global batch", "GPUs", "images/s in all", "per node", "MB/s of JPEG per node"]
    return f"What the input must deliver to {costs.OURS.label}:\n\n" + table(head, rows)


def assumption_table() -> str:
    parameters = costs.OURS.step(1).parameters
    sheet, sizes, guess = "NVIDIA H100 SXM data sheet", "counted", "our assumption"
    rates = [f"{rate / TERA:.0f}" for rate in (costs.BF16, costs.TF32, costs.FP32, costs.FP64)]
    rows = [
        ["images, epochs, crop", f"{costs.IMAGES:,}, {EPOCHS}, {SIZE}x{SIZE}", "ILSVRC 2012; the paper, sec. C.1"],
        ["parameters of L-CoDA, 1000 classes", f"{parameters / 1e6:.1f} M", sizes],
        ["all-reduced per step, float32", f"{WIDE * parameters / 1e6:.0f} MB", sizes],
        ["bf16, TF32 matrix rate, dense", f"{rates[0]}, {rates[1]} TFLOPS", sheet],
        ["float32, float64 rate", f"{rates[2]}, {rates[3]} TFLOPS", sheet + "; float64 on tensor cores"],
        ["memory", f"{costs.CAPACITY / 1e9:.0f} GB at {costs.HBM / 1e12:.2f} TB/s", sheet],
        [
            "NVLink",
            f"{costs.NVLINK / 1e9:.0f} GB/s each way, {costs.NODE} GPUs a node",
            sheet + " (900 GB/s both ways)",
        ],
        ["InfiniBand", f"{costs.INFINIBAND / 1e9:.0f} GB/s per GPU", "NDR, 400 Gb/s, one port per GPU"],
        ["share of the matrix rate reached", f"{costs.COMPUTE_SHARE:.0%}", guess],
        ["share of memory and link bandwidth", f"{costs.BANDWIDTH_SHARE:.0%}", guess],
        ["share of memory usable", f"{costs.MEMORY_SHARE:.0%}", guess],
        ["batched float64 Cholesky and triangular systems", f"{costs.CHOLESKY / TERA:.0f} TFLOPS", guess],
        ["a kernel takes at least", f"{costs.KERNEL_SECONDS * 1e6:.0f} µs", guess + ": eager launches"],
    ]
    return table(["quantity", "value", "from"], rows)


def tables() -> dict[str, str]:
    """The computed parts of the page, by name."""
    made = runs()
    return {
        "answer": answer(made),
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
    parser.add_argument("--markdown", type=Path, help="page to write the tables into")
    options = parser.parse_args(argv)
    parts = tables()
    if options.markdown:
        options.markdown.write_text(fill(options.markdown.read_text(), parts))
    else:
        print("\n\n".join(parts.values()))


if __name__ == "__main__":
    main()
