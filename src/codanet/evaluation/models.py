"""The models of an evaluation: where they come from, and whether they fit the data."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from .._support.files import expanded, file_digest
from .._support.limits import holdout_in, mapping, seed_in
from .._support.messages import nearest
from ..data import ImageData, check_alone, load_data, picture_folder
from ..data.photographs import load_photographs
from ..data.pictures import Pictures
from ..data.split import held_out
from ..export import load
from ..models.classifier import logits_of
from ..models.digest import model_digest
from ..models.hybrid import HybridNet
from ..models.labels import short_name
from ..models.network import CoDANet
from ..models.peers import Peer
from ..models.resnet import RESNETS
from ..models.weight_files import weights_path

__all__ = ["HELD_OUT", "fitting", "held_out_by", "load_models", "model_digest"]

HELD_OUT = "held-out"  # the split of what trainings left out


def load_models(names: Sequence[str]) -> tuple[dict[str, nn.Module], dict[str, dict[str, Any]]]:
    """Models by a short name each, and what is known of their files.

    A name is what `codanet.export.load` takes, or resnet56:PATH for the baseline.
    """
    if not names:
        raise ValueError("no model was given: give the path of a .safetensors or .onnx file, or resnet56:PATH")
    models, files = {}, {}
    for name in names:
        label, file = short_name(name, names), weights_of(name)
        kind, colon, _ = name.partition(":")
        if colon and kind in RESNETS:
            models[label] = RESNETS[kind](weights=file or "official").eval()
        else:
            models[label] = load(name)
        files[label] = {"file": name, **({"sha256": file_digest(file, "sha256")} if file and file.is_file() else {})}
    return models, files


def weights_of(name: str) -> Path | None:
    """The file that `load_models` reads by this name; None for official weights, which it may have to fetch."""
    kind, colon, path = name.partition(":")
    if colon and kind in RESNETS:
        return None if path == "official" else expanded(path)  # as a shell does not after a colon
    if colon and not expanded(name).exists():
        raise ValueError(f"unknown kind of model {kind!r} in {name!r}{nearest(kind, RESNETS)}, or a path")
    return weights_path(name)


def reading_size(models: dict[str, nn.Module]) -> tuple[int, int] | None:
    """The (H, W) at which the models' training read its images, None for the data set's own."""
    own = (model for model in models.values() if isinstance(model, CoDANet | Peer))
    sizes = {_trained_at(model) for model in own if model.image_size is not None}  # others take any
    if len(sizes) > 1:
        raise ValueError(f"the models were trained at sizes {sorted(map(str, sizes))}: evaluate them one at a time")
    return sizes.pop() if sizes else None


def _trained_at(model: CoDANet | Peer) -> tuple[int, int] | None:
    """What the header of a file says, which may be anything; a model for windows of larger images has no such size."""
    settings = settings_of(model)
    side = settings.get("image_size")
    if isinstance(side, int) and side > 0:
        return side, side
    return None if settings.get("augmentation") == "imagenet" else model.image_size


def provenance_of(model: nn.Module) -> dict[str, Any]:
    """What a model says of its training: nothing if it is of neither of our kinds."""
    return mapping(model.provenance) if isinstance(model, CoDANet | Peer) else {}


def settings_of(model: nn.Module) -> dict[str, Any]:
    return mapping(provenance_of(model).get("settings"))


def read_data(
    models: dict[str, nn.Module],
    data: str | os.PathLike[str],
    root: str | os.PathLike[str] | None,
    image_size: int | None,
    source: str,
) -> ImageData:
    """The images at the size that the models take; of a folder, the part that they were not trained on."""
    size = reading_size(models) if image_size is None else (image_size, image_size)
    folder, seeds = picture_folder(data), split_seeds(models)
    if folder and any(isinstance(model, HybridNet) for model in models.values()):
        check_alone(folder, root, source)
        images = load_photographs(folder, size=size, seed=seeds[0])
    else:
        side = size[0] if size and size[0] == size[1] else None
        images = load_data(data, root=root, size=side, source=source, seed=seeds[0])
    if images.drawn and len(seeds) > 1:
        raise ValueError(
            f"the models were trained with seeds {', '.join(map(str, seeds))}, so that one may have seen what another "
            "has not: evaluate them one at a time"
        )
    return images


def split_seeds(models: dict[str, nn.Module]) -> list[int]:
    """Of the splits between training and held-out pictures of a folder, as the models' trainings drew them."""
    own = (model for model in models.values() if isinstance(model, CoDANet | Peer))
    return sorted({seed_in(settings_of(model)) for model in own}) or [0]


