"""Many picture files explained: read ahead by threads, explained in batches, drawn and written by threads behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from .._support.errors import DataError
from ..attribution import MethodSpec, attribute
from ..data.image import read_image, size_for
from ..models.explanation import Explanation, Target, resolve_targets
from ..models.feature_explanation import FeatureExplanation
from ..models.hybrid import HybridNet
from ..models.layer_contributions import layer_contributions
from ..models.network import CoDANet
from . import card, colour_scale, comparison, contribution_maps, heatmap, method_colours, painted
from . import pictures as rgb
from .maps import named
from .sheet import CELL, number, shortened
from .strips import LAYERS_IN_A_ROW, strip

BATCH, BATCH_NUMBERS = 32, 8 << 20  # images, and numbers in their maps, explained at a time
READERS, WRITERS = 2, 2

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Explained:
    """One file: why the model says what it says of it, or what was wrong with the file."""

    path: Path
    explanation: Explanation | None = None  # one image, K targets
    others: dict[str, Tensor] = field(default_factory=dict)  # maps of other methods [1, K, H, W] by title
    layers: list[Tensor] = field(default_factory=list)  # contributions from every layer to the first target [1, h, w]
    error: str = ""


def explain_files(
    model: CoDANet,
    paths: Sequence[Path],
    *,
    targets: Sequence[int | str] = (),
    top: int = 1,
    methods: Sequence[str] = (),
    layers: bool = False,
    dots: int = 0,
) -> Iterator[Explained]:
    """In the order of the paths; for the `targets`, or else the `top` classes of each picture.

    `dots`: photographs under a hybrid's map are about so large, as they are drawn, instead of as the model sees them.

    `methods` to compare with are names of `codanet.attribution.METHODS`, settings changed or not: rise:masks=2000. What
    cannot be read is yielded with its error.
    """
    others_wanted = [MethodSpec.parse(method) for method in methods]
    for spec in others_wanted:
        spec.settings.check(model)
    chosen = [class_number(target, model) for target in targets]
    if not 1 <= top <= model.num_classes:
        raise ValueError(f"top is {top}: it must be from 1 to the model's {model.num_classes} classes")
    height, width = size_for(model)
    count = len(chosen) or top
    finer = max(1, round(dots / max(height, width))) if isinstance(model, HybridNet) else 1  # times as large
    numbers = model.image_channels * height * width * (2 * count + (finer**2 if finer > 1 else 0))
    size = max(1, min(BATCH, BATCH_NUMBERS // numbers))

    def explained(batch: list[tuple[Path, Tensor, Tensor]]) -> Iterator[Explained]:
        images = torch.stack([image for _, image, _ in batch]).to(model.device, model.dtype)
        wanted: Tensor | None = torch.tensor(chosen).expand(len(images), count) if chosen else None
        if not chosen and count > 1:
            with torch.no_grad():
                wanted = model(images).topk(count).indices
        explanation = model.explain(images, wanted)
        if isinstance(explanation, FeatureExplanation):
            explanation = replace(explanation, photographs=torch.stack([shown for _, _, shown in batch]))
        classes = explanation.targets.view(len(images), -1)
        others = {}
        for spec in others_wanted:
            others[spec.title] = attribute(model, images, classes, spec.settings)  # [N, K, H, W], from the same passes
        from_layers = layer_contributions(model, images, classes[:, 0]) if layers else []
        for index, (path, _, _) in enumerate(batch):
            one = slice(index, index + 1)
            yield Explained(
                path,
                explanation.part(index),
                {title: maps[one] for title, maps in others.items()},
                [maps[one] for maps in from_layers],
            )

    read = partial(_read, channels=model.image_channels, size=(height, width), finer=finer)
    waiting: list[Explained | tuple[Path, Tensor, Tensor]] = []
    for each in ahead(read, paths, READERS, 2 * size):
        waiting.append(each)
        if len(waiting) >= size:
            yield from _in_order(waiting, explained)
            waiting = []
    yield from _in_order(waiting, explained)


def _in_order(
    waiting: list[Explained | tuple[Path, Tensor, Tensor]],
    explained: Callable[[list[tuple[Path, Tensor, Tensor]]], Iterator[Explained]],
) -> Iterator[Explained]:
    batch = [each for each in waiting if not isinstance(each, Explained)]
    results = explained(batch) if batch else iter(())
    for each in waiting:
        yield each if isinstance(each, Explained) else next(results)


def _read(path: Path, channels: int, size: tuple[int, int], finer: int) -> Explained | tuple[Path, Tensor, Tensor]:
    """The picture as the model sees it, and as it is shown: of a photograph more is to be seen."""
    try:
        image = read_image(path, size=size, channels=channels)
        if finer == 1:
            return path, image, image
        return path, image, read_image(path, size=(finer * size[0], finer * size[1]), channels=channels)
    except DataError as error:
        return Explained(path, error=str(error))


def class_number(target: int | str, model: CoDANet) -> int:
    """Of a class given by name, by number, or by a number in letters."""
    names = model.class_names or ()
    if isinstance(target, str) and target not in names and target.isdecimal():
        target = int(target)
    given: Target = ["all"] if target == "all" else target  # a name here, not every class
    chosen, _ = resolve_targets(given, 1, model.num_classes, model.class_names)
    assert chosen is not None
    return int(chosen)


def ahead(work: Callable[[T], R], items: Iterable[T], threads: int, window: int) -> Iterator[R]:
    """work(item) for every item, in order, at most `window` of them begun and not yet taken."""
    pool, begun = ThreadPoolExecutor(threads), deque[Future[R]]()
    try:
        for item in items:
            begun.append(pool.submit(work, item))
            if len(begun) >= window:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def drawn(
    explained: Explained, *, palette: str = "red-blue", style: str | None = None, scale: float | None = None
) -> Image.Image:
    """One file as a card: the picture as the model saw it, its maps, those of other methods, and the layers'."""
    explanation = explained.explanation
    if explanation is None:
        raise ValueError(f"{explained.path} was not explained ({explained.error}): there is nothing to draw")
    targets = explanation.targets.view(-1).tolist()
    predicted = int(explanation.logits.argmax())
    scale = colour_scale(explanation.shown) if scale is None else scale
    panels, titles = [rgb(explanation.images)[0]], [named(explanation, 0, predicted).replace("\n", " ")]
    maps = painted(explanation, style, palette, scale)[0]
    for index, target in enumerate(targets):
        only = len(targets) == 1 and target == predicted
        panels.append(maps[index])
        titles.append("contributions" if only else named(explanation, 0, target, "for "))
        for title, given in explained.others.items():
            panels.append(method_colours(title, given[0, index], palette)[0])
            titles.append(title)
    for layer, values in enumerate(explained.layers[1:], start=1):
        limit = colour_scale(values)
        panels.append(heatmap(values, limit, palette)[0])
        titles.append(f"layer {layer} ±{number(limit)}")
    bar = None if style == "weights" else scale
    side = max(panels[0].shape) if explanation.exact_for else CELL
    return card(panels, titles, scale=bar, palette=palette, side=side, note=explanation.exact_for)


