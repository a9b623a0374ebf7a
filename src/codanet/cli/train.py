"""`codanet train`."""

import json
from typing import Any

from .._support.messages import nearest

EXAMPLES = """\
  codanet train digits                            under a minute, nothing to download
  codanet train pictures                          your own: pictures/cat/1.jpg, pictures/dog/7.png, …
  codanet train cifar10-cpu --epochs 2 --json     a recipe, with a setting of your own
  codanet train mine.yaml --output runs/mine      settings in a file"""


def main(arguments: list[str]) -> int:
    from jsonargparse import ArgumentParser

    from ..training.settings import FIELDS, RECIPE_ONLY, Settings, load_recipe, read_settings
    from .parser import help_with_examples

    parser = ArgumentParser(
        prog="codanet train",
        description="Train a CoDA-Net. Started again, a stopped run goes on where it stopped.\n"
        "A setting that is not given is the recipe's; the defaults below are for what a recipe leaves out.",
        epilog=f"examples:\n{EXAMPLES}",
        formatter_class=help_with_examples(),
        exit_on_error=False,
    )
    parser.add_argument("recipe", type=str, help="a recipe's name, a folder of pictures, or a YAML file of settings")
    parser.add_argument("--output", type=str, default=None, help="folder of the run (default: runs/RECIPE)")
    parser.add_argument("--config", type=str, default=None, help="YAML file of settings that replace the recipe's")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_class_arguments(Settings, as_group=True)
    options = {"--recipe", "--output", "--config", "--json", "--help", *(f"--{name}" for name in FIELDS)}
    words = []
    for word in arguments:
        flag, sign, value = word.partition("=")
        if flag.startswith("--"):
            flag = "--" + flag.removeprefix("--").replace("-", "_")
            if flag not in options:
                raise ValueError(f"unknown setting {word.partition('=')[0]!r}{nearest(flag.lstrip('-'), FIELDS)}")
        words.append(flag + sign + value)
    given = {word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")}
    parsed = parser.parse_args(words)
    recipe = load_recipe(parsed.recipe)  # an unknown one is said before anything heavy is imported
    from lightning.pytorch.utilities import rank_zero_only

    from ..training import train_all

    changes: dict[str, Any] = read_settings(parsed.config) if parsed.config else {}
    changes.pop("about", None)
    if wrong := changes.keys() & set(RECIPE_ONLY):
        raise ValueError(f"{parsed.config} says {min(wrong)}, which only a recipe can: train {parsed.config} itself")
    changes |= {name: parsed[name] for name in FIELDS if name in given}
    for result in train_all(recipe, parsed.output, **changes):
        if rank_zero_only.rank:  # one process of several speaks
            continue
        if parsed.json:
            print(
                json.dumps(
                    {"accuracy": result.accuracy, "weights": str(result.weights), "hours": round(result.hours, 4)}
                )
            )
        else:
            print(f"validation accuracy {result.accuracy:.2%} after {result.epochs} epochs ({result.hours:.2f} hours)")
            print(f"weights             {result.weights}")
            print(f"contribution maps   {result.folder / 'maps'}")
    return 0
