"""`codanet train`."""

import dataclasses
import json
import re
from inspect import cleandoc
from types import NoneType
from typing import Any

from .._support.allocator import keep_freed
from .._support.messages import nearest, plain
from .._support.typed import field_types
from ..models.architectures import ARCHITECTURES, PEER_NAMES
from ..training.recipe import RECIPE_ONLY, load_recipe, read_settings
from ..training.settings import FIELDS, Settings, changed
from .parser import Parser

ABOUT = """\
Train a CoDA-Net. To resume a stopped run, give the same command again.
Settings that you do not give come from the recipe; the defaults below apply where the recipe says nothing."""
EXAMPLES = """\
  codanet train digits                            under a minute, nothing to download
  codanet train pictures                          your own small pictures: pictures/cat/1.jpg, pictures/dog/7.png, …
  codanet train photos/ --backbone efficientnet_lite0    photographs, in minutes, on a pre-trained network
  codanet train cifar10-cpu --epochs 2 --json     a recipe, with a setting of your own
  codanet train mine.yaml --output runs/mine      settings in a file"""
WORDS = {"true": True, "yes": True, "false": False, "no": False, "null": None, "none": None}


def parser() -> Parser:
    """The settings are the fields of `Settings`, with what its docstring says about each."""
    parser = Parser("train", ABOUT, EXAMPLES)
    parser.add_argument("recipe", metavar="RECIPE", help="a name, a folder of pictures, or a YAML file of settings")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="where the run is kept (default: runs/RECIPE)")
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings that replace the recipe's")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    group, about = parser.add_argument_group("settings"), setting_help()
    for field in dataclasses.fields(Settings):
        flag = "--" + field.name.replace("_", "-")
        words = about.get(field.name, "").replace("%", "%%")
        default = "" if field.default is None else f" (default: {str(field.default).lower()})"
        alone: dict[str, Any] = (
            {"nargs": "?", "const": "true"} if field.type in (bool, "bool") else {}
        )  # --finetune says yes
        group.add_argument(flag, metavar="VALUE", default=None, dest=field.name, help=words + default, **alone)
    return parser


def setting_help() -> dict[str, str]:
    """What the docstring of `Settings` says about each setting."""
    text = cleandoc(Settings.__doc__ or "")
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in entries}


def main(arguments: list[str]) -> int:
    parsed = parser().parse(_saying_yes([_hyphenated(word) for word in arguments]))
    changes: dict[str, Any] = read_settings(parsed.config) if parsed.config else {}
    changes.pop("about", None)
    if wrong := changes.keys() & set(RECIPE_ONLY):
        raise ValueError(f"{parsed.config} says {min(wrong)}, which only a recipe can: train {parsed.config} itself")
    given = {name: getattr(parsed, name) for name in FIELDS if getattr(parsed, name) is not None}
    kinds = field_types(Settings)
    changes |= {name: _said(value, kinds[name]) for name, value in given.items()}
    recipe = load_recipe(parsed.recipe, backbone=changes.get("backbone"))
    model = changed(recipe.settings, changes).model
    if model not in (known := (*ARCHITECTURES, *PEER_NAMES)):  # mistakes are reported before anything heavy is imported
        raise ValueError(f"unknown model {model!r}{nearest(model, known)}")
    from lightning.pytorch.utilities import rank_zero_only

    from ..training import train_all

    keep_freed()
    for result in train_all(recipe, parsed.output, **changes):
        if rank_zero_only.rank:  # only one process of several prints
            continue
        if parsed.json:
            facts = {"accuracy": result.accuracy, "weights": str(result.weights), "hours": round(result.hours, 4)}
            print(json.dumps(facts | {"recall": result.recall}))
        else:
            print(f"validation accuracy {result.accuracy:.2%} after {result.epochs} epochs ({result.hours:.2f} hours)")
            if result.settings.backbone:
                recalls = sorted(result.recall.items(), key=lambda item: item[1])
                print(plain("recall by class     " + ", ".join(f"{name} {share:.0%}" for name, share in recalls)))
            print(plain(f"weights             {result.weights}"))
            print(plain(f"contribution maps   {result.folder / 'maps'}"))
    return 0


def _said(value: str, kinds: tuple[type, ...]) -> Any:
    """What a word stands for; where a setting must have a value, none is an ordinary word: --augmentation none."""
    meant = WORDS.get(value.lower(), value)
    return value if meant is None and NoneType not in kinds else meant


def _saying_yes(words: list[str]) -> list[str]:
    """--finetune photos/ as --finetune=true photos/: what is neither yes nor no is no value of such a setting."""
    switches = {f"--{name.replace('_', '-')}" for name, kinds in field_types(Settings).items() if bool in kinds}
    pairs = zip(words, [*words[1:], ""], strict=False)  # of no words none
    return [f"{word}=true" if word in switches and after.lower() not in WORDS else word for word, after in pairs]


def _hyphenated(word: str) -> str:
    """--batch_size=32 as --batch-size=32, and for an unknown setting an error that suggests the nearest."""
    flag, sign, value = word.partition("=")
    if not flag.startswith("--") or flag == "--":
        return word
    flag = flag.replace("_", "-")
    known = {"--output", "--config", "--json", "--help", *(f"--{name.replace('_', '-')}" for name in FIELDS)}
    if flag not in known:
        setting = flag.removeprefix("--").replace("-", "_")
        raise ValueError(f"unknown setting {word.partition('=')[0]!r}{nearest(setting, FIELDS)}")
    return flag + sign + value
