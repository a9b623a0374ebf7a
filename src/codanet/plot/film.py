"""A GIF or MP4 in, the same frames beside their contribution maps out, on one colour scale."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .._support.files import expanded
from .._support.progress import progress_bar
from ..data.film import Frame, frames, writing
from ..data.image import fit, size_for, to_tensor
from ..models.explanation import Explanation
from ..models.network import CoDANet
from . import card, colour_scale, heatmap, painted
from .cards import enlarged
from .colours import usual_style
from .gallery import class_number

BATCH = 16  # frames explained at a time
SAMPLES = 64  # frames, evenly over time, that the colour scale is taken from
GIF_SHADES, GIF_GREYS = 64, 8  # how many of its 256 colours are for the map, and for the page's greys


@dataclass(frozen=True)
class ExplainedVideo:
    path: Path
    frames: int
    seconds: float
    target: int
    class_name: str
    predicted: int  # frames in which the target is the predicted class
    scale: float  # v of the colour scale (-v, v), in logits


def explain_video(
    model: CoDANet,
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    target: int | str | None = None,
    palette: str = "red-blue",
    style: str | None = None,
    scale: float | None = None,
    start: float = 0.0,
    end: float | None = None,
    progress: bool = True,
) -> ExplainedVideo:
    """Write the frames of a GIF or film beside their contribution maps for one class, as GIF or MP4 by the suffix.

    Without `target` it is the class predicted most often. All maps share one colour scale, taken from up to 64 frames
    spread evenly over the clip. The clip is read twice, a few frames at a time; how long each is shown is kept.
    """
    asked = None if target is None else class_number(target, model)
    output = expanded(output)
    size = size_for(model)

    drawing = _Drawing(size, palette, style)
    sample, votes, count, seconds = _Sample(), torch.zeros(model.num_classes, dtype=torch.long), 0, 0.0
    with progress_bar("looking", None, shown=progress, unit="frames") as advance:
        for batch in _batches(frames(source, start=start, end=end), drawing, model):
            inputs = _inputs(batch, model)
            with torch.no_grad():
                votes += torch.bincount(model(inputs).argmax(1).cpu(), minlength=model.num_classes)
            for each, picture in zip(batch, inputs, strict=True):
                sample.add(each.cut, picture)
                count, seconds = count + 1, seconds + each.seconds
            advance(len(batch))
    chosen = int(votes.argmax()) if asked is None else asked

    explained = [model.explain(some, chosen) for some in torch.stack(sample.pictures).split(BATCH)]
    if scale is None:
        scale = colour_scale(torch.cat([part.shown for part in explained]))
    cards = [
        drawing.card(sample.images[index], explained[index // BATCH].part(index % BATCH), scale)
        for index in range(0, len(sample.images), BATCH // 4)
    ]
    with (
        writing(output, cards[0].size, drawing.colours(cards, style or usual_style(explained[0]))) as writer,
        progress_bar("explaining", count, shown=progress, unit="frames") as advance,
    ):
        for batch in _batches(frames(source, start=start, end=end), drawing, model):
            explanation = model.explain(_inputs(batch, model), chosen)
            for index, each in enumerate(batch):
                writer.write(drawing.card(each.cut, explanation.part(index), scale), each.seconds)
            advance(len(batch))
    name = model.class_names[chosen] if model.class_names else str(chosen)
    return ExplainedVideo(output, count, seconds, chosen, name, int(votes[chosen]), scale)


class _Sample:
    """Every s-th frame, with s doubled whenever there are too many."""

    def __init__(self) -> None:
        self.pictures: list[Tensor] = []
        self.images: list[Image.Image] = []
        self.every, self.seen = 1, 0

    def add(self, image: Image.Image, picture: Tensor) -> None:
        if self.seen % self.every == 0:
            self.pictures.append(picture)
            self.images.append(image)
        self.seen += 1
        if len(self.pictures) > SAMPLES:
            self.pictures, self.images, self.every = self.pictures[::2], self.images[::2], 2 * self.every


class _Drawing:
    def __init__(self, size: tuple[int, int], palette: str, style: str | None):
        self.palette, self.style = palette, style
        blank = enlarged(np.zeros((*size, 3), np.uint8))
        self.cell = blank.height, blank.width

    def cut(self, image: Image.Image) -> Image.Image:
        """The part of the frame that the model sees, in the frame's own pixels."""
        return fit(image, self.cell)

    def card(self, cut: Image.Image, explanation: Explanation, scale: float) -> Image.Image:
        target = int(explanation.targets[0])
        title = f"{explanation.class_name(target)} p={explanation.probabilities[0, target].item():.2f}"
        maps = painted(explanation, self.style, self.palette, scale)[0, 0]
        bar = None if self.style == "weights" else scale
        note = explanation.exact_for
        return card([np.asarray(cut), maps], [title, "contributions"], scale=bar, palette=self.palette, note=note)

    def colours(self, cards: list[Image.Image], style: str) -> list[tuple[int, int, int]]:
        """256 for all frames: those of the map and the page as they are, and the best for the pictures."""
        fixed = [(255, 255, 255)]
        fixed += [(grey, grey, grey) for grey in np.linspace(26, 224, GIF_GREYS).round().astype(int).tolist()]
        if style == "map":
            shades = heatmap(np.linspace(-1, 1, GIF_SHADES)[None], 1.0, self.palette)[0, 0]
            fixed += [(int(red), int(green), int(blue)) for red, green, blue in shades]
        mosaic = Image.new("RGB", (cards[0].width, cards[0].height * len(cards)))
        for index, each in enumerate(cards):
            mosaic.paste(each, (0, index * each.height))
        colours = mosaic.quantize(256 - len(fixed), method=Image.Quantize.MEDIANCUT).getpalette() or []
        room = min(len(colours), 3 * (256 - len(fixed)))
        return fixed + [(colours[i], colours[i + 1], colours[i + 2]) for i in range(0, room, 3)]


@dataclass(frozen=True)
class _Fitted:
    """What is kept of a frame, which itself may have a thousand times as many pixels."""

    cut: Image.Image  # to be shown
    picture: Tensor  # uint8 [C, H, W], for the model
    seconds: float


def _fitted(frame: Frame, drawing: _Drawing, model: CoDANet) -> _Fitted:
    mode = "RGB" if model.image_channels == 3 else "L"
    image = frame.image if frame.image.mode == mode else frame.image.convert(mode)
    return _Fitted(drawing.cut(frame.image), to_tensor(fit(image, size_for(model))), frame.seconds)


def _batches(source: Iterator[Frame], drawing: _Drawing, model: CoDANet) -> Iterator[list[_Fitted]]:
    """Frames are fitted and dropped one by one."""
    fitted = (_fitted(frame, drawing, model) for frame in source)
    while batch := list(islice(fitted, BATCH)):
        yield batch


def _inputs(batch: list[_Fitted], model: CoDANet) -> Tensor:
    return torch.stack([each.picture for each in batch]).to(model.device, model.dtype) / 255