def held_out_by(models: Mapping[str, nn.Module], data: ImageData) -> ImageData:
    """The data with what the models' trainings held out for choices in place of the test images."""
    found = {}
    for label, model in models.items():
        told, settings = provenance_of(model), settings_of(model)
        number, own = holdout_in(settings), trained_on(told, data)
        if number and not own and told.get("data") == data.name:
            raise ValueError(
                f"the images of {data.name} are not those that {label} was trained on, so that it may have learnt from "
                "what would be held out now: measure it on test"
            )
        if not (number and own):
            raise ValueError(
                f"{label} does not say that its training held images of {data.name} out (holdout): measure it on test "
                "or train"
            )
        found[label] = (number, seed_in(settings))
    if len(set(found.values())) > 1:
        said = ", ".join(f"{label} {number} by seed {seed}" for label, (number, seed) in found.items())
        raise ValueError(f"the models held out other images each ({said}): evaluate them one at a time")
    return held_out(data, *next(iter(found.values())))


def trained_on(provenance: Mapping[str, Any], data: ImageData) -> bool:
    """Whether a training had these images: by their checksum, wherever they lie, or by name if none was kept."""
    checksum = provenance.get("data_checksum")
    return provenance.get("data") == data.name if checksum is None else bool(checksum == data.checksum)


def fitting(label: str, model: nn.Module, data: ImageData, train: bool) -> Pictures:
    """What the model sees of the data, cut to its size; an error if the two do not belong together."""
    split, size = (data.train if train else data.val), None
    if isinstance(model, CoDANet | Peer):
        if model.image_channels != data.channels:
            raise ValueError(
                f"{label} takes images of {model.image_channels} channels and {data.name} has {data.channels}: use the "
                "data set that it was trained on"
            )
        if model.class_names and len(model.class_names) == len(data.classes) and model.class_names != data.classes:
            place = next(i for i, pair in enumerate(zip(model.class_names, data.classes)) if pair[0] != pair[1])  # noqa: B905
            raise ValueError(
                f"class {place} of {label} is {model.class_names[place]!r} and of {data.name} {data.classes[place]!r}: "
                "use the data set that it was trained on"
            )
        size = _cut(label, model, data)
    pictures = Pictures(split, size)
    image = pictures.read(pictures.sample(None, 1, seed=0))[0]
    try:
        classes = logits_of(model, image).shape[1]
    except RuntimeError as error:
        raise ValueError(f"{label} cannot take images {list(image.shape[1:])} of {data.name} ({error})") from None
    if classes != len(data.classes):
        raise ValueError(
            f"{label} has {classes} classes and {data.name} has {len(data.classes)}: use the data set that it was "
            "trained on"
        )
    return pictures


def _cut(label: str, model: CoDANet | Peer, data: ImageData) -> tuple[int, int] | None:
    size = model.image_size
    if size is None or size == data.image_size:
        return None
    if size[0] > data.image_size[0] or size[1] > data.image_size[1]:
        raise ValueError(
            f"{label} takes images of {size[0]}x{size[1]} and those of {data.name} are "
            f"{data.image_size[0]}x{data.image_size[1]}: read them at that size with --image-size {max(size)}"
        )
    return size
