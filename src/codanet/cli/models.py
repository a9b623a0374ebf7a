"""`codanet models`."""

import json

from .parser import Parser
from .table import print_table

ABOUT = """\
List the networks by name: those whose weights come with the package, ready for codanet explain, and those of the paper
and ours, to train with codanet train RECIPE --model NAME."""
EXAMPLES = """\
  codanet models
  codanet models --json"""


def parser() -> Parser:
    parser = Parser("models", ABOUT, EXAMPLES)
    parser.add_argument("--json", action="store_true", help="one JSON object per network, instead of a table")
    return parser


def main(arguments: list[str]) -> int:
    options = parser().parse(arguments)
    import torch

    from ..models.weights import load
    from ..models.zoo import create_model, list_models

    models = [(load(name), name, True) for name in list_models(pretrained=True)]
    with torch.device("meta"):
        models += [(create_model(name), name, False) for name in list_models()]
    rows = [("name", "parameters", "layers", "image size", "T", "weights")]
    for model, name, shipped in models:
        count, side = sum(p.numel() for p in model.parameters()), model.image_size or ("any", "any")
        if options.json:
            facts = {"name": name, "parameters": count, "layers": len(model.layers), "image_size": side}
            print(json.dumps({**facts, "temperature": model.temperature, "shipped": shipped}))
        size, weights = f"{side[0]}x{side[1]}", "shipped" if shipped else ""
        rows.append((name, f"{count / 1e6:.2f} M", str(len(model.layers)), size, f"{model.temperature:g}", weights))
    if not options.json:
        print_table(rows)
    return 0
