"""A run that starts from another one: its weights, and what they have cost so far."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._support.files import expanded
from .._support.limits import read_json, shown
from ..data import ImageData, picture_folder
from ..models.network import CoDANet
from ..models.weight_files import weights_path
from ..models.weights import check_tensors, load
from .checkpoint import SETTINGS_KEY, Damaged, read_checkpoint
from .run_files import LAST, MODEL, SETTINGS
from .settings import Settings


@dataclass(frozen=True)
class Start:
    """Where a stage begins."""

    weights: dict[str, torch.Tensor]
    stages: tuple[dict[str, Any], ...]  # what was done before: settings, epochs, hours and checksum of each stage


def read_start(place: str) -> Start:
    """From a run's folder, finished or not, or from weights: a file, or the name of a model of the package."""
    folder = expanded(place)
    if folder.is_dir():
        if (folder / MODEL).is_file():
            return _finished(folder / MODEL)
        if not (folder / LAST).is_file():
            raise ValueError(f"{folder} holds neither {MODEL} nor {LAST}: give the folder of a run, or weights")
        return unfinished(folder)
    return _finished(weights_path(str(folder)))


def _finished(path: Path) -> Start:
    model = load(path)
    before = model.provenance
    try:
        stages = [_stage(stage) for stage in before.get("stages") or ([before] if "settings" in before else [])]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path} does not tell how it was trained ({type(error).__name__}): save it again") from None
    return Start(dict(model.state_dict()), tuple(stages))


def unfinished(folder: Path) -> Start:
    """From the last checkpoint of a run."""
    try:
        checkpoint = read_checkpoint(folder / LAST)
        settings = checkpoint.get(SETTINGS_KEY) or read_json(folder / SETTINGS)
        weights = {
            key.removeprefix("model."): value
            for key, value in checkpoint["state_dict"].items()
            if key.startswith("model.")
        }
        stage = {
            "settings": settings,
            "epochs": checkpoint["epoch"] + 1,
            "hours": checkpoint["seconds"] / 3600,
            "data_checksum": settings.get("data_checksum"),
        }
        before = checkpoint.get("stages", [])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = error if isinstance(error, Damaged) else type(error).__name__
        raise ValueError(f"{folder} holds a run that cannot be read ({reason}): give another") from None
    return Start(weights, (*before, _stage(stage)))


def _stage(provenance: dict[str, Any]) -> dict[str, Any]:
    return {
        "settings": provenance["settings"],
        "epochs": int(provenance["epochs"]),
        "hours": round(float(provenance["hours"]), 3),
        "data_checksum": provenance.get("data_checksum"),  # of the training pictures; not known of older stages
    }


def check_unseen(start: Start, settings: Settings, data: ImageData) -> None:
    """Refuse to hold out for validation what an earlier stage has learnt from."""
    for stage in start.stages if data.drawn else ():
        before = stage["settings"] if isinstance(stage["settings"], Mapping) else {}
        if _place(before.get("data")) != _place(settings.data):
            continue
        seed, holdout = before.get("seed", settings.seed), before.get("holdout", 0)
        less = isinstance(holdout, int) and holdout < settings.holdout
        if less or seed != settings.seed:
            raise ValueError(
                f"{settings.start} was trained with seed {shown(seed)} and holdout {shown(holdout)} on images that "
                f"seed {settings.seed} and holdout {settings.holdout} hold out for validation: choose the same"
            )
        if picture_folder(settings.data) and stage.get("data_checksum") not in (None, data.checksum):
            raise ValueError(
                f"the pictures in {settings.data} are not those that {settings.start} was trained on, so that it may "
                "have learnt from what is held out for validation now: put those to validate with into a folder val, "
                "beside train"
            )


def _place(data: object) -> object:
    """A data set's name, or where a folder of pictures lies, however that was written."""
    return path.resolve() if isinstance(data, str) and (path := picture_folder(data)) else data


def begin(model: CoDANet, start: Start, place: str) -> None:
    """Put the weights into a model of the same shape."""
    check_tensors(place, model.state_dict(), start.weights)
    model.load_state_dict(start.weights)
