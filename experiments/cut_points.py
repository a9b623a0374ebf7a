"""How deep should the interpretable part be: the same backbone cut at strides 4, 8, 16 and 32.

The earlier EfficientNet-Lite0 is cut, the more of the network is Dynamic Alignment layers, and the finer are the maps
that are exact; the later, the more does the frozen part know. Each cut is a run of the recipe for photographs, taken up
again where it was interrupted, with the same seeded fifth of every class held out: accuracy, localisation on grids of
2x2 held-out photographs, and the time that a photograph takes to be classified and explained.

    python experiments/cut_points.py photographs --output figures
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import codanet
from codanet._support.numbers import for_json
from codanet.data.photographs import load_photographs
from codanet.data.pictures import Pictures
from codanet.data.tiling import grids_up_to
from codanet.metrics import confident_images, contributions, localisation, predict
from codanet.models.efficientnet_lite import CUTS, IMAGE_SIZE
from codanet.models.network import CoDANet
from codanet.plot import save
from codanet.training import train
from figure import BLUE, RED, plain
from result import exit_code

GRID = 2  # photographs per side
TIMED = 20


def measure(model: CoDANet, pictures: Pictures, most: int, seed: int) -> dict[str, Any]:
    found = predict(model, pictures).scores()
    grids = grids_up_to(most, confident_images(found), GRID, seed=seed)
    # without, too few photographs are classified with confidence
    shares = None if grids is None else localisation(model, pictures, grids, contributions, grids_at_once=1)
    seconds = []
    for image in pictures.read(range(min(TIMED, len(pictures))))[0].split(1):
        started = time.perf_counter()
        model.explain(image)
        seconds.append(time.perf_counter() - started)
    return {
        "accuracy": found.mean,
        "accuracy_interval_95": found.interval(),
        "localisation": math.nan if shares is None else shares.mean,
        "localisation_interval_95": (math.nan, math.nan) if shares is None else shares.interval(),
        "grids": 0 if grids is None else len(grids),
        "milliseconds": 1000 * statistics.median(seconds),
    }


def figure(rows: dict[int, dict[str, Any]], words: str) -> Figure:
    drawn = Figure(figsize=(7, 2.6), layout="constrained")
    places = range(len(rows))
    for axes, key, colour, title in zip(
        drawn.subplots(1, 2), ("accuracy", "localisation"), (BLUE, RED), ("accuracy", "localisation, 2x2"), strict=True
    ):
        plain(axes, title, "stride of the features", "")
        ends = [row[f"{key}_interval_95"] for row in rows.values()]
        axes.vlines(places, [low for low, _ in ends], [high for _, high in ends], color=colour, alpha=0.4)
        axes.plot(places, [row[key] for row in rows.values()], "o-", color=colour)
        axes.set_xticks(places, [str(stride) for stride in rows])
    drawn.supxlabel(words, x=0.01, ha="left", fontsize=7, color="#707070")
    return drawn


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("cut_points", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("photographs", type=Path, help="a folder of them, with a folder a class in it")
    parser.add_argument("--output", type=Path, default=Path("figures"))
    parser.add_argument("--strides", type=int, nargs="+", default=list(CUTS), choices=list(CUTS))
    parser.add_argument("--views", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--grids", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    return exit_code("cut_points", lambda: _run(given))


def _run(given: argparse.Namespace) -> None:
    given.output.mkdir(parents=True, exist_ok=True)
    settings = {"backbone": "efficientnet_lite0", "views": given.views, "epochs": given.epochs, "seed": given.seed}
    data = load_photographs(given.photographs, side=IMAGE_SIZE, seed=given.seed)
    if len(data.classes) < GRID**2:
        raise ValueError(f"{given.photographs} has {len(data.classes)} classes: a 2x2 grid needs {GRID**2} or more")
    rows: dict[int, dict[str, Any]] = {}
    for stride in given.strides:
        folder = given.output / "runs" / f"stride-{stride}"
        run = train(given.photographs, folder, layer=CUTS[stride], maps_every=1000, **settings)
        rows[stride] = measure(codanet.load(run.weights), Pictures(data.val), given.grids, given.seed)
        rows[stride] |= {"layer": CUTS[stride], "hours": run.hours}
        print(f"stride {stride}: {rows[stride]}", flush=True)
    words = f"{len(data.val)} held-out photographs, seed {given.seed}, codanet {codanet.__version__}"
    described = {"n": {"train": len(data.train), "held out": len(data.val)}, "settings": settings, "numbers": rows}
    (given.output / "cut_points.json").write_text(json.dumps(for_json(described), indent=2) + "\n", encoding="utf-8")
    save(figure(rows, words), given.output / "cut_points.png")


if __name__ == "__main__":
    sys.exit(main())
