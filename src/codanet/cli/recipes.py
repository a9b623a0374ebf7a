"""`codanet recipes`."""

import json

from .parser import Parser
from .table import print_table

ABOUT = "List the recipes that codanet train knows by name, and where each comes from."
EXAMPLES = """\
  codanet recipes
  codanet recipes --json"""


def parser() -> Parser:
    parser = Parser("recipes", ABOUT, EXAMPLES)
    parser.add_argument("--json", action="store_true", help="one JSON object per recipe, instead of a table")
    return parser


def main(arguments: list[str]) -> int:
    options = parser().parse(arguments)
    from ..training.recipe import list_recipes, load_recipe

    about = [(name, load_recipe(name).about) for name in list_recipes()]
    if options.json:
        for name, words in about:
            print(json.dumps({"name": name, "about": words}))
    else:
        print_table(about)
    return 0
