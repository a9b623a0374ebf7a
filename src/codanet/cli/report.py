"""`codanet report`."""

from .._support.files import expanded
from .._support.messages import plain
from .parser import Parser

ABOUT = """\
Show an evaluation or a training run as one HTML page, which can be viewed offline: accuracy, confusion matrix, tables
and plots, the surest right and wrong decisions with their maps, a card of the model (accuracy class by class and on
degraded pictures, calibration, where its maps lie), and the provenance of it all."""
EXAMPLES = """\
  codanet report runs/digits                         writes runs/digits/report.html
  codanet report evaluations/cifar10 -o why.html     the output of codanet evaluate
  codanet report runs/folder --root pictures         where the images are, if they have moved"""
LOOK_AT = """\
Sure and right shows, for each class, where the decision was made: it should be on the thing itself.
Sure and wrong sets what the network saw in its worst mistakes against what it missed.
Confusion counts how often it takes one class for another."""


def parser() -> Parser:
    parser = Parser("report", ABOUT, EXAMPLES)
    parser.add_argument("folder", metavar="FOLDER", help="the output folder of codanet evaluate or codanet train")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: FOLDER/report.html")
    parser.add_argument("--root", help="folder or archive of the data set, if it has moved")
    parser.add_argument(
        "--corrupted",
        type=int,
        default=150,
        metavar="N",
        help="how many held-out images are also tried in corrupted form (150)",
    )
    return parser


def main(arguments: list[str]) -> int:
    options = parser().parse(arguments)
    if not expanded(options.folder).exists():  # checked before anything heavy is imported
        raise ValueError(f"{options.folder} does not exist: give the folder of an evaluation or of a training run")
    from ..report import report

    print(plain(report(options.folder, options.output, root=options.root, corrupted=options.corrupted)))
    print(LOOK_AT)
    return 0
