"""Lightning's Trainer as a run uses it: few words, checkpoints whole or not at all, one Ctrl-C enough."""

import contextlib
import logging
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from .._support.interrupts import Interrupts
from .callbacks import Checkpoints, ContributionMaps, InItsPlace, Lines, Stops, training_bar
from .run_files import LOGS
from .settings import Settings


@contextlib.contextmanager
def few_words() -> Iterator[None]:
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


def make_trainer(
    settings: Settings, described: Mapping[str, Any], folder: Path, quiet: bool, heard: Interrupts
) -> Trainer:
    several = settings.devices * settings.nodes > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1
    bar = None if quiet else training_bar()
    before = [int(log.name) for log in (folder / LOGS).glob("*") if log.name.isdecimal()]
    start = str(max(before, default=0) + 1)  # a resumed run leaves the logs before it alone
    callbacks: list[Any] = [Stops(heard), Checkpoints(folder, described)]
    callbacks += [ContributionMaps(folder, settings.maps_every)]
    callbacks += [] if quiet else [bar or Lines()]
    try:
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
    except MisconfigurationException as error:
        reason = str(error).split(". ")[0]
        raise ValueError(
            f"{settings.devices} x {settings.accelerator} cannot be used here ({reason}): choose another accelerator, "
            "or fewer devices"
        ) from None
