"""What a report is about: a model, an evaluation or a training run; and whether its images are on this machine."""

from __future__ import annotations

import csv
import dataclasses
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from .._support.download import cache_root
from .._support.files import expanded
from .._support.limits import holdout_in, mapping, seed_in
from .._support.limits import read_json as limited_json
from ..data import ImageData, canonical, load_data
from ..data.cache import readable
from ..data.photographs import load_photographs
from ..data.split import held_out
from ..evaluation.models import (
    HELD_OUT,
    fitting,
    held_out_by,
    model_digest,
    provenance_of,
    read_data,
    reading_size,
    settings_of,
    trained_on,
)
from ..evaluation.records import LINES, RESULTS
from ..export import load
from ..models.backbones import BACKBONES
from ..models.resnet import RESNETS
from ..models.weight_files import SHIPPED, list_shipped
from ..training.run_files import FIRST_STAGE, LAST, LOGS, MODEL, SETTINGS

SPLITS = (HELD_OUT, "test")  # of a model, to be looked at
EPOCH_NUMBERS = ("loss_epoch", "val_loss", "train_accuracy", "val_accuracy")


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = limited_json(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({type(error).__name__}): it is damaged or of another kind") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no mapping: it is damaged or of another kind")
    return content


def kind(source: str | os.PathLike[str]) -> str:
    """'evaluation', 'run' or, for what is no folder, 'model'; an error that says what else was found."""
    folder = expanded(source)
    if not folder.is_dir():
        return "model"
    if (folder / RESULTS).is_file():
        return "evaluation"
    if (folder / MODEL).is_file() or (folder / LAST).is_file():
        return "run"
    if source in list_shipped() and not (folder / LINES).is_file():  # names first, as elsewhere
        return "model"
    inside = sorted(path.name for path in folder.iterdir() if path.is_dir() and (path / SETTINGS).is_file())
    if inside:
        raise ValueError(f"{folder} holds several runs: give one of them, such as {folder / inside[0]}")
    if (folder / LINES).is_file():
        raise ValueError(f"{folder} holds an evaluation that has not ended: start it again, then report it")
    raise ValueError(
        f"{folder} holds neither {RESULTS} (of codanet evaluate) nor {MODEL} (of codanet train): give another folder"
    )


def epochs(folder: Path) -> list[dict[str, float]]:
    """What was logged after every epoch, resumed runs put together; the last word on an epoch counts."""
    by_epoch: dict[int, dict[str, float]] = {}
    logs = (folder / LOGS).glob("*/metrics.csv")
    for path in sorted(logs, key=lambda path: (len(path.parent.name), path.parent.name)):
        with path.open(encoding="utf-8", errors="replace", newline="") as file, suppress(csv.Error):
            for line in csv.DictReader(file):
                try:
                    numbers = {name: float(line[name]) for name in EPOCH_NUMBERS if line.get(name)}
                    epoch = int(line["epoch"])
                except (KeyError, TypeError, ValueError):
                    continue
                if numbers:
                    by_epoch.setdefault(epoch, {}).update(numbers)
    return [{"epoch": epoch + 1, **by_epoch[epoch]} for epoch in sorted(by_epoch)]


def with_first_stage(folder: Path, own: list[dict[str, float]]) -> list[dict[str, float]]:
    """The epochs of a run after those of the first stage that its recipe may have."""
    before = epochs(folder / FIRST_STAGE)
    done = before[-1]["epoch"] if before else 0
    return before + [line | {"epoch": done + line["epoch"]} for line in own]


@dataclass(frozen=True)
class Images:
    """Images that the model was not trained on, or the sentence that says why there are none.

    Args:
        data: Their data set.
        missing: That sentence.
        what: What to call them.
        train: Whether they are the training part after all, which an evaluation may have measured.
    """

    data: ImageData | None = None
    missing: str = ""
    what: str = "held-out images"
    train: bool = False


def images(settings: Mapping[str, Any], checksum: object, root: Path | None = None) -> Images:
    """The data set of a run as it was trained on, if it is on this machine; nothing is downloaded for a report."""
    name, place = str(settings.get("data") or ""), root
    known = canonical(name)
    if known is None:  # a folder of pictures, which may have moved
        name, place = str(root or name), None
        here = bool(name) and expanded(name).is_dir()
    elif known == "digits":
        place, here = None, True
    else:
        place = root or (expanded(str(settings["root"])) if settings.get("root") else None)
        here = place.exists() if place is not None else _kept(known)
    if not here:
        return Images(missing=f"The images of {name or 'the data set'} are not on this machine")
    size, seed = _size(settings.get("image_size")), seed_in(settings)
    backbone = settings.get("backbone")
    side = BACKBONES[backbone].image_size if isinstance(backbone, str) and backbone in BACKBONES else None
    try:
        if known is None and side is not None:
            data = load_photographs(expanded(name), side=side, size=size, seed=seed)
        else:
            data = load_data(name, root=place, size=size if isinstance(size, int) else side, seed=seed)
    except ValueError as error:
        return Images(missing=f"The images of {name} cannot be read ({error})")
    if checksum and data.checksum != checksum:
        return Images(missing=f"The images of {name} on this machine are not those that were used")
    holdout = holdout_in(settings)
    if 0 < holdout < len(data.train):  # a test set is not looked at for a run's report
        data = held_out(data, holdout, seed)
    return Images(data)