def page(
    explained: Sequence[Explained], *, palette: str = "red-blue", style: str | None = None, scale: float | None = None
) -> Figure:
    """A few files on one page, all their contribution maps on one scale."""
    known = [each for each in explained if each.explanation is not None]
    parts = [each.explanation for each in known if each.explanation is not None]
    if not parts:
        raise ValueError("no picture was explained: there is nothing to draw")
    whole = parts[0].joined(parts)
    layers = bool(known[0].layers)
    said, targets = whole.logits.argmax(1).tolist(), whole.targets.view(len(whole), -1)[:, 0].tolist()
    words = [  # over layers stands the class that they lead to
        named(whole, i, target, "for ") if layers and target != said[i] else named(whole, i, said[i])
        for i, target in enumerate(targets)
    ]
    titles = words if layers else None
    if len(known) > 1:
        titles = [f"{shortened(each.path.name)}\n{words[i]}" for i, each in enumerate(known)]
    if layers:
        first = whole.layer if isinstance(whole, FeatureExplanation) else "image"
        names = [first, *(f"layer {layer}" for layer in range(1, len(known[0].layers)))]
        maps = {name: torch.cat([each.layers[i] for each in known]) for i, name in enumerate(names)}
        return strip(whole.images, maps, titles=titles, palette=palette, columns=LAYERS_IN_A_ROW)
    others = {title: torch.cat([each.others[title] for each in known]) for title in known[0].others}
    if others or len(known) == 1 or whole.targets.ndim == 2:
        return comparison(whole, others, titles=titles, palette=palette, style=style, scale=scale)
    return contribution_maps(whole, titles=titles, palette=palette, style=style, scale=scale)


def record(explained: Explained, picture: Path | None, top: int = 1) -> dict[str, Any]:
    """One file as plain values, for JSON; a target's positive and negative contributions and bias make its logit."""
    if explained.explanation is None:
        return {"image": str(explained.path), "error": explained.error}
    explanation, logits = explained.explanation, explained.explanation.logits[0].double()

    def entry(target: int) -> dict[str, Any]:
        logit = logits[target].item()
        probability = torch.sigmoid(logits[target]).item()
        return {"class": explanation.class_name(target), "number": target, "probability": probability, "logit": logit}

    targets = explanation.targets.view(-1).tolist()
    parts = explanation.contributions.reshape(len(targets), -1).double()
    sums = zip(parts.clamp(min=0).sum(1).tolist(), parts.clamp(max=0).sum(1).tolist(), strict=True)
    return {
        "image": str(explained.path),
        "classes": [entry(target) for target in logits.topk(top).indices.tolist()],
        "targets": [
            {**entry(target), "positive": positive, "negative": negative, "bias": explanation.bias}
            for target, (positive, negative) in zip(targets, sums, strict=True)
        ],
        "picture": None if picture is None else str(picture),
    }
