"""What a model can do, beyond one number: by class, by how sure it is, on worse pictures, and where its maps lie."""

from __future__ import annotations

from collections.abc import Callable

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from .._support.html import text
from ..data.corruption import CORRUPTIONS
from ..data.tiling import grids_up_to
from ..metrics.calibration import Reliability, reliability
from ..metrics.localisation import localisation
from ..metrics.maps import contributions
from ..metrics.predictions import confident_images
from ..models.classifier import logits_of, probabilities
from ..models.self_explaining import SelfExplaining
from ..plot import png
from . import sections
from .findings import Findings, wilson

IMAGES, GRIDS, SEED = 150, 25, 0  # looked at for corruptions and localisation, in an order of that seed
READ_AT_ONCE = 100
INK, PAPER, BLUE = "#1d2126", "#92a0b0", "#2166ac"
BY_CLASS = (
    "'found' is the share of a class's images that were recognised, with its 95% interval (Wilson), 'true' the share "
    "of images called that class that belong to it."
)
CALIBRATION = (
    "The share of right decisions over the probability they were given, in 15 bins; on the diagonal a probability "
    "comes true as often as it says. Bars show how many decisions each bin holds."
)
CORRUPTED = "The same {number} images, as they are and made worse; intervals are 95% (Wilson)."
LOCALISED = (
    "On grids of {side}x{side} images that it is sure of, the share of the positive contributions to a class "
    "that lies on its own image; chance is {chance:.0%}. A quick look: codanet evaluate measures it on more."
)


def card(
    model: nn.Module, findings: Findings | None, whose: str = "", *, images: int = IMAGES, done: Callable[[int], object]
) -> str:
    """The sections of the card; nothing without images. `done` hears of every image that was made worse."""
    if findings is None:
        return ""
    return (
        sections.section(f"Class by class{whose}", _classes(findings), BY_CLASS)
        + _calibration(model, findings, whose)
        + _corruptions(model, findings, whose, images, done)
        + _localisation(model, findings, whose)
    )


def _classes(findings: Findings) -> str:
    rows = []
    for place, name in enumerate(findings.classes):
        right, there = int(findings.confusion[place, place]), int(findings.confusion[place].sum())
        called = int(findings.confusion[:, place].sum())
        rows.append(
            (
                name,
                there,
                _share(right, there),
                _interval(right, there),
                _share(right, called),
            )
        )
    return sections.table(("class", "images", "found", "95% interval", "true"), rows)


def _share(right: int, number: int) -> str:
    return f"{right / number:.1%}" if number else "–"


def _interval(right: int, number: int) -> str:
    return "{:.1%} to {:.1%}".format(*wilson(right, number)) if number else "–"


def _calibration(model: nn.Module, findings: Findings, whose: str) -> str:
    measured = reliability(probabilities(model, findings.predictions.logits), findings.predictions.labels)
    too = "too sure" if measured.excess > 0 else "not sure enough"
    words = (
        f"<p>Expected calibration error {measured.error:.3f} over {findings.number} decisions; on average it is "
        f"{text(too)} by {abs(measured.excess):.3f}.</p>"
    )
    drawing = sections.plot("Reliability", png(reliability_figure(measured)))
    return sections.section(f"Calibration{whose}", words + drawing, CALIBRATION)


def reliability_figure(measured: Reliability) -> Figure:
    """Accuracy over confidence, and below it how many decisions there are."""
    figure = Figure((4.2, 4.0), layout="constrained", facecolor="white")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    bins = len(measured.counts)
    middles = ((torch.arange(bins) + 0.5) / bins).numpy()
    upper.plot([0, 1], [0, 1], color=PAPER, linestyle=(0, (4, 3)), linewidth=1)
    upper.plot(measured.confidence.numpy(), measured.accuracy.numpy(), "o-", color=BLUE, linewidth=1.6, markersize=4)
    upper.set(xlim=(0, 1), ylim=(0, 1.02))
    upper.set_ylabel("share that is right", fontsize=9, color=INK)
    lower.bar(middles, measured.counts.numpy(), width=0.9 / bins, color=PAPER)
    lower.set_xlabel("probability of the predicted class", fontsize=9, color=INK)
    lower.set_ylabel("decisions", fontsize=9, color=INK)
    for axes in (upper, lower):
        axes.tick_params(labelsize=8, colors=INK)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _corruptions(model: nn.Module, findings: Findings, whose: str, images: int, done: Callable[[int], object]) -> str:
    indices = _some(findings, images)
    if not indices:
        return ""
    changes: list[tuple[str, str, Callable[[Tensor], Tensor]]] = [("as they are", "", lambda batch: batch)]
    changes += CORRUPTIONS
    right = torch.zeros(len(changes), dtype=torch.long)
    number = 0
    for start in range(0, len(indices), READ_AT_ONCE):
        batch, labels, _ = findings.pictures.read(indices[start : start + READ_AT_ONCE])
        for row, (_, _, change) in enumerate(changes):
            right[row] += (logits_of(model, change(batch)).argmax(1) == labels).sum()
            done(len(labels))
        number += len(labels)
    rows = [
        (name, setting, _share(count, number), _interval(count, number))
        for (name, setting, _), count in zip(changes, right.tolist(), strict=True)
    ]
    return sections.section(
        f"On worse pictures{whose}",
        sections.table(("images", "", "accuracy", "95% interval"), rows, words=2),
        CORRUPTED.format(number=number),
    )


def corrupted_images(findings: Findings | None, images: int = IMAGES) -> int:
    """How often `done` will hear of an image."""
    return len(_some(findings, images)) * (1 + len(CORRUPTIONS)) if findings else 0


def _some(findings: Findings, images: int) -> list[int]:
    """Indices of readable images in a seeded order."""
    readable = findings.predictions.indices
    order = torch.randperm(len(readable), generator=torch.Generator().manual_seed(SEED))
    chosen: list[int] = readable[order[:images]].tolist()
    return chosen


def _localisation(model: nn.Module, findings: Findings, whose: str) -> str:
    if not isinstance(model, SelfExplaining):
        words = "It has no maps of its own; codanet evaluate measures those of other methods."
        return sections.section(f"Where its maps lie{whose}", f"<p class='missing'>{words}</p>")
    sure = confident_images(findings.predictions.scores())
    grids = grids_up_to(GRIDS, sure, 3, seed=SEED) or grids_up_to(GRIDS, sure, 2, seed=SEED)
    if grids is None:
        words = "There are too few images it is sure of for a grid of them, so localisation was not measured."
        return sections.section(f"Where its maps lie{whose}", f"<p class='missing'>{words}</p>")
    scores = localisation(model, findings.pictures, grids, contributions, grids_at_once=1)
    low, high = scores.interval()
    value = f"{scores.mean:.3f}"
    between = f", 95% interval {low:.3f} to {high:.3f}" if len(grids) > 1 else ""
    shown = sections.figures([(value, f"localisation of its own maps, {len(grids)} grids{between}")])
    words = LOCALISED.format(side=grids.size, chance=1 / grids.size**2)
    return sections.section(f"Where its maps lie{whose}", shown, words)
