"""An explanation as a figure: images above their maps, beside other methods', and multi-images (Figs. 5, 7, 8)."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..metrics.share import cell_masks, positive_share
from ..models.explanation import Explanation
from ..models.network import CoDANet
from .colours import colour_scale, finite_array, heatmap, method_colours, painted, pictures
from .sheet import (
    BLOCK_GAP,
    FOOT,
    GAP,
    INK,
    LABEL,
    LABEL_POINTS,
    LARGEST_CELL,
    LETTERS,
    MARGIN,
    TITLE,
    Sheet,
    shortened,
    show,
    write,
)

Maps = Tensor | ArrayLike


def contribution_maps(
    explanation: Explanation,
    columns: int = 8,
    palette: str = "red-blue",
    titles: Sequence[str] | None = None,
    style: str | None = None,
    scale: float | None = None,
) -> Figure:
    """Every image with its contribution map under it, or one map per target; all maps on one scale.

    Above an image stands its predicted class with its probability. A map is labelled with its class where that is not
    the predicted one.

    Args:
        explanation: Of N images, for one target each or K.
        columns: Images in a row.
        palette: "red-blue", or "orange-purple" for those who confuse red and green.
        titles: To stand above the images instead, [N].
        style: "map", "overlay" (on the image) or "weights" (the row of W in the colours it asks for); by default the
            map, and of photographs the overlay.
        scale: Colours are linear from -scale to scale, in logits; taken from what is shown if not given.

    Examples:
        >>> import codanet, torch
        >>> why = codanet.load("cifar10").explain(torch.rand(4, 3, 32, 32))
        >>> codanet.plot.save(contribution_maps(why, columns=2), "maps.png").name
        'maps.png'
    """
    if columns < 1:
        raise ValueError(f"columns is {columns}: put at least one image in a row")
    number, titles = len(explanation), _titles(explanation, titles)
    targets = _targets(explanation)
    labelled = _labelled(explanation)
    values = finite_array(explanation.shown)
    scale = colour_scale(values) if scale is None else scale
    maps, images = painted(explanation, style, palette, scale), pictures(explanation.images)

    columns = min(columns, number)
    blocks = -(-number // columns)
    title = TITLE * _lines(titles)
    heads = [title] + [LABEL if labelled else GAP] * targets.shape[1]
    heads = heads + [heads[0] + BLOCK_GAP, *heads[1:]] * (blocks - 1)
    foot = FOOT if explanation.exact_for else 0
    sheet = Sheet.of(columns, heads, images.shape[1:3], bar=style != "weights", foot=foot)
    figure = sheet.figure()
    for image in range(number):
        block, column = divmod(image, columns)
        row = block * (1 + targets.shape[1])
        sheet.panel(figure, (row, column), images[image], titles[image])
        for below, target in enumerate(targets[image].tolist(), start=1):
            label = named(explanation, image, target, "for ") if labelled else ""
            sheet.panel(figure, (row + below, column), maps[image, below - 1], label, LABEL_POINTS)
    if sheet.bar:
        sheet.colour_bar(figure, 1, scale, palette, clipped=bool(np.abs(values).max() > scale))
    if foot:
        sheet.footer(figure, f"{explanation.exact_for.capitalize()}.")
    return figure


def comparison(
    explanation: Explanation,
    others: Mapping[str, Maps] | None = None,
    *,
    titles: Sequence[str] | None = None,
    palette: str = "red-blue",
    style: str | None = None,
    scale: float | None = None,
) -> Figure:
    """A row per image: the image, the model's own map, and beside it those of other methods (Fig. 8).

    Without `others`, the maps of several targets stand side by side; with them each target has a row of its own.

    Args:
        explanation: Of N images, for one target each or K.
        others: Maps [N, H, W], or [N, K, H, W] if the explanation has K targets, by the name to show. They have no unit
            in common, so each is on its own scale; RISE is in its own colours.
        titles: To stand above the images, [N].
        palette: As in `contribution_maps`.
        style: As there.
        scale: As there.

    Examples:
        >>> save(comparison(why, {"GradCAM": maps}), "beside.png")  # doctest: +SKIP
    """
    number, titles = len(explanation), _titles(explanation, titles)
    targets, labelled = _targets(explanation), _labelled(explanation)
    values = finite_array(explanation.shown)
    scale = colour_scale(values) if scale is None else scale
    maps, images = painted(explanation, style, palette, scale), pictures(explanation.images)
    extra = {name: _painted_other(name, given, targets.shape, palette) for name, given in (others or {}).items()}

    wide = 1 if extra else targets.shape[1]  # own maps in a row
    rows = number * (targets.shape[1] // wide)
    head = TITLE * max(_lines(titles), *(_lines(list(extra)), 1))
    sheet = Sheet.of(
        1 + wide + len(extra),
        [head] + [head + GAP] * (rows - 1),
        images.shape[1:3],
        bar=style != "weights",
        foot=FOOT if extra or explanation.exact_for else 0,
        largest=2 * LARGEST_CELL if explanation.exact_for and number == 1 and not extra else LARGEST_CELL,
    )
    figure = sheet.figure()
    for row in range(rows):
        image, first = divmod(row * wide, targets.shape[1])
        if first == 0:
            sheet.panel(figure, (row, 0), images[image], titles[image])
        for column in range(wide):
            target = int(targets[image, first + column])
            label = named(explanation, image, target, "for ") if labelled else "contributions" if row == 0 else ""
            sheet.panel(figure, (row, 1 + column), maps[image, first + column], label)
        for column, (name, painted_maps) in enumerate(extra.items(), start=1 + wide):
            sheet.panel(figure, (row, column), painted_maps[image, first], shortened(name) if row == 0 else "")
    if sheet.bar:
        sheet.colour_bar(figure, 0, scale, palette, clipped=bool(np.abs(values).max() > scale))
    words = [explanation.exact_for] if explanation.exact_for else []
    words += ["only contributions are in logits, every other map has a scale of its own"] if extra else []
    if words:
        line = "; ".join(words)
        sheet.footer(figure, f"{line[0].upper()}{line[1:]}.")
    return figure


def picture(
    explanation: Explanation, *, palette: str = "red-blue", style: str | None = None, scale: float | None = None
) -> Figure:
    """What an explanation shows of itself: one image beside its maps, several above theirs.

    Args:
        explanation: Of any number of images and targets.
        palette: "red-blue" or "orange-purple".
        style: "map", "overlay" on the image, or "weights" in colour; what suits the model if not given.
        scale: The colours are linear over (-scale, scale) logits; that of `colour_scale` if not given.

    Raises:
        ValueError: If style or palette is unknown, or there is nothing to show.

    Examples:
        >>> save(picture(model.explain(images)), "why.png")  # doctest: +SKIP
    """
    if len(explanation) == 1:
        return comparison(explanation, palette=palette, style=style, scale=scale)
    return contribution_maps(explanation, palette=palette, style=style, scale=scale)


def top_classes(
    model: CoDANet, images: Tensor, number: int = 3, *, palette: str = "red-blue", style: str | None = None
) -> Figure:
    """Every image with the maps of its most probable classes, on one scale.

    Args:
        model: A CoDA-Net.
        images: [N, C, H, W] in [0, 1].
        number: How many classes of each.
        palette: "red-blue" or "orange-purple".
        style: As in `picture`.

    Raises:
        ValueError: If the model has fewer classes.

    Examples:
        >>> top_classes(model, images, 3)  # doctest: +SKIP
    """
    if not 1 <= number <= model.num_classes:
        raise ValueError(f"number is {number}: it must be from 1 to the model's {model.num_classes} classes")
    top = model.explain(images).logits.topk(number).indices
    return comparison(model.explain(images, top), palette=palette, style=style)


def multi_image(explanation: Explanation, side: int, *, palette: str = "red-blue") -> Figure:
    """An image put together of side x side others, and one map per class, at its class's place (Fig. 7).

    Each map says how much of its positive contribution lies in the right cell.

    Args:
        explanation: Of one image, for side² targets: the classes of its cells, row by row.
        side: Images on a side.
        palette: "red-blue" or "orange-purple".

    Raises:
        ValueError: If the explanation has another number of images or targets.

    Examples:
        >>> multi_image(model.explain(grid, [[3, 0, 7, 9]]), 2)  # doctest: +SKIP
    """
    targets = _targets(explanation)
    if len(explanation) != 1 or side < 1 or targets.shape[1] != side * side:
        raise ValueError(
            f"the explanation has {len(explanation)} images with {targets.shape[1]} targets: a multi-image of {side} x "
            f"{side} is one image with {side * side}, the classes of its cells row by row"
        )
    values = finite_array(explanation.shown)  # [1, (K,) H, W]
    height, width = values.shape[-2:]
    values = values.reshape(-1, height, width)
    shares = positive_share(torch.from_numpy(values), cell_masks(side, height, width)).tolist()
    scale = colour_scale(values)
    maps = heatmap(values, scale, palette)
    sheet = Sheet.of(2 * side, [TITLE] + [TITLE + GAP] * (side - 1), (height, width))
    figure = sheet.figure()

    room = side * sheet.pitch - GAP, sheet.top(side - 1) + sheet.cell[1] - sheet.top(0)
    factor = min(room[0] / width, room[1] / height)
    factor = int(factor) if factor >= 1 else factor
    whole = round(width * factor), round(height * factor)
    left, top = MARGIN + (room[0] - whole[0]) // 2, sheet.top(0) + (room[1] - whole[1]) // 2
    axes = sheet.axes(figure, left, top, whole)
    show(axes, pictures(explanation.images)[0], shrunk=factor < 1)
    write(axes, f"{side} x {side} images")
    cell = height // side, width // side
    for index, target in enumerate(targets[0].tolist()):
        row, column = divmod(index, side)
        top, left = row * cell[0], column * cell[1]
        name = shortened(" ".join(explanation.class_name(target).split()), LETTERS - 4)
        axes = sheet.panel(figure, (row, side + column), maps[index], f"{name} {shares[index]:.0%}")
        axes.add_patch(Rectangle((left - 0.5, top - 0.5), cell[1], cell[0], fill=False, edgecolor=INK, linewidth=0.7))
    sheet.colour_bar(figure, 0, scale, palette, clipped=bool(np.abs(values).max() > scale))
    return figure


def named(explanation: Explanation, image: int, target: int, before: str = "") -> str:
    """'cat p=0.97', on two lines if the name is long."""
    name = before + " ".join(explanation.class_name(target).split())
    probability = f"p={explanation.probabilities[image, target].item():.2f}"
    if before or len(name) + len(probability) < LETTERS:
        room = LETTERS + 4 - len(probability) if before else LETTERS
        return f"{shortened(name, room)} {probability}"
    return f"{shortened(name)}\n{probability}"


def _targets(explanation: Explanation) -> Tensor:
    return explanation.targets.detach().cpu().view(len(explanation), -1)  # [N, K]


def _predicted(explanation: Explanation) -> Tensor:
    return explanation.logits.detach().cpu().argmax(1)  # [N]


def _labelled(explanation: Explanation) -> bool:
    """Whether maps need their class said: several, or not the predicted one."""
    targets = _targets(explanation)
    return targets.shape[1] > 1 or bool((targets[:, 0] != _predicted(explanation)).any())


def _titles(explanation: Explanation, titles: Sequence[str] | None) -> list[str]:
    number = len(explanation)
    if titles is None:
        return [named(explanation, image, int(top)) for image, top in enumerate(_predicted(explanation))]
    if len(titles) != number:
        raise ValueError(f"{len(titles)} titles were given for {number} images: give one for each")
    return list(titles)


def _lines(titles: Sequence[str]) -> int:
    return max((title.count("\n") + 1 for title in titles), default=1)


def _painted_other(name: str, given: Maps, shape: Sequence[int], palette: str) -> NDArray[np.uint8]:
    """[N, K, H, W, 3], every map on its own scale."""
    values = finite_array(given)
    number, count = shape
    if values.ndim not in (3, 4) or values.shape[:-2] not in ((number, count), (number,) if count == 1 else ()):
        wanted = f"[{number}, H, W]" if count == 1 else f"[{number}, {count}, H, W]"
        raise ValueError(f"the maps of {name!r} have shape {list(values.shape)}: they must be {wanted}")
    colours = method_colours(name, values.reshape(-1, *values.shape[-2:]), palette)
    return colours.reshape(number, count, *colours.shape[1:])
