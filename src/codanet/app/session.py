"""What one visitor has before them: a model, pictures, a class, a box. Every step gives a new session."""

from __future__ import annotations

import math
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import torch
from PIL import Image
from torch import Tensor

from .._support.html import picture_uri, uri_picture
from ..data import DataError, ImageData, decode
from ..data.examples import examples
from ..data.image import fit, size_for, to_image, to_tensor
from ..data.tiling import tiled_square
from ..models.network import CoDANet
from . import views
from .reading import Box, Reading, cell, read, share

MOST_BYTES = 16 * 2**20  # the largest upload
MOST_UPLOADS = 9  # kept of a session: the last ones
PHOTO_SIDE = 640  # pixels of the picture shown
TILE_SIDE = 96


@dataclass(frozen=True)
class Picture:
    key: str
    title: str
    photos: Mapping[str, str]  # by model: what it sees of the picture, with more pixels, as a data URI
    pixels: Mapping[str, Tensor]  # by model: [C, H, W], bytes
    tiles: Mapping[str, str]  # by model: the photo small, as a data URI; made once, for every answer shows it

    def image(self, model: str) -> Tensor:
        """[C, H, W] in [0, 1], as `read_image` gives it."""
        return self.pixels[model].float() / 255


@dataclass(frozen=True)
class Gallery:
    """The models of the page, each with the pictures to begin with."""

    models: Mapping[str, CoDANet]
    pictures: Mapping[str, tuple[Picture, ...]]

    @classmethod
    def of(cls, models: Mapping[str, CoDANet], data: ImageData | None = None) -> Gallery:
        shown = {}
        for name, model in models.items():
            images = examples(model, data)
            shown[name] = tuple(
                seen_by(f"example-{number}", title, image, {name: model})
                for number, (title, image) in enumerate(images.items())
            )
        return cls(models, shown)


def seen_by(key: str, title: str, image: Image.Image, models: Mapping[str, CoDANet]) -> Picture:
    """What is kept of a picture, a quarter of the bytes that its photos and its numbers would need as they are used."""
    pixels = {name: fitted(image, model) for name, model in models.items()}
    by_aspect: dict[Fraction, tuple[str, str]] = {}
    photos, tiles = {}, {}
    for name, model in models.items():
        if (aspect := Fraction(*size_for(model))) not in by_aspect:
            photo = cropped(image, model)
            by_aspect[aspect] = views.photo_uri(photo), _tile(photo)
        photos[name], tiles[name] = by_aspect[aspect]
    return Picture(key, title, photos, pixels, tiles)


def _tile(photo: Image.Image) -> str:
    if max(photo.size) <= TILE_SIDE:
        return picture_uri(photo)
    scale = TILE_SIDE / max(photo.size)
    small = photo.resize((round(photo.width * scale) or 1, round(photo.height * scale) or 1), reducing_gap=2)
    return picture_uri(small, "JPEG")


def fitted(image: Image.Image, model: CoDANet) -> Tensor:
    """The bytes of what `read_image` gives, of a picture that is decoded and turned already."""
    mode = "L" if model.image_channels == 1 else "RGB"
    shaped = fit(image if image.mode == mode else image.convert(mode), size_for(model))
    return to_tensor(shaped)


def cropped(image: Image.Image, model: CoDANet) -> Image.Image:
    """The part of a picture that the model sees, as large as there are pixels for, at most PHOTO_SIDE."""
    height, width = size_for(model)
    scale = min(image.width / width, image.height / height, PHOTO_SIDE / max(height, width))
    return fit(image, (max(height, round(height * scale)), max(width, round(width * scale))))


@dataclass(frozen=True)
class Session:
    model: str
    uploads: tuple[Picture, ...] = ()  # the newest first
    number: int = 0  # uploads so far
    shown: tuple[str, ...] = ()  # key of the picture, or keys of all the pictures of a multi-image
    reading: Reading | None = None
    photo: str = ""  # data URI
    target: int = 0
    versus: int | None = None
    box: Box | None = None
    mixed: tuple[str, ...] = field(default=())  # keys chosen for the next multi-image
    begun: bool = False  # whether the visitor has done anything yet

    @property
    def cells(self) -> int:
        """n of the n x n multi-image shown; 1 for a single picture."""
        return math.isqrt(len(self.shown)) if self.shown else 1

    @property
    def read(self) -> Reading:
        if self.reading is None:
            raise ValueError("there is no picture yet: choose one, or give your own")
        return self.reading


def pictures(gallery: Gallery, session: Session) -> dict[str, Picture]:
    return {each.key: each for each in (*session.uploads, *gallery.pictures[session.model])}


def open_model(gallery: Gallery, session: Session, name: str) -> Session:
    """Another model, with the same picture if it is the visitor's own."""
    if name not in gallery.models:
        raise ValueError("that model is not on this page: choose one of the list")
    session = Session(name, session.uploads, session.number, session.shown)
    known = pictures(gallery, session)
    uploaded = {each.key for each in session.uploads}
    if len(session.shown) == 1 and session.shown[0] in uploaded:
        return open_picture(gallery, session, session.shown[0])
    if not known:
        return replace(session, shown=())
    return open_picture(gallery, session, next(iter(known)))


