"""What the page shows, as HTML: everything that comes from a model or a user goes through `text`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from .._support.html import picture_uri, signed, text
from ..plot import colour_scale, heatmap, pictures
from .reading import Box, Parts, Reading

ROWS = 10  # classes listed
OPACITY = 0.75  # power of |value|, so that weak contributions stay visible on a picture


@dataclass(frozen=True)
class Tile:
    """A picture to choose: its key is what the browser sends back."""

    key: str
    title: str
    uri: str
    order: int | None = None  # its place in the multi-image being put together


def tiles(items: Sequence[Tile], chosen: str | None = None, upload: bool = False) -> str:
    parts = []
    if upload:
        parts.append(
            '<button type="button" class="tile upload" data-upload><span class="plus" aria-hidden="true">+</span>'
            "<span>Your picture</span></button>"
            '<input type="file" class="file" accept="image/*" tabindex="-1" aria-label="Your picture">'
            '<div class="dropping" hidden>Drop the picture anywhere</div>'
        )
    for item in items:
        pressed = item.key == chosen or item.order is not None
        order = "" if item.order is None else f'<span class="order">{item.order}</span>'
        parts.append(
            f'<button type="button" class="tile" data-key="{text(item.key)}" aria-pressed="{str(pressed).lower()}" '
            f'title="{text(item.title)}"><img src="{item.uri}" alt="{text(item.title)}">{order}</button>'
        )
    return f'<div class="tiles">{"".join(parts)}</div>'


def viewer(reading: Reading, photo: str, target: int, versus: int | None, box: Box | None, cells: int) -> str:
    """The picture under the map; the browser fades between them and draws the box."""
    height, width = reading.size
    values = reading.map(target, versus)
    scale = colour_scale(values)
    what, name = words(reading, target, versus), reading.class_names[target]
    other = "against" if versus is None else f"for {reading.class_names[versus]}"
    kept = ",".join(map(str, box)) if box else ""
    lines = "".join(
        f'<i class="line {side}" style="{edge}:{100 * place / cells:.4f}%"></i>'
        for place in range(1, cells)
        for side, edge in (("down", "left"), ("across", "top"))
    )
    return (
        f'<div class="stage" tabindex="0" role="group" data-width="{width}" data-height="{height}" '
        f'style="aspect-ratio:{width}/{height}" aria-label="{text(what)}: drag a box to measure a region">'
        f'<img class="photo" src="{photo}" alt="The picture" draggable="false">'
        f'<img class="photo seen" src="{image_uri(reading.image)}" alt="As the model sees it" draggable="false">'
        f'<img class="cover" src="{picture_uri(cover(values, scale))}" alt="" draggable="false">'
        f'<img class="heat" src="{picture_uri(heatmap(values, scale)[0])}" alt="{text(what)}" draggable="false">'
        f'{lines}<div class="box" data-box="{kept}" style="{placed(box, width, height)}"></div></div>'
        f'<div class="legend"><span>{text(other)}</span><span class="number">−{scale:.2g}</span>'
        f'<span class="ramp"></span><span class="number">+{scale:.2g}</span><span>for {text(name)}</span></div>'
    )


def words(reading: Reading, target: int, versus: int | None) -> str:
    name = reading.class_names[target]
    return f"Contributions to {name}" if versus is None else f"{name} rather than {reading.class_names[versus]}"


def cover(values: Tensor, scale: float) -> NDArray[np.uint8]:
    """RGBA [H, W, 4]: red or blue, the more opaque the more a pixel contributes, as `plot.overlay` over any picture."""
    ends = heatmap(torch.where(values < 0, -1.0, 1.0), 1.0)[0]
    alpha = (values / scale).clamp(-1, 1).abs() ** OPACITY
    return np.concatenate([ends, np.rint(255 * alpha.numpy()).astype(np.uint8)[..., None]], -1)


def placed(box: Box | None, width: int, height: int) -> str:
    if box is None:
        return "display:none"
    left, top, right, bottom = box
    sides = (left / width, top / height, (right - left) / width, (bottom - top) / height)
    return "".join(
        f"{name}:{100 * side:.4f}%;" for name, side in zip(("left", "top", "width", "height"), sides, strict=True)
    )


def bars(reading: Reading, target: int, versus: int | None, cells: int = 1) -> str:
    """The most probable classes, each a button that shows its map; the class shown is always among them.

    In a multi-image the other pictures speak against a class, so that its logit says little: what counts is where.
    """
    listed = reading.ranked(ROWS)
    listed += [c for c in (target, versus) if c is not None and c not in listed]
    rows = []
    for c in listed:
        probability = reading.probabilities[c].item()
        said = percent(probability) if cells == 1 else signed(reading.logits[c].item(), 1)
        role = "shown" if c == target else "versus" if c == versus else ""
        rows.append(
            f'<button type="button" class="class {role}" data-class="{c}" aria-pressed="{str(c == target).lower()}">'
            f'<span class="name">{text(reading.class_names[c])}</span>'
            f'<span class="track"><span style="width:{100 * probability:.2f}%"></span></span>'
            f'<span class="number">{said}</span></button>'
        )
    top = reading.ranked(1)[0]
    name, certainty = reading.class_names[top], percent(reading.probabilities[top].item())
    if cells > 1:
        name, certainty = f"{cells**2} pictures", "logits over all of them"
    return (
        f'<p class="verdict"><strong>{text(name)}</strong><span>{certainty}</span></p>'
        f'<div class="classes{" several" if cells > 1 else ""}">{"".join(rows)}</div>'
    )


def percent(probability: float) -> str:
    return "<0.1 %" if probability < 0.0005 else f"{100 * probability:.1f} %"


def equation(parts: Parts, box: Box | None, versus: int | None) -> str:
    """The logit, or its difference from that of class `versus`, as a sum that anyone can add up."""
    terms = (
        [(parts.inside, "inside the box"), (parts.outside, "outside")] if box else [(parts.inside, "sum of all pixels")]
    )
    if versus is None:
        terms.append((parts.bias, "b₀, the same for every class"))
    terms.append((parts.logit, "logit" if versus is None else "difference of the logits"))
    cells = "".join(f"<div><b>{signed(value)}</b><span>{label}</span></div>" for value, label in terms)
    return f'<div class="equation">{cells}</div>'


def region(reading: Reading, target: int, versus: int | None, box: Box | None) -> str:
    """How much a box contributes to each class."""
    main = equation(reading.parts(box, target, versus), box, versus)
    if reading.exact_for:
        main += (
            f'<p class="hint">These sums are {text(reading.exact_for)}: a feature is shown, and counted, evenly over '
            "its square of pixels.</p>"
        )
    if box is None:
        return main + (
            '<p class="hint">Drag a box on the picture to read how much that region contributes to every class.</p>'
        )
    listed = reading.ranked(ROWS)
    listed += [c for c in (target, versus) if c is not None and c not in listed]
    reading.pixels.prepare(listed)
    parts = {c: reading.parts(box, c) for c in listed}
    largest = max(abs(part.inside) for part in parts.values()) or 1.0
    rows = "".join(
        f'<tr class="{"shown" if c == target else ""}"><th scope="row">{text(reading.class_names[c])}</th>'
        f"<td>{diverging(part.inside / largest)}</td><td>{signed(part.inside)}</td><td>{signed(part.outside)}</td>"
        f"<td>{signed(part.bias)}</td><td>{signed(part.logit)}</td></tr>"
        for c, part in parts.items()
    )
    left, top, right, bottom = box
    share = (right - left) * (bottom - top) / (reading.size[0] * reading.size[1])
    error = max(part.error for part in parts.values())
    return (
        f'{main}<table class="parts"><thead><tr><th scope="col">class</th><th scope="col" class="wide"></th>'
        '<th scope="col">inside</th><th scope="col">outside</th><th scope="col">b₀</th><th scope="col">logit</th></tr>'
        f"</thead><tbody>{rows}</tbody></table>"
        f'<p class="hint">The box covers {right - left} × {bottom - top} pixels, {share:.0%} of the picture. In '
        f"each row inside + outside + b₀ is the logit, to within {tiny(error)}.</p>"
    )


def tiny(error: float) -> str:
    if error == 0:
        return "nothing"
    digits, power = f"{error:.0e}".split("e")
    return f"{digits} · 10<sup>{int(power)}</sup>".replace("-", "−")


def diverging(part: float) -> str:
    """A bar to the right for, to the left against; part is within [-1, 1]."""
    side = "for" if part >= 0 else "against"
    return f'<span class="diverging"><span class="{side}" style="width:{50 * abs(part):.2f}%"></span></span>'


@dataclass(frozen=True)
class Panel:
    title: str
    note: str
    uri: str
    cell: tuple[float, float, float] | None = None  # left, top, side of what to outline, as shares of the picture
    about: str = ""


def panels(items: Sequence[Panel], waiting: Sequence[str] = ()) -> str:
    figures = []
    for item in items:
        about, outline = text(item.about), ""
        if item.cell:
            left, top, side = (100 * share for share in item.cell)
            outline = (
                f'<i class="cell" style="left:{left:.3f}%;top:{top:.3f}%;width:{side:.3f}%;height:{side:.3f}%"></i>'
            )
        figures.append(
            f'<figure title="{about}"><div class="frame"><img src="{item.uri}" alt="{text(item.title)}">{outline}</div>'
            f"<figcaption><b>{text(item.title)}</b><span>{text(item.note)}</span></figcaption></figure>"
        )
    figures += [
        f'<figure class="waiting"><div class="frame"></div><figcaption><b>{text(title)}</b><span>computing …</span>'
        "</figcaption></figure>"
        for title in waiting
    ]
    return f'<div class="panels">{"".join(figures)}</div>'


def image_uri(image: Tensor) -> str:
    """An image [C, H, W] in [0, 1], every pixel of it."""
    return picture_uri(pictures(image[None])[0])


def photo_uri(photo: Image.Image) -> str:
    """Small ones pixel by pixel, large ones as JPEG."""
    return picture_uri(photo, "PNG" if max(photo.size) <= 128 else "JPEG")
