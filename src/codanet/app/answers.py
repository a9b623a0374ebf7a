"""What the page answers besides a prediction: comparisons, multi-images, files to take away; no Gradio needed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import torch

from .._support.html import data_uri, picture_uri, text
from .._support.version import __version__
from ..attribution import METHODS, attribute
from ..data.image import size_for
from ..models.facts import facts
from ..plot import card, colour_scale, heatmap, method_colours, overlay
from ..plot import pictures as as_pictures
from . import views
from .session import Gallery, Session, finds, pictures

CARD_SIDE = 480  # pixels of each panel in the picture to take away


def tile_views(gallery: Gallery, session: Session) -> tuple[str, str]:
    """The pictures to choose from; and the same for a multi-image, with their order."""
    items = [
        views.Tile(each.key, each.title, each.tiles[session.model]) for each in pictures(gallery, session).values()
    ]
    order = {key: place + 1 for place, key in enumerate(session.mixed)}
    mixing = [views.Tile(item.key, item.title, item.uri, order.get(item.key)) for item in items]
    shown = session.shown[0] if len(session.shown) == 1 else None
    return views.tiles(items, shown, upload=True), views.tiles(mixing)


def compared(gallery: Gallery, session: Session, methods: list[str]) -> Iterator[str]:
    """The map of every method for the class shown, one after the other, with the time it took."""
    reading, chosen = session.read, [name for name in METHODS if name in methods]
    if not chosen:
        raise ValueError("no method is chosen: tick at least one")
    head = (
        f"<p class='hint'>For <b>{text(reading.class_names[session.target])}</b>, each map on a scale of its own.</p>"
    )
    items: list[views.Panel] = []
    for place, name in enumerate(chosen):
        yield head + views.panels(items, [METHODS[other].title for other in chosen[place:]])
        items.append(_by_method(gallery, session, name))
    yield head + views.panels(items)


def _by_method(gallery: Gallery, session: Session, name: str) -> views.Panel:
    image, method = session.read.image[None], METHODS[name]
    start = time.perf_counter()
    try:
        importance = attribute(gallery.models[session.model], image, session.target, name)[0].float().cpu()
    except ValueError as error:  # what this method cannot do with this model, in its own words
        return views.Panel(method.title, str(error), picture_uri(heatmap(torch.zeros(session.read.size))[0]))
    seconds = time.perf_counter() - start
    spent = f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    return views.Panel(method.title, spent, picture_uri(method_colours(name, importance)[0]), about=method.about)


def found_classes(gallery: Gallery, session: Session) -> str:
    """Every picture of the multi-image: the map of its own class, and how much of it lies where it belongs."""
    reading, items = session.read, []
    height, width = reading.size
    for target, (left, top, right, _), part in finds(gallery, session):
        place = left / width, top / height, (right - left) / width
        colours = picture_uri(heatmap(reading.pixels[target])[0])
        items.append(views.Panel(reading.class_names[target], f"{part:.0%} inside", colours, place))
    return views.panels(items) + (
        '<p class="hint">Each picture: the class the model gives it alone, and how much of the positive contributions '
        f"to that class lies inside its outline. Evenly spread it would be {1 / session.cells**2:.0%}.</p>"
    )


def picture_file(session: Session, fade: float) -> dict[str, Any]:
    """The image, the map over it as strong as on the page, and the map, side by side."""
    reading = session.read
    values = reading.map(session.target, session.versus)
    scale = colour_scale(values)
    strength = min(1.0, max(0.0, 2 * float(fade)))
    panels = [
        as_pictures(reading.image[None])[0],
        overlay(reading.image[None], values[None], scale, strength=strength)[0],
        heatmap(values, scale)[0],
    ]
    top = reading.ranked(1)[0]
    verdict = f"{reading.class_names[top]} {views.percent(reading.probabilities[top].item())}"
    verdict = verdict if session.cells == 1 else f"{session.cells**2} pictures"
    name = views.words(reading, session.target, session.versus)
    page = card(panels, [verdict, name, ""], scale=scale, side=CARD_SIDE, note=reading.exact_for)
    return named(session, "png", picture_uri(page))


def numbers_file(gallery: Gallery, session: Session) -> dict[str, Any]:
    model = gallery.models[session.model]
    numbers = session.read.numbers(model, session.box, session.target, session.versus)
    return named(session, "json", data_uri(json.dumps(numbers, indent=1).encode(), "application/json"))


def table_file(session: Session) -> dict[str, Any]:
    return named(session, "csv", data_uri(session.read.table(session.box).encode("utf-8-sig"), "text/csv"))


def named(session: Session, ending: str, uri: str) -> dict[str, Any]:
    """A file for the browser; the stamp makes asking twice for the same one two events."""
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in session.read.class_names[session.target])
    return {"name": f"why-{name[:40]}.{ending}", "uri": uri, "stamp": time.time_ns()}


def about(gallery: Gallery, session: Session) -> str:
    """What the model is, from its own header."""
    model = gallery.models[session.model]
    known = facts(model)
    size, colour = " × ".join(map(str, size_for(model))), "grey" if model.image_channels == 1 else "RGB"
    rows: list[tuple[str, object]] = [
        ("network", f"{model.name}, {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters"),
        ("input", f"{size} pixels, {colour}"),
        ("classes", model.num_classes),
        ("temperature", f"{model.temperature:g}"),
    ]
    for part, name in (("test", "test"), ("val", "validation")):
        if isinstance(share := known.get(f"{part}_accuracy"), float):
            rows.append(("accuracy", f"{share:.2%} of {known.get(f'{part}_images', '?')} {name} pictures"))
    rows += [(key, known[key]) for key in ("data", "recipe", "epochs", "hours", "seed") if key in known]
    cells = "".join(f"<tr><th scope='row'>{text(key)}</th><td>{text(value)}</td></tr>" for key, value in rows)
    return (
        f"<table class='facts'>{cells}</table><p class='hint'>A map tells what the network used, not what is true of "
        "the world. The model knows its own classes only and puts every picture into one of them. Pictures given to "
        "this page stay in memory, an hour after your last step at most, and never go to disk. codanet "
        f"{text(__version__)}.</p>"
    )
