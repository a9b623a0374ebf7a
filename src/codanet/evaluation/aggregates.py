"""Aggregate maps (Rao, Böhle and Schiele 2022): maps of the best, middle and worst scores on grids, added up."""

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..attribution import method_title
from ..metrics import Scores, find_metric
from .results import Results

GROUPS = ("best", "middle", "worst")
SHARE = 0.05  # each group has this share of the scores, and at least one
ON_GRIDS = ("localisation", "difull", "dipart")


def aggregate_maps(scores: Scores) -> Tensor:
    """The mean coarse map of the best, the middle and the worst twentieth of the scores: [3, B, B], in shares."""
    there = (~scores.values.isnan()).nonzero()[:, 0]
    order = there[scores.values[there].argsort(descending=True, stable=True)]
    number = max(1, round(SHARE * len(order)))
    middle = (len(order) - number) // 2
    groups = order[:number], order[middle : middle + number], order[-number:]
    return torch.stack([scores.extras["blocks"][group].double().mean(0) / 1000 for group in groups])


def aggregate_figure(results: Results, metric: str, model: str) -> Figure:
    """A row of three for every method; the explained cell is in the upper left corner of each."""
    methods = [method for name, method, each in results.scores if (name, each) == (model, metric)]
    size = (4.6, 1.25 * len(methods) + 0.6)
    figure = Figure(size, dpi=200, facecolor="white", layout="constrained")
    grid = figure.subplots(len(methods), 3, squeeze=False)
    for row, method in zip(grid, methods, strict=True):
        scores = results.scores[model, method, metric]
        for axes, group, shares in zip(row, GROUPS, aggregate_maps(scores).numpy(), strict=True):
            axes.imshow(shares / (shares.max() or 1), cmap="Reds", vmin=0, vmax=1, interpolation="nearest")
            cells = round(scores.unit**0.5)
            for line in np.arange(1, cells) * len(shares) / cells - 0.5:
                axes.axhline(line, color="#b8b8b8", linewidth=0.6)
                axes.axvline(line, color="#b8b8b8", linewidth=0.6)
            axes.set_xticks([])
            axes.set_yticks([])
            if row is grid[0]:
                axes.set_title(group, fontsize=8)
        row[0].set_ylabel(method_title(method), fontsize=8)
    number = len(results.scores[model, methods[0], metric])
    figure.suptitle(f"{model}: {find_metric(metric).title}, a twentieth of {number} scores in each group", fontsize=8)
    return figure


def aggregate_figures(results: Results) -> dict[tuple[str, str], Figure]:
    """One for every metric on grids and model that was measured."""
    pairs = dict.fromkeys((metric, model) for model, _, metric in results.scores if metric in ON_GRIDS)
    return {pair: aggregate_figure(results, *pair) for pair in pairs}
