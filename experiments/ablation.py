"""The same network trained again and again with one setting varied: accuracy, localisation and maps of each.

What is trained, and for how long, is a recipe of codanet with a few changes; what it leaves is kept in OUTPUT/runs,
where another experiment with the same settings finds it, and an interrupted one goes on.
"""

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import codanet
from codanet import CoDANet
from codanet.data import ImageData
from codanet.data.pictures import Pictures
from codanet.data.tiling import grids_up_to
from codanet.metrics import Attribute, Scores, confident_images, contributions, localisation, predict
from codanet.plot import colour_scale
from codanet.training import train
from codanet.training.recipe import Recipe, load_recipe
from codanet.training.settings import Settings, changed
from figure import BLUE, GREY, RED, grey, plain, side_by_side, signed, table
from result import Outcome, Setting

GRID = 3  # images per side
SHOWN = 5
CHANCE = 1 / GRID**2

# as the paper trained: T constant, and no second term in the loss but λ; the lowest of its ranks, in float32
CONSTANT = {
    "model": "s_coda_r1_8",
    "temperature": 1000,
    "temperature_from": None,
    "wrong_evidence": 0.0,
    "grow_until": 0.65,
    "precision": "32-true",
}

# recipe and changes of the quick and of the full setting; the paper's own recipes take a GPU
BASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "digits": ("digits", {"epochs": 6, "batch_size": 64}, {"epochs": 40}),
    "mnist": (
        "digits",
        {"data": "mnist", "image_size": 14, "epochs": 1, "batch_size": 64},
        {"data": "mnist", "image_size": 14, "epochs": 2, "batch_size": 64},
    ),
    "cifar10": ("cifar10-cpu", {**CONSTANT, "epochs": 2}, CONSTANT),
}
GRIDS = {"digits": (30, 30), "mnist": (100, 250), "cifar10": (50, 500)}  # quick and full


def base(setting: Setting) -> Settings:
    recipe, quick, full = BASES[setting.data]
    common: dict[str, Any] = {"seed": setting.seed, "maps_every": 1000, "threads": torch.get_num_threads()}
    if setting.data != "digits":
        common["source"] = setting.source
    return changed(load_recipe(recipe).settings, {**common, **setting.pick(quick, full)})


@dataclass(frozen=True)
class Run:
    """One trained network and what was measured of it."""

    label: str
    settings: Settings
    model: CoDANet
    predictions: Scores  # accuracy per image
    localisation: Scores | None  # None if the network is sure of too few images to fill a grid

    def described(self) -> dict[str, Any]:
        share, number = self.predictions.mean, len(self.predictions)
        numbers: dict[str, Any] = {
            "label": self.label,
            "accuracy": share,
            "accuracy_standard_error": math.sqrt(share * (1 - share) / number),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "localisation": None,
        }
        if self.localisation is not None:
            numbers["localisation"] = self.localisation.mean
            numbers["localisation_interval_95"] = self.localisation.interval()
            numbers["grids"] = len(self.localisation) // self.localisation.unit
        return numbers


def trained(setting: Setting, settings: Settings) -> CoDANet:
    """The network of these settings, from OUTPUT/runs if it has been trained before."""
    name = (
        f"{settings.model}-{settings.rescale}-T{settings.temperature:g}-lambda{settings.regularisation:g}-"
        f"{settings.epochs}-epochs-seed{settings.seed}"
    )
    folder = setting.output / "runs" / settings.data / name
    quiet = setting.quick and not sys.stderr.isatty()
    return codanet.load(train(Recipe(setting.name, settings), folder, quiet=quiet).weights)


def localise(
    model: torch.nn.Module,
    pictures: Pictures,
    found: Scores,
    wanted: int,
    seed: int,
    attribute: Attribute = contributions,
) -> Scores | None:
    """On as many grids as the images that the model is sure of fill, up to `wanted`."""
    grids = grids_up_to(wanted, confident_images(found), GRID, seed=seed)
    return None if grids is None else localisation(model, pictures, grids, attribute)


def measure(setting: Setting, label: str, settings: Settings, data: ImageData) -> Run:
    model, pictures = trained(setting, settings), Pictures(data.val)
    found = predict(model, pictures).scores()
    scores = localise(model, pictures, found, setting.pick(*GRIDS[setting.data]), setting.seed)
    return Run(label, settings, model, found, scores)


