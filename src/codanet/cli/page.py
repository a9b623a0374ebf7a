"""`codanet page`."""

from .._support.messages import plain
from .parser import Parser

ABOUT = """\
One HTML file in which models explain any picture, in the browser alone: no server, no network, nothing sent anywhere.
Open it from disk, put it on any web space, or send it to someone."""
EXAMPLES = """\
  codanet page cifar10 -o why.html                   the model that comes with codanet
  codanet page cifar10 mine.safetensors -o why.html  several, to choose from
  codanet page cifar10 -o small.html --half          fewer bytes, slightly other numbers"""


def parser() -> Parser:
    made = Parser("page", ABOUT, EXAMPLES)
    made.add_argument("models", metavar="MODEL", nargs="+", help="a .safetensors file, or a shipped model's name")
    made.add_argument("-o", "--output", metavar="FILE", default="why.html", help="the page (%(default)s)")
    made.add_argument("--examples", metavar="DATA", help="data set or folder whose pictures are offered")
    made.add_argument("--half", action="store_true", help="weights in half precision")
    return made


def main(arguments: list[str]) -> int:
    given = parser().parse(arguments)
    from .._support.files import check_apart, expanded
    from ..data import load_data
    from ..export import load
    from ..export.page import page
    from ..models.labels import short_name
    from ..models.weight_files import weights_file

    check_apart(expanded(given.output), [weights_file(name) for name in given.models], "shown")
    models = {short_name(name, given.models): load(name) for name in given.models}
    data = load_data(given.examples) if given.examples else None
    made = page(models, given.output, data=data, half=given.half)
    for name, found in made.differences.items():
        words = f"{name}: logits within {found.logits:.0e} of PyTorch's, contributions within {found.maps:.0e}"
        print(plain(words))
    print(plain(f"{made.path}  {made.bytes / 1e6:.1f} MB: open it in a browser"))
    return 0
