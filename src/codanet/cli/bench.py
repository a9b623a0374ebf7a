"""`codanet bench`."""

from pathlib import Path

from ..models.architectures import architecture
from .names import BENCH_MODELS
from .parser import Parser, positive, threads

ABOUT = """\
Measure the forward pass, training step, explanation and memory of codanet, eager and compiled, and print a table.
Beside them stand the paper's Algorithm 1, the form of its published code, a ResNet-56, and the matrix products
alone."""
EXAMPLES = """\
  codanet bench --output bench.json                     the paper's S network at several ranks, an hour or two
  codanet bench --models s_coda_r1_8 --batch 4 --quick  one network, once
  codanet bench --before OLD --output bench.json        also the version of codanet in the folder OLD"""
NUMBERS = {
    "batch": (16, "images at a time"),
    "size": (32, "side of the images"),
    "threads": (2, "CPU threads"),
    "rounds": (3, "processes for each measurement"),
    "repeats": (6, "timings in each of them"),
}


def parser() -> Parser:
    parser, number = Parser("bench", ABOUT, EXAMPLES), positive(int)
    names = ", ".join(BENCH_MODELS)
    parser.add_argument("--models", nargs="+", default=BENCH_MODELS, help=f"names from codanet models ({names})")
    for key, (default, about) in NUMBERS.items():
        kind = threads if key == "threads" else number
        parser.add_argument(f"--{key}", type=kind, default=default, metavar="N", help=f"{about} (%(default)s)")
    parser.add_argument("--before", type=Path, help="folder with another version of codanet, to measure beside it")
    parser.add_argument("-o", "--output", type=Path, help="JSON file; a table in Markdown is written beside it")
    parser.add_argument(
        "--quick", action="store_true", help="each measurement once, to check that everything works; nothing in C++"
    )
    return parser


def main(arguments: list[str]) -> int:
    options = vars(parser().parse(arguments))
    for name in options["models"]:
        architecture(name)
    from ..benchmarks.bench import bench

    bench(**options | {"models": tuple(options["models"])})
    return 0
