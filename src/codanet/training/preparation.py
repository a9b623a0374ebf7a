"""Before a run trains: wrong settings, full disks and other runs are told of; data and network are made."""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, cast

import torch

from .._support.limits import read_json
from ..data import ImageData, held_out, load_data, picture_folder
from ..data.augmentation import augmentation
from ..data.photographs import warn_of_leaks
from ..models.network import CoDANet
from ..models.peers import PEERS, create_peer
from ..models.zoo import create_model
from .bfloat16 import check_bfloat16, has_bfloat16
from .checkpoint import SETTINGS_KEY, Damaged, read_checkpoint
from .photos import build, check_backbone, load_pictures
from .run_files import BEST, LAST, MODEL, SETTINGS
from .settings import FREE, OF_CODA_NETS, Settings

# what torchrun, SLURM, LSF, or whoever starts Lightning by hand, sets
LAUNCHED = ("MASTER_ADDR", "NODE_RANK", "SLURM_NTASKS", "LSB_JOBID")


def at_its_precision(settings: Settings, folder: Path) -> Settings:
    """The settings with what a precision of `auto` stands for: that of the run in the folder, or this machine's.

    So a run that was begun elsewhere goes on as it began.
    """
    if settings.precision != "auto":
        return settings
    precision = _begun_at(folder)
    if precision is None:
        precision = "bf16-mixed" if _on_processor(settings) and has_bfloat16() else "32-true"
    return dataclasses.replace(settings, precision=precision)


def _begun_at(folder: Path) -> str | None:
    """The precision of the run in the folder; None if there is none, or its settings cannot be read."""
    if (folder / LAST).is_file():
        with contextlib.suppress(OSError, ValueError, TypeError):  # told of by `resumable`
            precision = dict(read_json(folder / SETTINGS)).get("precision")
            return precision if isinstance(precision, str) else None
    return None


def _on_processor(settings: Settings) -> bool:
    """Whether Lightning will train on the CPU."""
    elsewhere = torch.cuda.is_available() or torch.backends.mps.is_available()
    return settings.accelerator == "cpu" or (settings.accelerator == "auto" and not elsewhere)


def check(settings: Settings, folder: Path) -> None:
    """What can be said before any data are fetched."""
    if settings.model in PEERS:
        _check_peer(settings)
    else:
        with torch.device("meta"):
            create_model(settings.model, rescale=settings.rescale, temperature=settings.temperature)
    augmentation(settings.augmentation, 32)
    if settings.backbone:
        check_backbone(settings)
    if settings.nodes > 1 and not any(name in os.environ for name in LAUNCHED):
        raise ValueError(
            f"{settings.nodes} nodes were asked for, but nothing has started this process as one of several: use "
            "torchrun or SLURM on every node"
        )
    if settings.precision in ("bf16-mixed", "16-mixed") and _on_processor(settings):  # which is one and the same there
        check_bfloat16()
    pictures = picture_folder(settings.data)
    if pictures and pictures.resolve() in (folder.resolve(), *folder.resolve().parents):
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


def check_writable(folder: Path, needed: int) -> None:
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


def resumable(folder: Path, after: dict[str, Any]) -> Path | None:
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
        return last
    for name in (MODEL, BEST):
        if (folder / name).is_file() and not (name == BEST and _of_a_first_epoch(folder / name)):
            raise ValueError(
                f"{folder} holds {name} without {LAST}, from which a run goes on: choose another --output, or move it "
                "away"
            )
    return None


def _of_a_first_epoch(best: Path) -> bool:
    """What a run leaves that is killed before it could be taken up: nothing is lost if it begins anew."""
    try:
        return read_checkpoint(best, "meta").get("epoch") == 0
    except Damaged:
        return False


def images_of(settings: Settings) -> ImageData:
    """What the run learns from and is measured on."""
    if settings.backbone:
        data = load_pictures(settings)
    else:
        data = load_data(
            settings.data, root=settings.root, size=settings.image_size, seed=settings.seed, source=settings.source
        )
    if settings.holdout:
        data = held_out(data, settings.holdout, settings.seed)
        if folder := picture_folder(settings.data):
            warn_of_leaks(data, folder)
    processes = settings.devices * settings.nodes
    if len(data.train) < processes:
        raise ValueError(
            f"{data.name} has {len(data.train)} training images for {processes} processes, and each needs one: take "
            "fewer devices"
        )
    return data


def untrained(settings: Settings, data: ImageData) -> CoDANet:
    """The network at its start, the same for the same seed; the caller's random numbers stay as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return _network(settings, data)


def _network(settings: Settings, data: ImageData) -> CoDANet:
    side = 240 if settings.augmentation == "imagenet" else None  # a window of what is read at 256
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
