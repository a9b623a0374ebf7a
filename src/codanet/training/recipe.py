"""Settings by name: the paper's recipes and ours, one YAML file each, and those of a user."""

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from .._support.extras import optional
from .._support.files import expanded
from .._support.limits import MOST_YAML, parse_yaml, shown
from .._support.messages import nearest
from ..models.architectures import PEER_NAMES
from .run_files import FIRST_STAGE
from .settings import FIELDS, Settings, changed, known_entries

MOST_RUNS = 1000  # in a sweep
OF_FOLDERS = ("folder", "photos")  # recipes for one's own pictures: without a backbone, and on one
RECIPE_ONLY = ("base", "about", "sweep", "then")  # what a recipe may say besides
# settings that `then` cannot change, and why: a second stage ...
TAKEN_OVER = {
    "start": "starts from the weights of the first",
    **dict.fromkeys(("model", "backbone", "layer", "head", "encoding", "rescale"), "trains the network of the first"),
    **dict.fromkeys(("data", "root", "source"), "learns from the same images as the first"),
    **dict.fromkeys(("holdout", "seed"), "holds out the same images as the first"),
    **dict.fromkeys(("devices", "nodes"), "runs in the processes of the first"),
}


@dataclass(frozen=True)
class Recipe:
    """Settings by name, and, for an ablation, the values that one of them takes in turn.

    Args:
        name: What the recipe is called.
        settings: Of the run, or of its first stage.
        sweep: A setting and its values.
        about: A line for those who choose.
        then: What a second stage, which goes on with the weights of the first, does otherwise; empty if there is none.

    Raises:
        ValueError: If `then` has a setting that the second stage takes over from the first.
    """

    name: str
    settings: Settings
    sweep: tuple[str, tuple[Any, ...]] | None = None
    about: str = ""
    then: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, reason in TAKEN_OVER.items():
            if key in self.then:
                raise ValueError(
                    f"then of {self.name!r} sets {key} to {shown(self.then[key])}, but a second stage {reason}: leave "
                    f"{key} out, or give it beside then"
                )

    def with_changes(self, changes: Mapping[str, Any]) -> "Recipe":
        """The recipe with other settings, in both of its stages."""
        settings = changed(self.settings, changes)
        sweep = None if self.sweep and self.sweep[0] in changes else self.sweep
        then = {} if settings.model in PEER_NAMES else self.then  # a peer starts from no weights
        then = {key: value for key, value in then.items() if key not in changes}
        return dataclasses.replace(self, settings=settings, sweep=sweep, then=then)

    def stages(self, folder: Path) -> list[tuple[Path, Settings]]:
        """(folder, settings) of the stages of a recipe that sweeps nothing; the last one's folder is the run's own."""
        if not self.then:
            return [(folder, self.settings)]
        second = changed(self.settings, {**self.then, "start": FIRST_STAGE})
        return [(folder / FIRST_STAGE, self.settings), (folder, second)]

    def runs(self) -> list[tuple[str, Settings]]:
        """(folder, settings) of every run; the folder is '' where there is one run only."""
        if self.sweep is None:
            return [("", self.settings)]
        key, values = self.sweep
        runs = {folder_name(key, value): changed(self.settings, {key: value}) for value in values}
        if len(runs) < len(values):
            raise ValueError(
                f"the sweep of {self.name!r} has values of {key} whose folders would have one name: leave some out"
            )
        return list(runs.items())


def folder_name(key: str, value: object) -> str:
    """Of a run in a sweep: one folder inside the sweep's own, whatever the value is."""
    return re.sub(r"[^\w.,+=-]+", "_", f"{key}={value}")[:100]


def list_recipes() -> list[str]:
    files = resources.files("codanet.training") / "recipes"
    return sorted(file.name.removesuffix(".yaml") for file in files.iterdir() if file.name.endswith(".yaml"))


def read_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The entries of a YAML file of settings."""
    with optional():
        import yaml

    path = expanded(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file: give a YAML file of settings")
    try:
        if path.stat().st_size > MOST_YAML:
            raise ValueError(f"it is larger than {MOST_YAML // 2**20} MiB")
        entries = parse_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:200]
        raise ValueError(f"{path} is not YAML of settings ({reason}): write 'setting: value' lines") from None
    return known_entries(entries or {}, str(path), (*FIELDS, *RECIPE_ONLY))


def load_recipe(name: str | os.PathLike[str], _above: tuple[str, ...] = (), *, backbone: str | None = None) -> Recipe:
    """A recipe by its name, from a YAML file, or, for a folder of pictures, `folder`, or `photos` on a backbone."""
    if not isinstance(name, (str, os.PathLike)):
        raise ValueError(f"a recipe was given as {name!r}: give a name, a folder of pictures or a .yaml file")
    text = os.fspath(name)
    if text in _above:
        raise ValueError(f"recipe {text!r} is its own base ({' → '.join((*_above, text))}): name another one")
    place = expanded(text)
    own_pictures = text in OF_FOLDERS and place.is_dir() and not _above  # a base is a recipe
    if text in list_recipes() and not own_pictures:
        with resources.as_file(resources.files("codanet.training") / "recipes" / f"{text}.yaml") as path:
            return _recipe(text, read_settings(path), (*_above, text))
    if place.is_dir():
        own = OF_FOLDERS[1 if backbone else 0]
        with resources.as_file(resources.files("codanet.training") / "recipes" / f"{own}.yaml") as path:
            recipe = _recipe(own, read_settings(path), (own,))
        return dataclasses.replace(recipe, settings=dataclasses.replace(recipe.settings, data=str(place.resolve())))
    if place.suffix in (".yaml", ".yml"):
        return _recipe(place.stem, read_settings(place), (*_above, text))
    raise ValueError(
        f"unknown recipe {text!r}{nearest(text, list_recipes())}, or give a folder of pictures or a .yaml file"
    )


def _recipe(name: str, entries: dict[str, Any], above: tuple[str, ...]) -> Recipe:
    base, about, sweep, then = (entries.pop(key, None) for key in RECIPE_ONLY)
    start = load_recipe(base, above) if base else Recipe(name, Settings())
    recipe = dataclasses.replace(start.with_changes(entries), name=name, about=about or "")
    if then is not None:
        recipe = _with_second_stage(recipe, known_entries(then, f"then of {name!r}"))
    if sweep is None:  # the base's, unless its setting has a value here
        swept = recipe.sweep
    elif not isinstance(sweep, Mapping) or len(sweep) != 1 or not all(isinstance(v, list) for v in sweep.values()):
        raise ValueError(f"sweep in recipe {name!r} is {shown(sweep)}: it must be one setting with a list of values")
    else:
        ((key, values),) = known_entries(sweep, f"the sweep of {name!r}").items()
        if not 1 <= len(values) <= MOST_RUNS:
            raise ValueError(f"the sweep of {name!r} has {len(values)} values of {key}: give from 1 to {MOST_RUNS}")
        swept = (key, tuple(values))
    if swept and recipe.then:
        raise ValueError(f"recipe {name!r} has both sweep and then: a sweep has one stage, so leave one out")
    return dataclasses.replace(recipe, sweep=swept)


def _with_second_stage(recipe: Recipe, then: dict[str, Any]) -> Recipe:
    if then and recipe.settings.model in PEER_NAMES:
        raise ValueError(
            f"recipe {recipe.name!r} has then, but {recipe.settings.model} is a peer of CoDA-Nets, which starts from "
            "no weights: leave then out"
        )
    recipe = dataclasses.replace(recipe, then=then)
    changed(recipe.settings, then)  # a mistake is said now
    return recipe
