"""What happens around a training run: checkpoints, pictures of contribution maps, and what the terminal shows."""

import io
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO
from PIL import Image

from .._support.interrupts import Interrupts
from .._support.messages import duration
from ..plot import contribution_maps, save
from .checkpoint import SETTINGS_KEY
from .run_files import BEST, LAST, MAPS


class Divergence(ValueError):
    """The loss is no longer a number."""


class InItsPlace(TorchCheckpointIO):
    """Writes where it is told to; `save_whole` sees to the rest.

    Lightning writes to the system's temporary folder first and moves the file from there: it needs room on two disks,
    and a process that is killed meanwhile leaves a checkpoint where nobody looks for it.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        buffer = io.BytesIO()  # a full disk is an OSError here, and none in torch's own writing of files
        torch.save(checkpoint, buffer)
        Path(path).write_bytes(buffer.getbuffer())


def save_whole(trainer: Trainer, path: Path) -> None:
    """A checkpoint that is there complete or not at all, whenever the process is killed or the disk is full."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        trainer.save_checkpoint(temporary, weights_only=False)
        if trainer.is_global_zero:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(
            error.errno, f"a checkpoint could not be written ({error.strerror}): the one before it is kept", str(path)
        ) from None


class Checkpoints(Callback):
    """`last.ckpt` after every epoch, `best.ckpt` where the validation accuracy is the highest so far.

    The best is written first: a run that is killed in between makes its last epoch again, and the same best with it.
    """

    def __init__(self, folder: Path, described: Mapping[str, Any]):
        self.folder, self.described = folder, dict(described)
        self.best, self.started = -1.0, 0.0

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[SETTINGS_KEY] = self.described

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """After the epoch's validation."""
        module: Any = pl_module
        module.seconds += time.monotonic() - self.started
        if not all(p.isfinite().all() for p in pl_module.parameters()):
            raise Divergence(
                f"the weights are not finite after epoch {trainer.current_epoch + 1}: the checkpoint before it is "
                "kept; start a new run with a smaller learning_rate"
            )
        accuracy = float(trainer.callback_metrics["val_accuracy"])
        improved = accuracy > self.best
        self.best = max(self.best, accuracy)
        if improved:
            save_whole(trainer, self.folder / BEST)
        save_whole(trainer, self.folder / LAST)


class Stops(Callback):
    """A Ctrl-C, between two batches: the threads that write the logs are not in the middle of anything there."""

    def __init__(self, heard: Interrupts) -> None:
        self.heard = heard

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.heard.check()

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.heard.check()


class ContributionMaps(Callback):
    """A few validation images with the contribution maps of their predicted classes, as training goes on."""

    def __init__(self, folder: Path, every: int, number: int = 8):
        self.folder, self.every, self.number = folder, every, number

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        if not trainer.is_global_zero or (epoch % self.every and epoch != trainer.max_epochs):
            return
        module: Any = pl_module
        if not hasattr(module.model, "explain"):  # a peer without maps of its own
            return
        split = getattr(module.data.val, "photographs", module.data.val)
        step = max(1, len(split) // self.number)
        images, _ = split.__getitems__(list(range(0, len(split), step))[: self.number])
        if not len(images):  # the only one is damaged
            return
        with torch.no_grad():
            pictures = module.fitting(module.scaled(images), torch.Generator()).to(module.device)
        figure = contribution_maps(module.model.explain(pictures))
        folder = self.folder / MAPS
        folder.mkdir(exist_ok=True)
        path = save(figure, folder / f"epoch-{epoch:03d}.png")
        dots = np.asarray(Image.open(path).convert("RGB"))  # [H, W, 3]: TensorBoard would draw the figure again
        for logger in trainer.loggers:
            if hasattr(logger.experiment, "add_image"):
                logger.experiment.add_image("contributions", dots, trainer.global_step, dataformats="HWC")


class Lines(Callback):
    """One line per epoch, for logs and pipes."""

    def __init__(self) -> None:
        self.started, self.first = 0.0, 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started, self.first = time.monotonic(), trainer.current_epoch

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        epoch, epochs = trainer.current_epoch + 1, trainer.max_epochs or 0
        values = {key: float(value) for key, value in trainer.callback_metrics.items()}
        spent = time.monotonic() - self.started
        left = spent / (epoch - self.first) * (epochs - epoch)
        print(
            f"epoch {epoch}/{epochs}  loss {values['loss_epoch']:.4f}  train {values['train_accuracy']:.1%}  "
            f"val {values['val_accuracy']:.2%}  {duration(spent)} spent, {duration(left)} left",
            file=sys.stderr,
            flush=True,
        )


def training_bar() -> Any:
    """A bar with loss, accuracy and the time left of the whole run on a terminal, none elsewhere."""
    if not sys.stderr.isatty():
        return None
    from lightning.pytorch.callbacks import RichProgressBar

    class Bar(RichProgressBar):
        started, first = 0.0, 0

        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            super().on_train_start(trainer, pl_module)
            self.started, self.first = time.monotonic(), trainer.global_step

        def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
            shown = trainer.progress_bar_metrics
            names = {"loss_step": "loss", "train_accuracy": "train", "val_accuracy": "val"}
            metrics: dict[str, Any] = {
                label: round(float(shown[name]), 4) for name, label in names.items() if name in shown
            }
            done, steps = trainer.global_step - self.first, trainer.estimated_stepping_batches - self.first
            if done:
                metrics["left"] = duration((time.monotonic() - self.started) / done * (steps - done))
            return metrics

    return Bar()
