"""Training on Lightning: `train("digits")`, `train("my/pictures")`; stopped, it goes on where it stopped."""

import dataclasses
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities import rank_zero_only

from .._support.files import expanded, remove_leftovers, replacing
from .._support.interrupts import held
from .._support.locks import alone_in
from .._support.threads import torch_threads
from .._support.version import __version__
from ..data import ImageData
from ..models.hybrid import HybridNet
from ..models.network import CoDANet
from ..models.weights import load, save
from .module import Classification
from .photos import calibrate, featured, finished, forget_features
from .preparation import at_its_precision, check, check_writable, images_of, resumable, untrained
from .recipe import Recipe, load_recipe
from .run_files import BEST, FIRST_STAGE, LAST, MAPS, MODEL, SETTINGS
from .settings import Settings
from .trainer import few_words, make_trainer
from .warm_start import Start, begin, check_unseen, read_start, unfinished


@dataclass(frozen=True)
class Result:
    """What a run has left behind: its folder, the weights, and how good they are.

    Args:
        folder: Of the run.
        weights: The safetensors file in it.
        accuracy: On the validation images, after the last epoch.
        epochs: As many as were trained.
        hours: As long as that took, interruptions left out.
        settings: What it was trained by.
        recall: The share of every class's validation images that is recognised.

    Examples:
        >>> codanet.load(train("digits").weights)  # doctest: +SKIP
    """

    folder: Path
    weights: Path
    accuracy: float
    epochs: int
    hours: float
    settings: Settings
    recall: dict[str, float] = dataclasses.field(default_factory=dict)


def _write(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _silence(line: str) -> None:
    pass


def _provenance(recipe: str, module: Classification, result: Result) -> dict[str, Any]:
    settings = dataclasses.asdict(module.settings)
    own = {"settings": settings, "epochs": result.epochs, "hours": round(result.hours, 3)}
    stages = [*module.stages, own | {"data_checksum": module.data.checksum}]
    return {
        "recipe": recipe,
        "settings": settings,
        "seed": module.settings.seed,
        "epochs": sum(stage["epochs"] for stage in stages),
        "hours": round(sum(stage["hours"] for stage in stages), 3),
        **({"stages": stages} if module.stages else {}),
        "val_accuracy": result.accuracy,
        "val_recall": result.recall,
        "val_images": len(module.data.val),
        "val_held_out_of_training": module.settings.holdout > 0,
        "data": module.data.name,
        "data_checksum": module.data.checksum,
        "versions": {
            "codanet": __version__,
            "torch": torch.__version__,
            "lightning": lightning.__version__,
            "python": platform.python_version(),
        },
    }


def train(
    recipe: str | os.PathLike[str] | Recipe,
    output: str | os.PathLike[str] | None = None,
    *,
    quiet: bool = False,
    **changes: Any,
) -> Result:
    """Train a CoDA-Net by a recipe, on a folder of pictures, or by a YAML file of settings.

    Started again with the same settings, a run that was stopped goes on from its last complete epoch.

    Args:
        recipe: The name of a recipe, a folder of pictures with one folder per class, a .yaml file, or a Recipe.
        output: Folder of the run; runs/NAME if not given.
        quiet: Show no progress.
        **changes: Settings that replace the recipe's, by their names in `Settings`: epochs=2, model="s_coda".

    Returns:
        Where the weights are, and the accuracy on the held-out images.

    Raises:
        ValueError: If the recipe or a setting is unknown or makes no sense, before anything is trained.
        MissingPackage: If the packages of `codanet[train]` are not installed.

    Examples:
        >>> train("digits", "runs/digits", epochs=1).weights  # doctest: +SKIP
        PosixPath('runs/digits/model.safetensors')
    """
    results = list(train_all(recipe, output, quiet=quiet, **changes))
    return results[-1]


def train_all(
    recipe: str | os.PathLike[str] | Recipe,
    output: str | os.PathLike[str] | None = None,
    *,
    quiet: bool = False,
    **changes: Any,
) -> Iterator[Result]:
    """As `train`, one result for every run of an ablation."""
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, backbone=changes.get("backbone"))
    recipe = recipe.with_changes(changes)
    folder = expanded(output) if output is not None else Path("runs") / recipe.name
    runs = [(folder / part, settings) for part, settings in recipe.runs()] if recipe.sweep else recipe.stages(folder)
    runs = [(place, at_its_precision(settings, place)) for place, settings in runs]
    for place, settings in runs:  # a mistake in the last is said before the first
        check(settings, place)
    if recipe.then:
        place, settings = runs.pop(0)
        if not (folder / LAST).is_file():  # else the second stage has begun, and has its weights
            before = _run(recipe.name, settings, place, quiet)
            if not quiet and not rank_zero_only.rank:
                _say(f"first stage finished, validation accuracy {before.accuracy:.2%}: going on with the second")
    for place, settings in runs:
        result = _run(recipe.name, settings, place, quiet)
        yield _with_first_stage(result) if recipe.then else result


