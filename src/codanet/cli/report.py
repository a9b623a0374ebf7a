"""`codanet report`."""

from .._support.files import expanded
from .._support.messages import plain
from .parser import Parser

ABOUT = """\
An evaluation or a training run as one HTML page that needs no network to be viewed: accuracy, confusion matrix, tables
and plots, the surest right and wrong decisions with their maps, a card of the model (class by class, calibration, on
worse pictures, where its maps lie), and where it all comes from."""
EXAMPLES = """\
  codanet report runs/digits                         writes runs/digits/report.html
  codanet report evaluations/cifar10 -o why.html     what codanet evaluate left
  codanet report runs/folder --root pictures         where the images are, if they have moved"""
LOOK_AT = """\
Sure and right shows, for each class, where the decision was made: it should be on the thing itself.
Sure and wrong sets what the network saw in its worst mistakes against what it missed.
Confusion counts which classes it takes for each other."""


def parser() -> Parser:
    parser = Parser("report", ABOUT, EXAMPLES)
    parser.add_argument("folder", metavar="FOLDER", help="what codanet evaluate or codanet train left")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: FOLDER/report.html")
    parser.add_argument("--root", help="folder or archive of the data set, if it is not where it was")
    parser.add_argument(
        "--corrupted",
        type=int,
        default=150,
        metavar="N",
        help="how many held-out images are also tried in a corrupted form (150)",
    )
    return parser


def main(arguments: list[str]) -> int:
    options = parser().parse(arguments)
    if not expanded(options.folder).exists():  # said before anything heavy is imported
        raise ValueError(f"{options.folder} does not exist: give the folder of an evaluation or of a training run")
    from ..report import report

    print(plain(report(options.folder, options.output, root=options.root, corrupted=options.corrupted)))
    print(LOOK_AT)
    return 0
