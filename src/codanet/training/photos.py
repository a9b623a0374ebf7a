"""Training on photographs: the features of every view computed once, and Dynamic Alignment layers on them."""

import dataclasses
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from .._support.errors import DataError
from .._support.messages import duration, nearest
from .._support.progress import note, progress_bar
from ..data import FolderSplit, ImageData, Split, check_alone, load_data, picture_folder, to_image
from ..data.feature_split import FeatureSplit
from ..data.features import LIMIT_BYTES, FeatureCache, extract, views_within
from ..data.folder import TOLERATED_FRACTION
from ..data.image import decode, to_tensor
from ..data.photographs import load_photographs
from ..data.views import Views
from ..export.frozen import in_onnxruntime
from ..models.architectures import Layer
from ..models.backbones import BACKBONES, cut
from ..models.digest import content_digest
from ..models.hybrid import HybridNet, head_layers
from ..models.weights import load
from .checkpoint import read_checkpoint
from .loss import classification_loss
from .run_files import FEATURES, LAST, MODEL
from .seam import Seam, seam
from .settings import Settings, head_sizes

COARSEST = 16  # layers of stride 2 bring finer features here
CALIBRATED_ON = 500  # photographs, from which the spread of every channel is taken
UPDATES = 16  # in an epoch at least: smaller batches for a small folder, which would be left unsure after a few
TIMED = 8  # views after which the time for all is foretold
PARTS = ("train", "val")  # folders of features
Say = Callable[[str], None]


def forget_features(folder: Path) -> None:
    """Of a run that has ended, and nothing else that may lie beside them."""
    for part in PARTS:
        shutil.rmtree(folder / FEATURES / part, ignore_errors=True)
    with suppress(OSError):  # something of somebody's is in it, or it is gone
        (folder / FEATURES).rmdir()


def check_backbone(settings: Settings) -> None:
    """Its name, its weights and its layer, before anything is read."""
    if settings.backbone not in BACKBONES:
        raise ValueError(f"unknown backbone {settings.backbone!r}{nearest(settings.backbone, BACKBONES)}")
    known = BACKBONES[settings.backbone]
    if settings.finetune and known.parted is None:
        raise ValueError(f"finetune was asked for, but {settings.backbone} is only known frozen here: leave it out")
    layer = settings.layer or known.layer
    part = cut(known.build(True), layer)
    with torch.random.fork_rng(devices=[]):  # told by the network: a layer that gives no map
        HybridNet(part, head_layers(2), image_size=known.image_size, encoding=settings.encoding, layer=layer)
    if settings.finetune and known.parted is not None:
        known.parted(part)


def load_pictures(settings: Settings) -> ImageData:
    """A folder's photographs, read from disk as they are needed; or a data set."""
    assert settings.backbone is not None
    side = BACKBONES[settings.backbone].image_size
    if folder := picture_folder(settings.data):
        check_alone(folder, settings.root, settings.source)
        return load_photographs(folder, side=side, size=settings.image_size, seed=settings.seed)
    size = settings.image_size or side
    data = load_data(settings.data, root=settings.root, size=size, seed=settings.seed, source=settings.source)
    if data.channels != 3:
        raise ValueError(f"{settings.data} is grey, but {settings.backbone} takes RGB: train without a backbone")
    return data


def build(settings: Settings, data: ImageData) -> HybridNet:
    """Untrained layers on the backbone, with a layer of stride 2 more for every halving up to stride 16."""
    assert settings.backbone is not None
    known = BACKBONES[settings.backbone]
    layer = settings.layer or known.layer
    features = cut(known.build(True), layer).eval()  # its batch norms learn nothing of the blank below
    sizes = head_sizes(settings.head)
    with torch.no_grad():
        cells = features(torch.zeros(1, 3, *data.image_size)).shape[2]
    halvings = max(0, round(COARSEST * cells / data.image_size[0]).bit_length() - 1)
    return HybridNet(
        features,
        (
            *(Layer(sizes[0][0], sizes[0][1], 3, 2) for _ in range(halvings)),
            *(Layer(units, rank, kernel) for units, rank, kernel in sizes),
            Layer(len(data.classes), sizes[-1][1], 1),
        ),
        image_size=data.image_size,
        temperature=settings.temperature or 64.0,
        encoding=settings.encoding,
        class_names=data.classes,
        backbone=settings.backbone,
        layer=layer,
    )