def _with_first_stage(result: Result) -> Result:
    """The epochs and hours of both stages, which the weights tell of."""
    told = load(result.weights).provenance
    return dataclasses.replace(result, epochs=told["epochs"], hours=told["hours"])


def _run(name: str, settings: Settings, folder: Path, quiet: bool) -> Result:
    check_writable(folder, 0)
    if rank_zero_only.rank:  # the first of several processes holds the folder for all
        return _alone(name, settings, folder, quiet)
    with alone_in(folder, "the run"):
        for place in (folder, folder / MAPS):
            remove_leftovers(place)
        for left in folder.glob(".*.ckpt.part"):  # by a process that was killed: no other is at work here
            left.unlink(missing_ok=True)
        return _alone(name, settings, folder, quiet)


def _alone(name: str, settings: Settings, folder: Path, quiet: bool) -> Result:
    data = images_of(settings)
    described = dataclasses.asdict(settings) | {"data_checksum": data.checksum}
    checkpoint = resumable(folder, described)
    if settings.backbone and checkpoint and (before := finished(settings, folder)):
        forget_features(folder)
        accuracy, recall = before["val_accuracy"], before["val_recall"]
        hours = before.get("stages", [before])[-1]["hours"]  # without those of the stages that it started from
        return Result(folder, folder / MODEL, accuracy, settings.epochs, hours, settings, recall)
    model, stages = _begun(settings, data, folder, checkpoint)
    # last, best and one being written, each with Adam's two moments; and the weights
    check_writable(folder, 10 * sum(p.numel() * p.element_size() for p in model.parameters()))
    if not rank_zero_only.rank:
        if checkpoint is None:  # the run was killed before it could be taken up
            (folder / BEST).unlink(missing_ok=True)
        _write(folder / SETTINGS, json.dumps(described, indent=2))
    started = time.monotonic()
    if isinstance(model, HybridNet):
        with torch_threads(settings.threads):
            data = featured(model, data, settings, folder, None if quiet else _say)
            if settings.start is None:
                calibrate(model, data.train, settings)
    module = Classification(model, data, settings, stages, say=_silence if quiet else _say)
    module.seconds = time.monotonic() - started
    with held() as heard, few_words(), torch_threads(settings.threads):
        trainer = make_trainer(settings, described, folder, quiet, heard)
        try:
            trainer.fit(module, ckpt_path=None if checkpoint is None else str(checkpoint), weights_only=True)
            if "val_accuracy" not in trainer.callback_metrics:  # finished before: measure what it reached
                trainer.validate(module, verbose=False)
        except SystemExit:  # Lightning's way of ending an interrupted run
            raise KeyboardInterrupt from None
    accuracy = float(trainer.callback_metrics["val_accuracy"])
    result = Result(folder, folder / MODEL, accuracy, settings.epochs, module.seconds / 3600, settings, module.recall)
    if trainer.is_global_zero:
        save(model.eval(), result.weights, provenance=_provenance(name, module, result))
        if settings.backbone:
            forget_features(folder)
    trainer.strategy.barrier()  # a second stage reads the weights in every process
    return result


def _begun(
    settings: Settings, data: ImageData, folder: Path, checkpoint: Path | None
) -> tuple[CoDANet, tuple[dict[str, Any], ...]]:
    """The network, with the weights that the run starts from, and the stages that made those."""
    model, start = untrained(settings, data), Start({}, ())
    if settings.start is not None and checkpoint is None:
        first = folder / FIRST_STAGE  # of a recipe with two, which moves with its run
        place = str(first) if settings.start == first.name and first.is_dir() else settings.start
        start = read_start(place)
        check_unseen(start, settings, data)
        begin(model, start, place)
    elif settings.start is not None and isinstance(model, HybridNet):  # features that are gone need its own backbone
        begin(model, unfinished(folder), str(folder))
    return model, start.stages
