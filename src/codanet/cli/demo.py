"""`codanet demo`."""

import time

from .._support.interrupts import interrupts
from ..models.weight_files import list_shipped, weights_file
from .parser import Parser

ABOUT = """\
Serve a web page: give it a picture, see the prediction and why. Only this machine can reach it unless --host says
otherwise. Pictures stay in memory and are forgotten an hour after their visitor's last step."""
EXAMPLES = """\
  codanet demo                                       the models that come with codanet
  codanet demo runs/digits/model.safetensors         your own
  codanet demo model.safetensors --examples cifar10  with pictures of a data set as examples
  codanet demo --host 0.0.0.0 --port 8000            for everyone on the network
  codanet demo --name demo.example.org --port 8000   behind a proxy of that name"""
LOCAL = ("127.0.0.1", "localhost", "::1")


def parser() -> Parser:
    parser = Parser("demo", ABOUT, EXAMPLES)
    parser.add_argument(
        "models", metavar="MODEL", nargs="*", help="a .safetensors or .onnx file, or a shipped model's name"
    )
    parser.add_argument("--host", default=LOCAL[0], help="address to serve at (%(default)s)")
    parser.add_argument("--port", type=int, metavar="N", help="default: the first free one from 7860")
    parser.add_argument("--name", metavar="HOST", help="what a proxy in front of the page is called")
    parser.add_argument("--share", choices=("no", "yes"), default="no", help="public address via Gradio (%(default)s)")
    parser.add_argument("--examples", metavar="DATA", help="data set or folder to take example pictures from")
    return parser


def main(arguments: list[str]) -> int:
    options = parser().parse(arguments)
    names = options.models or list_shipped() or ["cifar10"]
    for name in names:
        weights_file(name)
    from ..data import load_data
    from ..export import load
    from ..models.classifier import explaining
    from ..models.labels import short_name

    models = {short_name(name, names): explaining(load(name), name) for name in names}
    data = load_data(options.examples) if options.examples else None
    from ..app import start

    share = options.share == "yes"
    page = start(models, host=options.host, port=options.port, share=share, name=options.name, data=data)
    print(f"The page is at {page.share_url or page.local_url} until Ctrl-C ends it.", flush=True)
    if options.host not in LOCAL or share or options.name:
        print("Anyone who can reach that address can use it.", flush=True)
    with interrupts() as heard:
        try:
            while page.is_running:
                time.sleep(0.2)
        except KeyboardInterrupt:
            heard.met()
            print("Ended.")
        finally:
            page.close(verbose=False)
    return 0
