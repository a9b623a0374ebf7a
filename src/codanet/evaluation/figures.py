"""The paper's figures of an evaluation: box plots of localisation, removal curves, the sanity check."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from ..attribution import MethodSpec, method_title
from ..metrics import Scores, find_metric
from ..plot import heatmap, save
from .aggregates import aggregate_figures
from .published import Published
from .results import Results
from .sanity_maps import SANITY_IMAGES, file_name, read_sanity_maps

INK, FAINT = "#1a1a1a", "#b8b8b8"
# Paul Tol's muted scheme for the post-hoc methods, the red of the contribution maps for the model's own
COLOURS = {
    "contributions": "#b2182b",
    "grad": "#ddaa33",
    "ixg": "#999933",
    "intgrad": "#44aa99",
    "gradcam": "#332288",
    "deeplift": "#aa4499",
    "occlusion5": "#66bbee",
    "occlusion9": "#2277bb",
    "rise": "#117733",
    "lime": "#774411",
    "random": "#8a8a8a",
}
OTHERS = ("#004488", "#997700", "#994455", "#6699cc", "#ee99aa", "#555555")
STYLES = {"ixg": (0, (5, 2)), "deeplift": (0, (1, 1.5))}  # which often lie on each other


def draw(results: Results, models: Mapping[str, nn.Module], published: Published | None) -> list[Path]:
    """Every figure that there is something to draw for, as PNG beside the table."""
    measured = {metric for _, _, metric in results.scores}
    figures = {}
    if "localisation" in measured:
        figures["localisation"] = localisation_figure(results, models, published)
    for name, pair in (("removal", ("removal-least", "removal-most")), ("insertion", ("insertion", "deletion"))):
        if shown := [metric for metric in pair if metric in measured]:
            figures[name] = curves_figure(results, shown, models, published)
    if "sanity" in measured:
        figures["sanity"] = sanity_figure(results)
    paths = [save(figure, results.folder / f"{name}.png") for name, figure in figures.items()]
    for model, method, metric in results.scores:
        if metric == "sanity" and (figure := sanity_maps_figure(results.folder, model, method)):
            paths.append(save(figure, results.folder / f"sanity-{file_name(model, method)}.png"))
    for (metric, model), figure in aggregate_figures(results).items():
        paths.append(save(figure, results.folder / f"{metric}-{file_name(model, 'maps')}.png"))
    return paths


def localisation_figure(
    results: Results, models: Mapping[str, nn.Module] | None = None, published: Published | None = None
) -> Figure:
    """A box per method: quartiles, whiskers from 5% to 95%, the mean as a number; a panel per model."""
    panels = _panels(results, "localisation")
    widths = [max(2.4, 0.62 * len(methods)) for methods in panels.values()]
    figure = Figure((sum(widths) + 1.1 + 0.3 * len(panels), 3.5), dpi=200, facecolor="white", layout="constrained")
    axes_row = figure.subplots(1, len(panels), sharey=True, squeeze=False, width_ratios=widths)[0]
    beside = ""
    for axes, (model, methods) in zip(axes_row, panels.items(), strict=True):
        chance = 1.0
        for place, method in enumerate(methods):
            scores = results.scores[model, method, "localisation"]
            chance = 1 / scores.unit
            _box(axes, place, scores, _colour(method, methods))
            network = (models or {}).get(model)
            if published and (entry := published.entry("localisation", network, method)):
                beside = published.temperature("localisation", network)
                _published_box(axes, place, entry)
        axes.axhline(chance, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        beyond = axes.get_yaxis_transform()  # x in shares of the axes
        axes.text(1.01, chance, f"chance\n{chance:.2f}", transform=beyond, fontsize=7, color=INK, va="center")
        _words(axes, model, [method_title(method) for method in methods])
        axes.set(ylim=(-0.02, 1.09), xlim=(-0.7, len(methods) - 0.3), yticks=np.linspace(0, 1, 6))
    grids = {f"{len(scores) // scores.unit}" for key, scores in results.scores.items() if key[2] == "localisation"}
    axes_row[0].set_ylabel("share of positive attribution\nin the right cell", color=INK, fontsize=9)
    what = f"Localisation, {' / '.join(sorted(grids))} grids of {results.provenance['data']['name']}"
    below = "\nnumbers: means" + (f"; open boxes: published for {beside}" if beside else "")
    figure.suptitle(what + below, fontsize=9, color=INK)
    return figure


def _box(axes: Axes, place: int, scores: Scores, colour: str) -> None:
    low, q25, median, q75, high = scores.quantiles(0.05, 0.25, 0.5, 0.75, 0.95)
    if np.isnan(median):
        axes.text(place, 0.5, "all failed", rotation=90, fontsize=7, color=INK, ha="center", va="center")
        return
    stats = {"med": median, "q1": q25, "q3": q75, "whislo": low, "whishi": high, "fliers": []}
    axes.bxp(
        [stats],
        positions=[place],
        widths=0.56,
        showfliers=False,
        patch_artist=True,
        boxprops={"facecolor": colour, "edgecolor": colour, "alpha": 0.85, "linewidth": 1},
        medianprops={"color": "white", "linewidth": 1.6},
        whiskerprops={"color": colour, "linewidth": 1.1},
        capprops={"color": colour, "linewidth": 1.1},
        zorder=3,
    )
    axes.text(place, high + 0.015, f"{scores.mean:.2f}", fontsize=7.5, color=INK, ha="center", va="bottom", zorder=5)


def _published_box(axes: Axes, place: int, entry: Mapping[str, float]) -> None:
    left, right = place - 0.36, place + 0.36
    for value in (entry["q25"], entry["q75"]):
        axes.plot([left, right], [value, value], color=INK, linewidth=0.8, zorder=4)
    for side in (left, right):
        axes.plot([side, side], [entry["q25"], entry["q75"]], color=INK, linewidth=0.8, zorder=4)
    axes.plot([left, right], [entry["median"]] * 2, color=INK, linewidth=1.4, zorder=4)


def curves_figure(
    results: Results,
    metrics: Sequence[str],
    models: Mapping[str, nn.Module] | None = None,
    published: Published | None = None,
) -> Figure:
    """Mean probability of the true class over the share of pixels removed or inserted; bands are 95% intervals."""
    names = list(dict.fromkeys(model for model, _, metric in results.scores if metric in metrics))
    size = (3.5 * len(metrics) + 1.35, 2.9 * len(names) + 0.35)
    figure = Figure(size, dpi=200, facecolor="white", layout="constrained")
    grid = figure.subplots(len(names), len(metrics), squeeze=False, sharex="col", sharey="col")
    handles: dict[str, Any] = {}
    beside = ""
    for row, model in zip(grid, names, strict=True):
        for axes, metric in zip(row, metrics, strict=True):
            methods = [method for name, method, each in results.scores if (name, each) == (model, metric)]
            for method in methods:
                scores = results.scores[model, method, metric]
                handles[method_title(method)] = _curve(axes, scores, method, methods)
                network = (models or {}).get(model)
                if published and (entry := published.entry(metric, network, method)):
                    beside = published.temperature(metric, network)
                    share = np.linspace(0, 25, len(entry["curve"]))
                    axes.plot(share, entry["curve"], color=_colour(method, methods), linestyle=(0, (1, 1)), linewidth=1)
            number = len(results.scores[model, methods[0], metric]) if methods else 0
            _words(axes, f"{model}: {find_metric(metric).title.lower()}, n = {number}", None)
            axes.margins(x=0)
    for column, metric in zip(grid.T, metrics, strict=True):
        bottom = column[0].get_ylim()[0] if metric == "removal-least" else 0  # where little happens it is shown larger
        column[0].set_ylim(max(0, min(0.9, bottom)), 1.01)
    for axes, metric in zip(grid[-1], metrics, strict=True):
        axes.set_xlabel(f"pixels {'inserted' if metric == 'insertion' else 'removed'} (%)", color=INK, fontsize=9)
    for row in grid:
        row[0].set_ylabel("probability of the true class", color=INK, fontsize=9)
    _legend(figure, handles, f"dotted: published\nfor {beside}" if beside else None)
    return figure


def _curve(axes: Axes, scores: Scores, method: str, methods: Sequence[str]) -> Any:
    assert scores.points is not None
    share, colour = (100 * scores.points).numpy(), _colour(method, methods)
    low, high = scores.curve_interval()
    axes.fill_between(share, low.numpy(), high.numpy(), color=colour, alpha=0.13, linewidth=0)
    style = STYLES.get(_registered(method), "-")
    own = method == "contributions"
    width, order = (2.2, 4) if own else (1.3, 3)
    return axes.plot(share, scores.curve().numpy(), color=colour, linewidth=width, linestyle=style, zorder=order)[0]


def sanity_figure(results: Results) -> Figure:
    """Rank correlation with the trained network's maps, after each step of the cascade."""
    panels = _panels(results, "sanity")
    figure = Figure((3.9 * len(panels) + 1.3, 3.3), dpi=200, facecolor="white", layout="constrained")
    row = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    handles = {}
    for axes, (model, methods) in zip(row, panels.items(), strict=True):
        steps: tuple[str, ...] = ()
        for method in methods:
            scores = results.scores[model, method, "sanity"]
            curve = np.concatenate([[1.0], scores.curve("spearman").numpy()])
            style = STYLES.get(_registered(method), "-")
            handles[method_title(method)] = axes.plot(
                curve, color=_colour(method, methods), marker="o", markersize=3, linewidth=1.5, linestyle=style
            )[0]
            kept = read_sanity_maps(results.folder, model, method)
            steps = kept[2] if kept else tuple(str(step + 1) for step in range(len(curve) - 1))
        axes.axhline(0, color=FAINT, linewidth=0.8)
        number = len(results.scores[model, methods[0], "sanity"])
        _words(axes, f"{model}, n = {number}", None)
        axes.set_xticks(range(len(steps) + 1), ["trained", *steps], rotation=45, ha="right", fontsize=7)
        axes.set_xlabel("re-initialised from the output up to", color=INK, fontsize=9)
    row[0].set_ylabel("rank correlation with\nthe trained network's map", color=INK, fontsize=9)
    _legend(figure, handles)
    return figure