def compare(setting: Setting, cases: Mapping[str, Mapping[str, Any]]) -> tuple[list[Run], ImageData]:
    """A run for every case, label to changed settings."""
    start = base(setting)
    data = setting.images(size=start.image_size)
    return [measure(setting, label, changed(start, changes), data) for label, changes in cases.items()], data


def outcome(setting: Setting, runs: Sequence[Run], data: ImageData, title: str, varied: str) -> Outcome:
    settings = dataclasses.asdict(runs[0].settings)
    shared = {key: settings[key] for key in ("model", "epochs", "batch_size", "learning_rate", "schedule")}
    described = [run.described() for run in runs]
    orders = {measure: order(described, measure) for measure in ("accuracy", "localisation")}
    numbers = {"varied": varied, "base": shared, "chance": CHANCE, "runs": described, "orders": orders}
    counts = {"test images": len(runs[0].predictions)}
    if all(run.localisation is not None for run in runs):
        counts["grids of 3x3"] = min(run["grids"] for run in described)
    return Outcome(counts, data.image_size, numbers, draw(runs, data, title, varied))


def order(described: Sequence[Mapping[str, Any]], measure: str) -> list[str]:
    """The labels of the runs from the lowest to the highest figure, without those that have none."""
    measured = [run for run in described if run[measure] is not None]
    return [run["label"] for run in sorted(measured, key=lambda run: run[measure])]


def shown_images(runs: Sequence[Run], data: ImageData) -> tuple[Tensor, Tensor]:
    """Test images of different classes that all networks classify correctly."""
    right = torch.stack([run.predictions.values for run in runs]).prod(0)
    chosen = []
    for label in range(len(data.classes)):
        mine = ((data.val.labels == label) & (right == 1)).nonzero()
        chosen += mine[:1, 0].tolist()
    images, labels = data.val.__getitems__((chosen or [0])[:SHOWN])
    return images.float() / 255, labels


def draw(runs: Sequence[Run], data: ImageData, title: str, varied: str) -> Figure:
    images, labels = shown_images(runs, data)
    rows, names = [grey(images)], ["image"]
    for run in runs:
        maps = run.model.explain(images, labels).pixels
        rows.append(signed(maps, colour_scale(maps)))
        names.append(run.label)
    height = 0.8 * len(rows) + 0.8
    figure = Figure((9.4, max(3.4, height)), layout="constrained")
    left, right = side_by_side(figure, 1, 1.15)
    upper, lower = left.subplots(2, 1, sharex=True)
    places = range(len(runs))
    plain(upper, f"localisation, {GRID}x{GRID} grids (95% interval)", "", "")
    upper.axhline(CHANCE, color=GREY, lw=0.8, ls=":")
    for place, run in zip(places, runs, strict=True):
        if run.localisation is not None:
            low, high = run.localisation.interval()
            upper.plot([place, place], [low, high], color=RED, lw=1.2)
    points = [(place, run.localisation.mean) for place, run in zip(places, runs, strict=True) if run.localisation]
    line = "-" if len(runs) > 2 else ""  # two cases are no trend
    if points:  # else no network is sure of enough images
        upper.plot(*zip(*points, strict=True), f"o{line}", color=RED, ms=4, lw=1)
    upper.set_ylim(0, 1)
    plain(lower, "accuracy on the test images (standard error)", varied, "")
    shares = [run.predictions.mean for run in runs]
    errors = [run.described()["accuracy_standard_error"] for run in runs]
    lower.errorbar(places, shares, errors, fmt=f"s{line}", color=BLUE, ms=4, lw=1, elinewidth=1.2)
    lower.set_ylim(max(0, min(shares) - max(0.02, max(errors))), min(1, max(shares) + max(0.02, max(errors))))
    lower.set_xticks(list(places), [run.label.split(" = ")[-1] for run in runs])
    lower.margins(x=0.1)
    lower.yaxis.set_major_formatter("{x:.1%}")
    table(rows, [data.classes[label] for label in labels.tolist()], names, figure=right)
    figure.suptitle(title, fontsize=10)
    return figure
