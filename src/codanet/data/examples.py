"""Pictures to begin with: scikit-image's photographs, digits for a model of digits, or those of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import numpy as np
from PIL import Image

from .._support.extras import optional
from ..models.network import CoDANet
from . import ImageData, load_data, to_image

# what comes inside scikit-image itself, nothing of it is downloaded
PHOTOGRAPHS = {
    "cat": "cat",
    "astronaut": "astronaut",
    "coffee": "coffee",
    "rocket": "rocket",
    "motorcycle": "stereo_motorcycle",
    "horse": "horse",
    "cameraman": "camera",
    "coins": "coins",
    "moon": "moon",
}
MOST = 12


def check_shown(models: Mapping[str, CoDANet], data: ImageData | None = None) -> None:
    """Refuse what a page cannot show: no model, images neither grey nor RGB, examples for none of the models."""
    if not models:
        raise ValueError("no model was given: give at least one to show")
    for name, model in models.items():
        if model.image_channels not in (1, 3):
            raise ValueError(
                f"{name} takes images of {model.image_channels} channels: the page shows grey or RGB pictures (1 or 3)"
            )
    counts = sorted({model.num_classes for model in models.values()})
    if data is not None and len(data.classes) not in counts:
        raise ValueError(
            f"the examples are of {len(data.classes)} classes and the models have {', '.join(map(str, counts))}: give "
            "the data set of one of them, or no examples"
        )


def examples(model: CoDANet, data: ImageData | None = None) -> dict[str, Image.Image]:
    """Pictures by name. Of a data set: one validation picture of each class, of the first dozen."""
    if data is not None and len(data.classes) == model.num_classes:
        return of_each_class(data)
    if model.image_channels == 1 and model.class_names == tuple("0123456789"):
        return of_each_class(load_data("digits"))
    return dict(photographs())


def of_each_class(data: ImageData) -> dict[str, Image.Image]:
    chosen: dict[str, Image.Image] = {}
    for label, name in list(enumerate(data.classes))[:MOST]:
        members = (data.val.labels == label).nonzero()[:, 0]
        if len(members):
            image, _ = data.val[int(members[0])]
            chosen[name] = to_image(image)
    return chosen


def photographs() -> Mapping[str, Image.Image]:
    with optional():
        pictures = import_module("skimage.data")
    images = {}
    for name, function in PHOTOGRAPHS.items():
        array = getattr(pictures, function)()
        array = array[0] if isinstance(array, tuple) else array  # the left one of a stereo pair
        images[name] = Image.fromarray(array if array.dtype == np.uint8 else array.astype(np.uint8) * 255).convert(
            "RGB"
        )
    return images
