"""The same images under many settings: temperatures (Fig. 4), λ (Fig. A5), reset layers (Fig. A6), layer by layer."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from ..models.explanation import Target
from ..models.hybrid import HybridNet
from ..models.layer_contributions import layer_contributions
from ..models.network import CoDANet
from .colours import colour_scale, finite_array, heatmap, pictures
from .maps import Maps
from .sheet import GAP, TITLE, Sheet, number, shortened

Scale = Literal["all", "column", "each"]
LAYERS_IN_A_ROW = 6


def strip(
    images: Maps,
    maps: Mapping[str, Maps],
    *,
    titles: Sequence[str] | None = None,
    scale: Scale = "column",
    palette: str = "red-blue",
    columns: int | None = None,
) -> Figure:
    """A row per image [N, C, H, W]: the image, then its map under every setting, {"T = 10": [N, H, W], …}.

    A scale belongs to "all" maps, to every "column", or to "each" map; the last two are written above them, as ±v.
    A single image with many maps may be wrapped to rows of `columns`.
    """
    if scale not in ("all", "column", "each"):
        raise ValueError(f"scale is {scale!r}: it must be 'all', 'column' or 'each'")
    if not maps:
        raise ValueError("no maps were given: give at least one setting with its maps")
    shown = pictures(images)
    count = len(shown)
    values = {name: finite_array(given) for name, given in maps.items()}
    for name, given in values.items():
        if given.ndim != 3 or len(given) != count:
            raise ValueError(f"the maps of {name!r} have shape {list(given.shape)}: they must be [{count}, H, W]")
    if titles is not None and len(titles) != count:
        raise ValueError(f"{len(titles)} titles were given for {count} images: give one for each")
    whole = colour_scale(np.concatenate([given.ravel() for given in values.values()]))
    if columns is not None and columns < 1:
        raise ValueError(f"columns is {columns}: put at least one panel in a row")
    wide = min(columns or 1 + len(values), 1 + len(values)) if count == 1 else 1 + len(values)
    several = 2 if scale != "all" else 1
    written = [title.count("\n") + 1 for title in titles or [""]]
    first = TITLE * max(several, *written, *(name.count("\n") + several for name in maps))
    other = TITLE * max(written) if titles else TITLE if scale == "each" else 0
    heads = [first] + [other + GAP] * (count - 1)
    heads += [first + GAP] * (-(-(1 + len(values)) // wide) - 1)  # for the rows that follow
    sheet = Sheet.of(wide, heads, shown.shape[1:3], bar=scale == "all")
    figure = sheet.figure()
    for row in range(count):
        sheet.panel(figure, (row, 0), shown[row], titles[row] if titles else "")
        for column, (name, given) in enumerate(values.items(), start=1):
            limit = {"all": whole, "column": colour_scale(given), "each": colour_scale(given[row])}[scale]
            words = [shortened(name)] if row == 0 else []
            if scale == "each" or (scale == "column" and row == 0):
                words.append(f"±{number(limit)}")
            place = (row + column // wide, column % wide)
            sheet.panel(figure, place, heatmap(given[row], limit, palette)[0], "\n".join(words))
    if scale == "all":
        clipped = any(np.abs(given).max() > whole for given in values.values())
        sheet.colour_bar(figure, 0, whole, palette, clipped=clipped)
    return figure


def first_name(model: CoDANet) -> str:
    """What the first layer sees."""
    return model.layer if isinstance(model, HybridNet) else "image"


def layer_maps(
    model: CoDANet,
    images: Tensor,
    target: Target = None,
    *,
    titles: Sequence[str] | None = None,
    palette: str = "red-blue",
) -> Figure:
    """Layer by layer, where a logit comes from; each layer on a scale of its own.

    Args:
        model: A CoDA-Net.
        images: [N, C, H, W] in [0, 1].
        target: A class, or one for each image; the predicted one if not given.
        titles: One for each image.
        palette: "red-blue" or "orange-purple".

    Raises:
        ValueError: If a class or the palette is unknown.

    Examples:
        >>> save(layer_maps(model, images), "layers.png")  # doctest: +SKIP
    """
    maps = layer_contributions(model, images, target)
    names = [first_name(model), *(f"layer {layer}" for layer in range(1, len(maps)))]
    shown = images if isinstance(model, HybridNet) else model.encode(images)[:, : model.image_channels]
    return strip(shown, dict(zip(names, maps, strict=True)), titles=titles, palette=palette, columns=LAYERS_IN_A_ROW)