def images_of_model(
    label: str, model: nn.Module, data: str | os.PathLike[str] | None, split: str | None, root: Path | None
) -> Images:
    """Those of its training, or of other data; what the training held out, unless `split` asks for the test images."""
    if data is not None:
        return _asked_for(label, model, data, split, root)
    told, settings = provenance_of(model), settings_of(model)
    if not settings.get("data"):
        raise ValueError(f"{label} does not say what it was trained on: give a data set or a folder with --data")
    holdout, size = _to_look_at(label, holdout_in(settings), split), reading_size({label: model})
    settings |= {"image_size": None if size is None else list(size), "holdout": holdout}
    there = images(settings, told.get("data_checksum"), root)
    return there if there.data is None else _called(there.data, holdout)


def _asked_for(
    label: str, model: nn.Module, data: str | os.PathLike[str], split: str | None, root: Path | None
) -> Images:
    """A data set or a folder as `codanet evaluate` reads it, with the same errors; but nothing is downloaded."""
    known, told = canonical(os.fspath(data)), provenance_of(model)
    if known is not None and root is None and not _kept(known):
        return Images(missing=f"The images of {known} are not on this machine")
    found = read_data({label: model}, data, root, None, "auto")
    own = trained_on(told, found)
    holdout = _to_look_at(label, holdout_in(settings_of(model)) if own else 0, split)
    if holdout:
        found = held_out_by({label: model}, found)
    fitting(label, model, found, train=False)
    there = _called(found, holdout)
    if found.drawn and not own and told.get("data") == found.name:  # the folder has changed since, and so has the draw
        return dataclasses.replace(there, what=f"{there.what}, some of which training may have had")
    return there


def _to_look_at(label: str, holdout: int, split: str | None) -> int:
    """How many of the held-out training images, 0 for the test images."""
    if split == HELD_OUT and not holdout:
        raise ValueError(f"the training of {label} held nothing of these images out (holdout): give --split test")
    return 0 if split == "test" else holdout


def _called(data: ImageData, holdout: int) -> Images:
    own = f"images of {data.name}"
    return Images(data, what=f"training {own} that training held out" if holdout else own)


def _kept(known: str) -> bool:
    """Whether a data set comes with a package, or is in the cache, undamaged: another would be fetched again."""
    return known == "digits" or readable(cache_root() / f"{known}.safetensors")


def images_of_evaluation(model: nn.Module, provenance: Mapping[str, Any], root: Path | None) -> Images:
    """As it read them: from the folder of the model's training if that set is of the same name."""
    data, measured = mapping(provenance.get("data")), mapping(provenance.get("settings"))
    told, settings = provenance_of(model), {"data": data.get("name")}
    elsewhere = {} if told.get("data") == data.get("name") else {**settings, "root": None}
    own = settings_of(model)
    holdout = holdout_in(own) if measured.get("split") == HELD_OUT else 0
    settings = {**settings, **own, **elsewhere, "holdout": holdout}
    if "image_size" in measured:
        settings["image_size"] = measured["image_size"]
    there = images(settings, data.get("checksum"), root)
    return dataclasses.replace(there, train=measured.get("split") == "train")


def measured_model(entry: object, folder: Path) -> tuple[nn.Module | None, str]:
    """The model that was evaluated, if its file is still there and still the same."""
    file = str(entry.get("file") or "") if isinstance(entry, Mapping) else ""
    kind, colon, path = file.partition(":")
    places = [SHIPPED / f"{file}.safetensors", Path(file), folder / file]  # names first, as there
    if colon and kind in RESNETS:
        if path == "official":
            return None, "the official weights are not fetched for a report"
        places = [expanded(path)]
    paths = [place for place in places if file and place.is_file()]
    if not paths:
        return None, "its weights are not on this machine" if file else "it was not read from a file"
    try:
        model = RESNETS[kind](weights=paths[0]).eval() if colon and kind in RESNETS else load(paths[0])
    except ValueError as error:
        return None, f"its weights cannot be read here ({error})"
    if isinstance(entry, Mapping) and entry.get("digest") not in (None, model_digest(model)):
        return None, "its weights have changed since"
    return model, ""


def _size(value: object) -> int | tuple[int, int] | None:
    """The side of a training, or the height and width of an evaluation; None for what is neither."""
    if isinstance(value, int):
        return value
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(side, int) for side in value):
        return None
    height, width = value
    return height if height == width else (height, width)