def photographs_at_once(settings: Settings, number: int) -> int:
    """In a batch: as many as the settings say, but in a small folder a sixteenth of its training photographs."""
    return max(1, min(settings.batch_size, number // UPDATES))


def finished(settings: Settings, folder: Path) -> dict[str, Any] | None:
    """The provenance of a run that needs nothing more; its features are gone."""
    try:
        if not (folder / MODEL).is_file() or read_checkpoint(folder / LAST, "meta")["epoch"] + 1 < settings.epochs:
            return None
        provenance = load(folder / MODEL).provenance
        return provenance if {"val_accuracy", "hours", "val_recall"} <= provenance.keys() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def featured(model: HybridNet, data: ImageData, settings: Settings, folder: Path, say: Say | None) -> ImageData:
    """The same data as features: several views of the training photographs, one of the others.

    folder: of the run, where the features stay until it is finished; an interrupted extraction goes on. Where the last
    blocks of the backbone are trained, the features are those before them.
    """
    parts = seam(model, settings.finetune)
    faster = in_onnxruntime(parts.frozen, data.image_size)
    shape = parts.below(torch.zeros(1, 3, *data.image_size)).shape[1:]
    views = views_within(LIMIT_BYTES, len(data.train), shape, settings.views, len(data.val))
    if views < settings.views and say:
        say(f"{views} of {settings.views} views are kept: more would take over {LIMIT_BYTES >> 30} GiB")
    made_of = {
        "backbone": settings.backbone,
        "layer": parts.layer,
        "size": data.image_size,
        "seed": settings.seed,
        "weights": content_digest("", parts.frozen.state_dict()),  # another run may have tuned them
        "engine": "torch" if faster is None else "onnxruntime",  # they agree to a few roundings
    }
    caches = {
        name: FeatureCache(
            folder / FEATURES / name, {**made_of, "pictures": split.digest()}, count, len(split), tuple(shape)
        )
        for name, split, count in zip(PARTS, (data.train, data.val), (views, 1), strict=True)
    }
    total = sum(len(cache.missing()) for cache in caches.values())
    forecast = Forecast(total, _training_seconds(model, parts, shape, settings, len(data.train)), say)
    with progress_bar("features", total, shown=say is not None, unit="views") as advance:

        def advanced(count: int) -> None:
            advance(count)
            forecast(count)

        splits = {
            name: _extracted(faster or parts.below, split, caches[name], data.image_size, settings, advanced)
            for name, split in (("val", data.val), ("train", data.train))
        }
    return dataclasses.replace(data, train=splits["train"], val=splits["val"])


@torch.no_grad()
def calibrate(model: HybridNet, split: Split, settings: Settings) -> None:
    """Take the spread of every channel from some of the training photographs."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(settings.seed))[:CALIBRATED_ON]
    above = seam(model, settings.finetune).above
    model.calibrate(torch.cat([above(some) for some in split.__getitems__(order.tolist())[0].split(8)]))


def _extracted(
    frozen: Callable[[Tensor], Tensor],
    split: Split,
    cache: FeatureCache,
    size: tuple[int, int],
    settings: Settings,
    advance: Callable[[int], None],
) -> FeatureSplit:
    drawn = Views(size, seed=settings.seed)
    recent = threading.local()  # the picture that a thread has decoded

    def maps(view: int, picture: int) -> Tensor:
        if getattr(recent, "number", None) != picture:
            recent.number, recent.image = None, _photograph(split, picture, drawn, cache.shape[0])
            recent.number = picture
        image = to_tensor(drawn.view(recent.image, picture, view))
        return frozen(image[None].float().div_(255))[0]

    unread = extract(cache, maps, advance, settings.threads)
    if len(unread) > max(1, TOLERATED_FRACTION * len(split)) or len(unread) == len(split):
        raise DataError(f"{len(unread)} of {len(split)} photographs cannot be read: {next(iter(unread.values()))}")
    for reason in unread.values():
        note(f"a photograph is left out: {reason}")
    pictures = torch.tensor([number for number in range(len(split)) if number not in unread])
    return FeatureSplit(cache, pictures, split.subset(pictures) if unread else split)


def _photograph(split: Split, number: int, drawn: Views, views: int) -> Image.Image:
    """Decoded as finely as its views need; for the first alone, which is no window, as a split reads it."""
    if not isinstance(split, FolderSplit):
        return to_image(split[number][0])
    room = 1.0 if views == 1 else drawn.least**-0.5  # the smallest window is resolved as the whole photograph would be
    height, width = drawn.size
    return decode(split.paths[number], 3, hint=(round(height * room), round(width * room)))


def _training_seconds(model: HybridNet, parts: Seam, shape: torch.Size, settings: Settings, number: int) -> float:
    """What all epochs will take, by the second of two updates that are not made."""
    at_once = photographs_at_once(settings, number)
    maps = torch.linspace(0, 1, shape.numel()).view(1, *shape).expand(at_once, *shape)
    labels = torch.arange(len(maps)) % model.num_classes
    seconds = 0.0
    for _ in range(2):
        started = time.monotonic()
        classification_loss(model(model.encode_maps(parts.above(maps))), labels).backward()
        seconds = time.monotonic() - started
        model.zero_grad(set_to_none=True)
    return seconds * settings.epochs * -(-number // at_once)


class Forecast:
    """Says how long it will take, once that is known; and where there is no bar, how far it is."""

    def __init__(self, total: int, training: float, say: Say | None):
        self.total, self.training, self.say = total, training, say
        self.done, self.tenth, self.started = 0, 0, time.monotonic()

    def __call__(self, count: int) -> None:
        before, self.done = self.done, self.done + count
        if self.say is None:
            return
        spent = time.monotonic() - self.started
        left = spent / self.done * (self.total - self.done)
        if before < TIMED <= self.done:
            self.say(
                f"features of {self.total} views: about {duration(spent + left)}; then training: about "
                f"{duration(self.training)}"
            )
        elif before >= TIMED and self.done * 10 // self.total > self.tenth and not sys.stderr.isatty():
            self.say(f"features {self.done}/{self.total}  {duration(spent)} spent, {duration(left)} left")
        self.tenth = self.done * 10 // self.total
