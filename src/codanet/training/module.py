"""A CoDA-Net learning to classify, as Lightning trains it: its batches, loss, optimiser and schedule."""

import math
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader

from .._support.errors import DataError
from ..data import ImageData, batches
from ..data.augmentation import augmentation, erased, without_least
from ..data.tiling import mosaics
from ..models.classifier import baseline
from ..models.hybrid import HybridNet
from ..models.network import CoDANet
from ..models.peers import Peer
from .callbacks import Divergence
from .compilation import WORTHWHILE, Compiled, has_compiler
from .loss import Passes, class_weights, contributions, objective, weight_rows
from .muon import Muon
from .photos import photographs_at_once
from .schedule import learning_rate_factor, side_at, temperature_at
from .seam import seam
from .settings import Settings

TUNING_RATE = 3e-4  # of a backbone that is trained as well, by Adam


class Classification(LightningModule):
    """A CoDA-Net with its data, loss, optimiser and schedule."""

    def __init__(
        self,
        model: CoDANet,
        data: ImageData,
        settings: Settings,
        stages: tuple[dict[str, Any], ...] = (),
        say: Callable[[str], None] = print,
    ):
        super().__init__()
        self.model, self.data, self.settings, self.stages = model, data, settings, stages
        self.passes: Passes | None = None
        if self._compiles():
            maps = Compiled(model, model.features, "the network", say)
            self.passes = Passes(maps, Compiled(model, weight_rows(model), "the rows of W", say))
        self.augmentation: nn.Module = augmentation(settings.augmentation, model.image_size or data.image_size)
        larger = model.image_size is not None and data.image_size != model.image_size
        self.fitting: nn.Module = augmentation("centre-crop" if larger else "none", model.image_size or data.image_size)
        self.seconds = 0.0  # spent training, all resumed parts of the run together
        self.counts = torch.zeros(3, dtype=torch.float64)
        self.found = torch.zeros(2, len(data.classes), dtype=torch.float64)  # by class: recognised, there
        power = settings.class_weights
        weights = class_weights(data.train.labels, len(data.classes), power) if power else None
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", weights, persistent=False)

    @property
    def recall(self) -> dict[str, float]:
        """The share of every class's validation images that are recognised, as last looked at."""
        counted = zip(self.data.classes, *self.found.tolist(), strict=True)
        return {name: right / number for name, right, number in counted if number}

    def _compiles(self) -> bool:
        settings, (height, width) = self.settings, self.model.image_size or self.data.image_size
        if settings.compile == "off" or not isinstance(self.model, CoDANet):
            return False
        stride = self.model.stride if isinstance(self.model, HybridNet) else 1
        worthwhile = settings.epochs * len(self.data.train) * height * width // stride**2 >= WORTHWHILE
        return settings.compile == "on" or (worthwhile and has_compiler(self.model.device.type))

    def _loader(self, train: bool) -> DataLoader[Any]:
        share = self.trainer.world_size * self.settings.accumulate
        split = self.data.train if train else self.data.val
        whole = self.settings.batch_size
        if isinstance(self.model, HybridNet):
            whole = photographs_at_once(self.settings, len(split))
        return batches(
            split,
            max(1, whole // share) if train else 256,
            shuffle=train,
            seed=self.settings.seed,
            workers=0 if split.at_hand else self.settings.workers,
            rank=self.global_rank,
            world=self.trainer.world_size,
        )

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader(train=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader(train=False)

    def generator(self, batch: int) -> torch.Generator:
        """Of what is random in a batch: the same whether the run was interrupted before it or not."""
        seed = ((self.settings.seed % 2**16 * 2**12 + self.current_epoch) * 2**24 + batch) * 2**8 + self.global_rank
        return torch.Generator().manual_seed(seed % 2**63)

    @property
    def progress(self) -> float:
        """The share of the run's updates that are done."""
        return self.global_step / max(1, int(self.trainer.estimated_stepping_batches))

    def scaled(self, images: Tensor) -> Tensor:
        """What a split holds as the network takes it: pixels in [0, 1], or encoded features."""
        if isinstance(self.model, HybridNet) and images.dtype != torch.uint8:
            return self.model.encode_maps(seam(self.model, self.settings.finetune).above(images))
        return images.to(self.model.dtype) / 255

    def _pictures(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
        """A batch as the network is to see it, its labels, and T."""
        settings, progress = self.settings, self.progress
        temperature = temperature_at(settings, self.model.temperature, progress)
        pictures = self.augmentation(self.scaled(images), generator)
        height, width = pictures.shape[2:]
        side = side_at(settings, min(height, width), progress)
        if side < min(height, width):
            share = side / min(height, width)
            size = (round(height * share), round(width * share))
            pictures = interpolate(pictures, size, mode="bilinear", antialias=True)
            if getattr(self.model, "sums_positions", True):
                temperature *= size[0] * size[1] / (height * width)  # there are so many fewer positions to sum over
        together = torch.rand((), generator=generator) < settings.mosaic
        if together and len(pictures) % 4 == 0:
            pictures, labels = mosaics(pictures, labels, self.model.num_classes)
        if settings.erase:
            encoded = self.model.encode(pictures)
            pictures = erased(encoded, settings.erase, baseline(self.model, encoded), generator)
        if settings.remove_least and torch.rand((), generator=generator) < settings.remove_least:
            encoded = self.model.encode(pictures)
            rows = (self.passes or Passes.plain(self.model)).rows(encoded, labels[:, None])[1][:, 0]
            contributed = contributions(rows, encoded)
            pictures = without_least(encoded, contributed, baseline(self.model, encoded), generator)
        return pictures, labels, temperature

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor | None:
        images, labels = batch
        if not len(labels):  # of one picture, which is damaged: an update without a gradient, which changes nothing
            if self.trainer.world_size > 1:  # where the other processes would wait for one
                raise DataError("a process has no readable picture in its batch: replace the damaged one")
            return None
        generator = self.generator(index)
        with torch.set_grad_enabled(self.settings.finetune):  # below the layers there is something to learn, or not
            pictures, labels, temperature = self._pictures(images, labels, generator)
        settings = self.settings
        loss, logits = objective(
            self.model,
            pictures,
            labels,
            regularisation=settings.regularisation,
            wrong_evidence=settings.wrong_evidence,
            wrong_contributions=settings.wrong_contributions,
            removal_error=settings.removal_error,
            generator=generator,
            temperature=temperature,
            weights=self.class_weights,
            passes=self.passes,
        )
        if not torch.isfinite(loss.detach()):
            raise Divergence(
                f"the loss became {loss.item()} at step {self.global_step} (epoch {self.current_epoch + 1}): the last "
                "good checkpoint is kept; start a new run with a smaller learning_rate"
            )
        first = logits.detach().argmax(1)
        right = first == labels if labels.ndim == 1 else labels.gather(1, first[:, None])[:, 0]
        correct = right.float().mean()
        self.log("loss", loss.detach(), prog_bar=True, on_step=True, on_epoch=True, batch_size=len(labels))
        self.log("train_accuracy", correct, prog_bar=True, on_step=False, on_epoch=True, batch_size=len(labels))
        return loss

    def on_validation_epoch_start(self) -> None:
        self.counts = torch.zeros(3, dtype=torch.float64)
        self.found = torch.zeros_like(self.found)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        images, labels = batch
        if not len(labels):
            return
        with torch.autocast(self.device.type, enabled=False):  # as the weights will be used, whatever they learn in
            pictures = self.fitting(self.scaled(images), torch.Generator())
            loss, logits = objective(self.model, pictures, labels)
        right = logits.argmax(1) == labels
        self.counts += torch.tensor([loss.item() * len(labels), float(right.sum()), float(len(labels))]).double()
        for row, some in enumerate((labels[right], labels)):
            self.found[row] += some.bincount(minlength=self.found.shape[1]).cpu()

    def on_validation_epoch_end(self) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            for name in ("counts", "found"):
                counts = getattr(self, name).float().to(self.device)
                torch.distributed.all_reduce(counts)
                setattr(self, name, counts.double().cpu())
        total, right, number = self.counts.tolist()
        if not number:
            raise DataError("no picture to validate with can be read: check the folder")
        self.log("val_loss", total / number, rank_zero_only=True)
        self.log("val_accuracy", right / number, prog_bar=True, rank_zero_only=True)

    def configure_optimizers(self) -> Any:
        muon = self.settings.optimiser == "muon"
        learning = self.model if isinstance(self.model, Peer) else self.model.layers
        groups: list[dict[str, Any]] = [{"params": list(learning.parameters())}]
        if self.settings.finetune and isinstance(self.model, HybridNet):
            tuned = [p for p in self.model.backbone.parameters() if p.requires_grad]
            groups.append({"params": tuned, "lr": TUNING_RATE, **({"adam": True} if muon else {})})
        optimiser: torch.optim.Optimizer
        if muon:
            low = torch.bfloat16 if self.settings.precision == "bf16-mixed" else None
            optimiser = Muon(groups, self.settings.learning_rate, dtype=low)
        else:
            optimiser = torch.optim.Adam(groups, self.settings.learning_rate)
        steps = max(1, int(self.trainer.estimated_stepping_batches))
        per_epoch = max(1, math.ceil(steps / self.settings.epochs))

        def factor(step: int) -> float:
            # the last update of a one-cycle run is the smallest, not zero
            return learning_rate_factor(self.settings, step // per_epoch, (step + 0.5) / steps)

        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["seconds"], checkpoint["stages"] = self.seconds, list(self.stages)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seconds, self.stages = checkpoint["seconds"], tuple(checkpoint.get("stages", ()))