def sanity_maps_figure(folder: Path, model: str, method: str) -> Figure | None:
    """The image, its map, and its map after each layer more that was re-initialised; every map on its own scale."""
    kept = read_sanity_maps(folder, model, method)
    if kept is None:
        return None
    images, maps, steps = kept
    number, columns = min(SANITY_IMAGES, len(images)), maps.shape[1] + 1
    figure = Figure((0.95 * columns + 0.2, 0.95 * number + 0.75), dpi=200, facecolor="white", layout="constrained")
    grid = figure.subplots(number, columns, squeeze=False)
    for image in range(number):
        picture = images[image].permute(1, 2, 0)
        shown = picture if picture.shape[2] == 3 else picture.mean(2, keepdim=True).expand(-1, -1, 3)
        panels = [shown.numpy(), *(_map_colours(each) for each in maps[image])]
        for axes, panel in zip(grid[image], panels, strict=True):
            axes.imshow(panel, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            for spine in axes.spines.values():
                spine.set(linewidth=0.4, color=FAINT)
    for axes, title in zip(grid[0], ("image", "trained", *steps), strict=True):
        axes.set_title(title.replace(" … ", "\n… "), fontsize=6.5, color=INK)
    figure.suptitle(
        f"{method_title(method)} on {model}, layers re-initialised from the output", fontsize=8.5, color=INK
    )
    return figure


def _map_colours(values: Tensor) -> Any:
    return heatmap(values)[0] if values.isfinite().all() else np.full((*values.shape, 3), 128, dtype=np.uint8)


def _panels(results: Results, metric: str) -> dict[str, list[str]]:
    """Model to its methods."""
    panels: dict[str, list[str]] = {}
    for model, method, each in results.scores:
        if each == metric:
            panels.setdefault(model, []).append(method)
    return panels


def _colour(method: str, methods: Sequence[str]) -> str:
    """That of its entry in the registry for the plain method, or else for the first of those with other settings."""
    plain = _registered(method)
    alike = [each for each in methods if _registered(each) == plain]
    if plain in COLOURS and method == (plain if plain in alike else alike[0]):
        return COLOURS[plain]
    unknown = [each for each in methods if each not in COLOURS]
    return OTHERS[unknown.index(method) % len(OTHERS)]


def _registered(method: str) -> str:
    """The method's name in the registry, whatever its settings."""
    spec = MethodSpec.find(method)
    return spec.method.name if spec else method


def _words(axes: Axes, title: str, labels: list[str] | None) -> None:
    text = axes.set_title(title, fontsize=9, color=INK)
    text.set_parse_math(False)
    if labels is not None:
        axes.set_xticks(range(len(labels)), labels, rotation=35, ha="right", rotation_mode="anchor")
    axes.tick_params(labelsize=8, colors=INK, width=0.6, length=3)
    axes.grid(axis="y", color="#ebebeb", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set(color=FAINT, linewidth=0.8)


def _legend(figure: Figure, handles: Mapping[str, Any], title: str | None = None) -> None:
    lines, names = list(handles.values()), list(handles)
    figure.legend(lines, names, loc="outside right upper", frameon=False, fontsize=8, title=title, title_fontsize=7)
