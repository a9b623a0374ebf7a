"""The command line: `codanet train|models|recipes|bench`, thin over the library's own functions."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from . import __version__
from .names import nearest

USAGE = """\
codanet: image classifiers whose every decision is an exact sum of pixel contributions

  codanet train digits                     train on the embedded digits, under a minute
  codanet train path/to/pictures           train on your own: one folder per class
  codanet train cifar10-cpu --epochs 2     a recipe, with a setting of your own
  codanet recipes                          what can be trained, and what the paper says of it
  codanet models                           the networks, with their sizes
  codanet bench --output bench.json        speed and memory against the paper's Algorithm 1

codanet COMMAND --help tells more of each."""


def _train(arguments: list[str]) -> int:
    from jsonargparse import ArgumentParser

    from .settings import FIELDS, RECIPE_ONLY, Settings, load_recipe, read_settings

    parser = ArgumentParser(
        prog="codanet train",
        description="Train a CoDA-Net. Started again, a stopped run goes on where it stopped.",
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

    from .training import train_all

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


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _no_more(command: str, arguments: list[str]) -> None:
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE)
        raise SystemExit(0)
    if arguments:
        raise ValueError(f"codanet {command} takes no arguments, but was given {' '.join(arguments)}: leave them out")


def _models(arguments: list[str]) -> int:
    _no_more("models", arguments)
    import torch

    from .zoo import ARCHITECTURES, create_model

    rows = [("name", "parameters", "layers", "image size", "T")]
    for name, architecture in ARCHITECTURES.items():
        with torch.device("meta"):
            count = sum(p.numel() for p in create_model(name).parameters())
        size = f"{architecture.image_size}x{architecture.image_size}"
        rows.append(
            (name, f"{count / 1e6:.2f} M", str(len(architecture.layers)), size, f"{architecture.temperature:g}")
        )
    _table(rows)
    return 0


def _recipes(arguments: list[str]) -> int:
    _no_more("recipes", arguments)
    from .settings import list_recipes, load_recipe

    _table([(name, load_recipe(name).about) for name in list_recipes()])
    return 0


def _bench(arguments: list[str]) -> int:
    from .bench import main as bench_main

    bench_main(arguments)
    return 0


COMMANDS = {"train": _train, "models": _models, "recipes": _recipes, "bench": _bench}


def main(arguments: list[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if arguments[0] in ("--version", "-V"):
        print(f"codanet {__version__}")
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        print(f"codanet: unknown command {command!r}{nearest(command, COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return COMMANDS[command](rest)
    except KeyboardInterrupt:
        print("codanet: stopped; the same command goes on from the last complete epoch", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"codanet: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if type(error).__name__ == "ArgumentError":  # jsonargparse's own, about a value it cannot take
            print(f"codanet: {error}", file=sys.stderr)
            return 2
        raise


if __name__ == "__main__":
    sys.exit(main())
