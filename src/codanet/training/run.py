"""Training on Lightning: `train("digits")`, `train("my/pictures")`; stopped, it goes on where it stopped."""

import contextlib
import dataclasses
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import lightning
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from .._support.files import expanded, remove_leftovers, replacing
from .._support.interrupts import Interrupts, held
from .._support.limits import read_json
from .._support.locks import alone_in
from .._support.threads import torch_threads
from .._support.version import __version__
from ..data import ImageData, held_out, load_data
from ..data.augmentation import augmentation
from ..models.hybrid import HybridNet
from ..models.network import CoDANet
from ..models.peers import PEERS, create_peer
from ..models.weights import save
from ..models.zoo import create_model
from .bfloat16 import check_bfloat16
from .callbacks import Checkpoints, ContributionMaps, InItsPlace, Lines, Stops, training_bar
from .checkpoint import SETTINGS_KEY, Damaged, read_checkpoint
from .module import Classification
from .photos import build, calibrate, check_backbone, featured, finished, load_pictures
from .run_files import BEST, FEATURES, LAST, LOGS, MAPS, MODEL, SETTINGS
from .settings import FREE, OF_CODA_NETS, Recipe, Settings, changed, load_recipe
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


def _writable(folder: Path, needed: int) -> None:
    """Say now, not after hours, that results cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:  # without a name, so that nothing of it can stay
            probe.write(b"x")
            probe.flush()
    except OSError as error:
        raise ValueError(f"{folder} cannot be written to ({error.strerror}): choose another --output") from None
    own = sum((folder / name).stat().st_size for name in (LAST, BEST, MODEL) if (folder / name).is_file())
    needed = max(0, needed - own)  # they are replaced
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(
            f"{folder} has {free / 2**20:.0f} MiB free and the run needs {needed / 2**20:.0f} MiB for its checkpoints: "
            "make room or choose another --output"
        )


def _resumable(folder: Path, after: dict[str, Any]) -> Path | None:
    """The checkpoint to go on from; an error if the folder holds a run with other settings or on other images."""
    last, described = folder / LAST, folder / SETTINGS
    if last.is_file():
        try:
            beside = dict(read_json(described))
            known = read_checkpoint(last, "meta").get(SETTINGS_KEY, beside)  # its own, or of the time before it had any
            before = dataclasses.asdict(Settings()) | known  # what the run did not know of yet was as it is by default
        except (OSError, ValueError, TypeError) as error:
            reason = error if isinstance(error, Damaged) else f"{type(error).__name__} in {LAST} or {SETTINGS}"
            raise ValueError(
                f"{folder} holds a run that cannot be read ({reason}): choose another --output, or delete that folder"
            ) from None
        other = [key for key in after if key not in FREE and before.get(key) != after[key]]
        if other:
            differences = ", ".join(f"{key} {before.get(key)!r} instead of {after[key]!r}" for key in other)
            raise ValueError(f"{folder} holds a run with {differences}: choose another --output, or delete that folder")
    return last if last.is_file() else None


def _write(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _silence(line: str) -> None:
    pass


def _check(settings: Settings, folder: Path) -> None:
    """What can be said before any data are fetched."""
    if settings.model in PEERS:
        _check_peer(settings)
    else:
        with torch.device("meta"):
            create_model(settings.model, rescale=settings.rescale, temperature=settings.temperature)
    augmentation(settings.augmentation, 32)
    if settings.backbone:
        check_backbone(settings)
    if settings.precision == "bf16-mixed" and settings.accelerator in ("auto", "cpu"):
        check_bfloat16()
    pictures = expanded(settings.data).resolve()
    if pictures.is_dir() and pictures in (folder.resolve(), *folder.resolve().parents):
        raise ValueError(
            f"the output {folder} lies inside the pictures {settings.data} and would be taken for a class of them: "
            "choose an --output outside"
        )


def _check_peer(settings: Settings) -> None:
    """What only a CoDA-Net can be told."""
    plain = Settings()
    if wrong := [name for name in OF_CODA_NETS if getattr(settings, name) != getattr(plain, name)]:
        raise ValueError(f"{settings.model} is a peer of CoDA-Nets, which has no {wrong[0]}: leave it out")
    if settings.compile == "on":
        raise ValueError(f"compile is 'on', but only CoDA-Nets are compiled, not {settings.model}: leave it out")
    if settings.optimiser == "muon":
        raise ValueError(f"muon is for the filters of CoDA-Nets, and {settings.model} is a peer: choose adam")


def _build(settings: Settings, data: ImageData) -> CoDANet:
    side = 240 if settings.augmentation == "imagenet" else None  # a window of what is read at 256
    torch.manual_seed(settings.seed)
    if settings.backbone:
        return build(settings, data)
    if settings.model in PEERS:
        peer = create_peer(
            settings.model,
            num_classes=len(data.classes),
            image_channels=data.channels,
            image_size=(side, side) if side else data.image_size,
            class_names=data.classes,
        )
        return cast(CoDANet, peer)  # it has what training asks for
    return create_model(
        settings.model,
        num_classes=len(data.classes),
        image_channels=data.channels,
        image_size=(side, side) if side else data.image_size,
        temperature=settings.temperature,
        rescale=settings.rescale,
        recompute=settings.recompute,
        class_names=data.classes,
    )


@contextlib.contextmanager
def _few_words() -> Iterator[None]:
    """Lightning's advice is kept off the terminal; its warnings are not.

    Nor does a thread that cannot write its log show a traceback: the run itself ends with the error.
    """
    logger = logging.getLogger("lightning.pytorch")
    before, hook = logger.level, threading.excepthook
    logger.setLevel(logging.WARNING)
    threading.excepthook = lambda args: None if issubclass(args.exc_type, OSError) else hook(args)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore",
                message=".*(num_workers|does not have many workers|log(ging)? interval|in eval mode at the start"
                "|training_step` returned `None`).*",
            )
            warnings.filterwarnings("ignore", message=".*LeafSpec.*|.*isinstance.treespec.*|.*_prims_common.check.*")
            yield
    finally:
        logger.setLevel(before)
        threading.excepthook = hook


def _trainer(settings: Settings, described: Mapping[str, Any], folder: Path, quiet: bool, heard: Interrupts) -> Trainer:
    several = settings.devices * settings.nodes > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1
    bar = None if quiet else training_bar()
    start = str(len(list((folder / LOGS).glob("*"))) + 1)  # a resumed run leaves the logs before it alone
    callbacks: list[Any] = [Stops(heard), Checkpoints(folder, described)]
    callbacks += [ContributionMaps(folder, settings.maps_every)]
    callbacks += [] if quiet else [bar or Lines()]
    return Trainer(
        accelerator=settings.accelerator,
        devices=settings.devices,
        num_nodes=settings.nodes,
        strategy="ddp" if several else "auto",
        precision=settings.precision,
        max_epochs=settings.epochs,
        accumulate_grad_batches=settings.accumulate,
        use_distributed_sampler=False,  # `batches` gives every process its share
        logger=[kind(folder, name=LOGS, version=start) for kind in (CSVLogger, TensorBoardLogger)],
        callbacks=callbacks,
        plugins=[InItsPlace()],
        enable_checkpointing=False,  # `Checkpoints` writes them whole or not at all
        enable_progress_bar=bar is not None,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=20,
        default_root_dir=folder,
    )


def _provenance(recipe: str, module: Classification, result: Result) -> dict[str, Any]:
    settings = dataclasses.asdict(module.settings)
    stages = [*module.stages, {"settings": settings, "epochs": result.epochs, "hours": round(result.hours, 3)}]
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
    if recipe.sweep and recipe.sweep[0] in changes:
        recipe = dataclasses.replace(recipe, sweep=None)
    recipe = dataclasses.replace(recipe, settings=changed(recipe.settings, changes))
    folder = expanded(output) if output is not None else Path("runs") / recipe.name
    runs = [(folder / part if part else folder, settings) for part, settings in recipe.runs()]
    for place, settings in runs:  # a mistake in the last is said before the first
        _check(settings, place)
    for place, settings in runs:
        yield _run(recipe.name, settings, place, quiet)


def _run(name: str, settings: Settings, folder: Path, quiet: bool) -> Result:
    _writable(folder, 0)
    if rank_zero_only.rank:  # the first of several processes holds the folder for all
        return _alone(name, settings, folder, quiet)
    with alone_in(folder, "the run"):
        for place in (folder, folder / MAPS):
            remove_leftovers(place)
        for left in folder.glob(".*.ckpt.part"):  # by a process that was killed: no other is at work here
            left.unlink(missing_ok=True)
        return _alone(name, settings, folder, quiet)


def _data(settings: Settings) -> ImageData:
    if settings.backbone:
        return load_pictures(settings)
    return load_data(
        settings.data, root=settings.root, size=settings.image_size, seed=settings.seed, source=settings.source
    )


def _alone(name: str, settings: Settings, folder: Path, quiet: bool) -> Result:
    data = _data(settings)
    if settings.holdout:
        data = held_out(data, settings.holdout, settings.seed)
    processes = settings.devices * settings.nodes
    if len(data.train) < processes:
        raise ValueError(
            f"{data.name} has {len(data.train)} training images for {processes} processes, and each needs one: take "
            "fewer devices"
        )
    described = dataclasses.asdict(settings) | {"data_checksum": data.checksum}
    checkpoint = _resumable(folder, described)
    if settings.backbone and checkpoint and (before := finished(settings, folder)):
        shutil.rmtree(folder / FEATURES, ignore_errors=True)
        accuracy, recall = before["val_accuracy"], before["val_recall"]
        hours = before.get("stages", [before])[-1]["hours"]  # without those of the stages that it started from
        return Result(folder, folder / MODEL, accuracy, settings.epochs, hours, settings, recall)
    random_state = torch.get_rng_state()
    try:
        model = _build(settings, data)
    finally:
        torch.set_rng_state(random_state)
    start = Start({}, ())
    if settings.start is not None and checkpoint is None:
        start = read_start(settings.start)
        check_unseen(start, settings, data)
        begin(model, start, settings.start)
    elif settings.start is not None and isinstance(model, HybridNet):  # features that are gone need its own backbone
        begin(model, unfinished(folder), str(folder))
    # last, best and one being written, each with Adam's two moments; and the weights
    _writable(folder, 10 * sum(p.numel() * p.element_size() for p in model.parameters()))
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
    module = Classification(model, data, settings, start.stages, say=_silence if quiet else _say)
    module.seconds = time.monotonic() - started
    with held() as heard, _few_words(), torch_threads(settings.threads):
        try:
            trainer = _trainer(settings, described, folder, quiet, heard)
        except MisconfigurationException as error:
            reason = str(error).split(". ")[0]
            raise ValueError(f"{settings.devices} x {settings.accelerator} cannot be used here ({reason})") from None
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
        shutil.rmtree(folder / FEATURES, ignore_errors=True)
    return result