def open_picture(gallery: Gallery, session: Session, key: object) -> Session:
    picture = pictures(gallery, session).get(str(key))
    if picture is None:
        raise ValueError("that picture is no longer here: choose another, or give it again")
    model = gallery.models[session.model]
    reading = read(model, picture.image(session.model))
    return _facing(session, reading, (picture.key,), picture.photos[session.model])


def _facing(session: Session, reading: Reading, shown: tuple[str, ...], photo: str) -> Session:
    top = reading.ranked(1)[0]
    return replace(session, reading=reading, shown=shown, photo=photo, target=top, versus=None, box=None)


def take_upload(gallery: Gallery, session: Session, content: object, title: object = "") -> Session:
    """A picture of the visitor's, given as base64."""
    if not isinstance(content, str):
        raise ValueError("no picture came with that: choose a PNG, JPEG, WebP, BMP or GIF file")
    if len(content) > MOST_BYTES * 4 // 3 + 4:
        raise ValueError(problem("large"))
    try:
        source = b64decode(content, validate=True)
    except (NotBase64, ValueError):
        raise ValueError("the file arrived damaged: send it again") from None
    try:
        image = decode(source, name="that file")
    except DataError as error:
        raise ValueError(str(error)) from None
    number = session.number + 1
    words = str(title)[:80] or f"picture {number}"
    new = seen_by(f"upload-{number}", words, image, gallery.models)
    kept = (new, *session.uploads)[:MOST_UPLOADS]
    return open_picture(gallery, replace(session, uploads=kept, number=number), new.key)


def problem(kind: object) -> str:
    """What kept the browser from sending a file."""
    if kind == "large":
        return f"that file is larger than the {MOST_BYTES // 2**20} MiB this page takes: save it smaller"
    return "the browser could not read that file: choose another"


def choose_class(session: Session, target: object) -> Session:
    number = class_number(session, target)
    return replace(session, target=number, versus=None if session.versus == number else session.versus)


def choose_versus(session: Session, versus: object) -> Session:
    if versus in (None, -1):
        return replace(session, versus=None)
    number = class_number(session, versus)
    return replace(session, versus=None if number == session.target else number)


def class_number(session: Session, value: object) -> int:
    classes = len(session.read.class_names)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < classes:
        raise ValueError(f"that is not a class of this model: there are {classes}")
    return value


def choose_box(session: Session, box: object) -> Session:
    if box is None:
        return replace(session, box=None)
    if not isinstance(box, list):
        raise ValueError("the box did not arrive: draw it again")
    return replace(session, box=session.read.clip(box))


def toggle_mixed(gallery: Gallery, session: Session, key: object) -> Session:
    """Put a picture into the next multi-image, or take it out."""
    key = str(key)
    if key in session.mixed:
        return replace(session, mixed=tuple(each for each in session.mixed if each != key))
    if key not in pictures(gallery, session):
        raise ValueError("that picture is no longer here: choose another")
    return replace(session, mixed=(*session.mixed, key))


def mix(gallery: Gallery, session: Session, n: int) -> Session:
    """An n x n multi-image of the chosen pictures, filled up with others of the page."""
    if n not in (2, 3):
        raise ValueError(f"a multi-image of {n} x {n} is not offered: choose 2 x 2 or 3 x 3")
    known = pictures(gallery, session)
    keys = [key for key in session.mixed if key in known]
    keys += [key for key in known if key not in keys]
    if len(keys) < n * n:
        raise ValueError(f"{n} x {n} needs {n * n} pictures and there are {len(keys)}: give more of your own first")
    keys = keys[: n * n]
    model = gallery.models[session.model]
    image = tiled_square([known[key].image(session.model) for key in keys])
    photo = _mosaic([uri_picture(known[key].photos[session.model]) for key in keys], n, model)
    return _facing(session, read(model, image), tuple(keys), views.photo_uri(photo))


def _mosaic(photos: list[Image.Image], n: int, model: CoDANet) -> Image.Image:
    height, width = size_for(model)
    scale = max(1, min(max(photo.width for photo in photos) // width, 2 * PHOTO_SIDE // n // max(height, width)))
    side = (height * scale, width * scale)
    return to_image(tiled_square([to_tensor(fit(photo.convert("RGB"), side)) for photo in photos]))


def finds(gallery: Gallery, session: Session) -> list[tuple[int, Box, float]]:
    """Of every picture of a multi-image: its own class, its cell, and the share of the evidence for it in the cell."""
    known, model, reading = pictures(gallery, session), gallery.models[session.model], session.read
    images = torch.stack([known[key].image(session.model) for key in session.shown])
    with torch.no_grad():
        targets = model(images.to(model.device, model.dtype)).argmax(1).tolist()
    reading.pixels.prepare(targets)
    boxes = [cell(reading, session.cells, place) for place in range(len(targets))]
    return [(target, box, share(reading, target, box)) for target, box in zip(targets, boxes, strict=True)]
