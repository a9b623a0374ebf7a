"""`codanet page`."""

from .._support.files import check_apart, expanded
from .._support.messages import plain
from ..models.weight_files import weights_file
from .parser import Parser

ABOUT = """\
Write one HTML file in which models explain any picture, all in the browser: no server, no network, nothing sent
anywhere. Open it from disk, put it on any web server, or send it to someone."""
EXAMPLES = """\
  codanet page cifar10 -o why.html                   a model that comes with codanet
  codanet page cifar10 mine.safetensors -o why.html  several models to choose from
  codanet page cifar10 -o small.html --half          fewer bytes, slightly different numbers"""


def parser() -> Parser:
    parser = Parser("page", ABOUT, EXAMPLES)
    parser.add_argument(
        "models", metavar="MODEL", nargs="+", help="a .safetensors or .onnx file, or a shipped model's name"
    )
    parser.add_argument("-o", "--output", metavar="FILE", default="why.html", help="the page (%(default)s)")
    parser.add_argument("--examples", metavar="DATA", help="data set or folder to take example pictures from")
    parser.add_argument("--half", action="store_true", help="weights in half precision")
    return parser


def main(arguments: list[str]) -> int:
    options = parser().parse(arguments)
    check_apart([expanded(options.output)], [weights_file(name) for name in options.models], "shown")
    from ..data import load_data
    from ..export import load
    from ..export.page import page
    from ..models.labels import short_name

    models = {short_name(name, options.models): load(name) for name in options.models}
    data = load_data(options.examples) if options.examples else None
    written = page(models, options.output, data=data, half=options.half)
    for name, close in written.differences.items():
        print(plain(f"{name}: logits within {close.logits:.0e} of PyTorch's, contributions within {close.maps:.0e}"))
    print(plain(f"{written.path}  {written.bytes / 1e6:.1f} MB: open it in a browser"))
    return 0
