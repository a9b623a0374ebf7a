"""Loss and accuracy over the epochs of a run."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..plot import png

INK, TRAIN, HELD_OUT = "#1d2126", "#92a0b0", "#b2182b"


def training_curves(history: Sequence[dict[str, float]]) -> bytes:
    """A PNG of two panels; `history` is what `sources.epochs` reads."""
    figure = Figure((8.4, 2.9), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    _lines(left, history, "loss", (("loss_epoch", "training", TRAIN), ("val_loss", "held out", HELD_OUT)))
    _lines(right, history, "accuracy", (("train_accuracy", "training", TRAIN), ("val_accuracy", "held out", HELD_OUT)))
    right.yaxis.set_major_formatter("{x:.0%}")
    return png(figure)


def _lines(axes: Axes, history: Sequence[dict[str, float]], title: str, series: Sequence[tuple[str, str, str]]) -> None:
    for name, label, colour in series:
        points = [(line["epoch"], line[name]) for line in history if name in line]
        if points:
            marker = "o" if len(points) < 30 else None
            axes.plot(
                *zip(*points, strict=True), color=colour, label=label, linewidth=1.8, marker=marker, markersize=3.5
            )
    last = max((line["epoch"] for line in history), default=1)
    axes.set_xlim((0.5, last + 0.5) if last < 30 else (1, last))
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_xlabel("epoch", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=8, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.5, color="#e3e7ec")
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
