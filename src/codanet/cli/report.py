"""`codanet report`."""

from .._support.files import expanded
from .._support.messages import nearest, plain
from ..models.weight_files import list_shipped
from .names import REPORT_SPLITS
from .parser import Parser

ABOUT = """\
Show a model, a training run or an evaluation as one HTML page, which can be viewed offline: accuracy, confusion
matrix, tables and plots, the surest right and wrong decisions with their maps, a card of the model (accuracy class by
class and on degraded pictures, calibration, where its maps lie), and the provenance of it all. A model is looked at on
images that its training held out, if there are any, else on test images."""
EXAMPLES = """\
  codanet report runs/digits                         writes runs/digits/report.html
  codanet report evaluations/cifar10 -o why.html     the output of codanet evaluate
  codanet report runs/folder --root pictures         where the images are, if they have moved
  codanet report cifar10                             a model that comes with the package: writes cifar10-report.html
  codanet report model.safetensors --data pictures   a model on pictures of your own
  codanet report resnet56:resnet56.th --data cifar10"""
LOOK_AT = """\
Sure and right shows, for each class, where the decision was made: it should be on the thing itself.
Sure and wrong sets what the network saw in its worst mistakes against what it missed.
Confusion counts how often it takes one class for another."""


def parser() -> Parser:
    parser = Parser("report", ABOUT, EXAMPLES)
    parser.add_argument(
        "source",
        metavar="FOLDER|MODEL",
        help="the output folder of codanet evaluate or codanet train; or a model, as codanet evaluate takes it",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="default: FOLDER/report.html or MODEL-report.html")
    parser.add_argument(
        "--data", help="of a model: a data set's name, or a folder of pictures (what it was trained on)"
    )
    parser.add_argument("--split", metavar="|".join(REPORT_SPLITS), help="of a model: which images")
    parser.add_argument("--root", help="folder or archive of the data set, if it has moved")
    parser.add_argument(
        "--corrupted",
        type=int,
        default=150,
        metavar="N",
        help="how many images are also tried in corrupted form (150)",
    )
    return parser


def main(arguments: list[str]) -> int:
    options = parser().parse(arguments)
    source, shipped = options.source, list_shipped()
    if not (expanded(source).exists() or source in shipped or source.startswith("resnet")):  # before heavy imports
        raise ValueError(
            f"{source} does not exist{nearest(source, shipped)}, or give the folder of an evaluation or a training run"
        )
    from ..report import report

    path = report(
        source,
        options.output,
        data=options.data,
        split=options.split,
        root=options.root,
        corrupted=options.corrupted,
    )
    print(plain(path))
    print(LOOK_AT)
    return 0
