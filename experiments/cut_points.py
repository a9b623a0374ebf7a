"""How deep should the interpretable part be: the same backbone cut at strides 4, 8, 16 and 32.

The earlier EfficientNet-Lite0 is cut, the more of the network is Dynamic Alignment layers, and the finer are the maps
that are exact; the later, the more does the frozen part know. On a folder of photographs, a seeded fifth of every class
held out: accuracy, localisation on grids of 2x2 held-out photographs, and the time that a photograph takes to be
classified and explained.

    python experiments/cut_points.py photographs --output figures
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import codanet
from codanet._support.progress import progress_bar
from codanet.data.features import FeatureCache, extract
from codanet.data.folder import HELD_OUT_FRACTION, Listing, class_names, listing
from codanet.data.image import decode, to_tensor
from codanet.data.pictures import Pictures
from codanet.data.split import FolderSplit, stratified
from codanet.data.tiling import make_grids, possible_grids
from codanet.data.views import Views
from codanet.metrics.localisation import localisation
from codanet.metrics.maps import contributions
from codanet.metrics.predictions import confident_images, predict
from codanet.models.architectures import Layer
from codanet.models.efficientnet_lite import CUTS, IMAGE_SIZE, efficientnet_lite0
from codanet.models.hybrid import HybridNet
from codanet.plot import save
from codanet.training.loss import classification_loss
from codanet.training.muon import Muon
from figure import BLUE, RED, plain

COARSEST = 16  # Dynamic Alignment layers of stride 2 bring finer features here
UNITS, RANK, TEMPERATURE = 32, 8, 64.0
BATCH, LEARNING_RATE, RISE = 64, 0.05, 0.2  # one cycle: up for a fifth of the updates, down to zero
SIZE = (IMAGE_SIZE, IMAGE_SIZE)
TIMED = 20


def head(stride: int, classes: int) -> tuple[Layer, ...]:
    """A layer of stride 2 for every halving up to stride 16, two of stride 1, and the classes."""
    halvings = max(0, (COARSEST // stride).bit_length() - 1)
    steps = [2] * halvings + [1, 1]
    return (*(Layer(UNITS, RANK, 3, step) for step in steps), Layer(classes, RANK, 1))


def build(stride: int, classes: tuple[str, ...], seed: int) -> HybridNet:
    layer = CUTS[stride]
    torch.manual_seed(seed)
    return HybridNet(
        efficientnet_lite0().up_to(layer),
        head(stride, len(classes)),
        image_size=SIZE,
        temperature=TEMPERATURE,
        class_names=classes,
        backbone="efficientnet_lite0",
        layer=layer,
    )


def features(model: HybridNet, photographs: Listing, views: int, seed: int, folder: Path) -> FeatureCache:
    """Of every view of every photograph, computed once."""
    drawn = Views(SIZE, seed=seed)

    def maps(view: int, picture: int) -> Tensor:
        image = to_tensor(drawn.view(decode(photographs.paths[picture], 3), picture, view))
        return model.maps(image[None].float() / 255)[0]

    shape = maps(0, 0).shape
    cache = FeatureCache(folder, {"layer": model.layer}, views, len(photographs.paths), shape)
    with progress_bar(f"features of {model.layer}", len(cache.missing()), unit="views") as advance:
        extract(cache, maps, advance)
    return cache


def train(model: HybridNet, cache: FeatureCache, labels: Tensor, views: int, epochs: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    number = len(labels)
    first = torch.randperm(number, generator=generator)[: min(number, 500)]
    model.calibrate(cache.read(torch.zeros_like(first), first))
    optimiser = Muon(model.layers.parameters(), LEARNING_RATE)
    updates = epochs * math.ceil(number / BATCH)
    done = 0
    with progress_bar(f"training on {model.layer}", epochs, unit="epochs") as advance:
        for epoch in range(epochs):
            view = (torch.randperm(number, generator=generator) + epoch) % views
            for batch in torch.randperm(number, generator=generator).split(BATCH):
                share = (done + 0.5) / updates
                factor = share / RISE if share < RISE else (1 - share) / (1 - RISE)
                optimiser.param_groups[0]["lr"] = LEARNING_RATE * factor
                loss = classification_loss(model(model.encode_maps(cache.read(view[batch], batch))), labels[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                done += 1
            advance(1)


def measure(model: HybridNet, held: FolderSplit, grids: int, seed: int) -> dict[str, float]:
    pictures = Pictures(held)
    found = predict(model, pictures).scores()
    sure = confident_images(found)
    number = min(grids, possible_grids([len(images) for images in sure.values()], 4))
    if not number:
        raise ValueError(
            f"at {model.layer} too few held-out photographs are classified with confidence for one 2x2 grid: give more "
            "photographs or more --epochs"
        )
    shares = localisation(model, pictures, make_grids(sure, number, 2, seed=seed), contributions, grids_at_once=1)
    images = pictures.read(range(min(TIMED, len(held))))[0]
    seconds = []
    for image in images.split(1):
        started = time.perf_counter()
        model.explain(image)
        seconds.append(time.perf_counter() - started)
    return {
        "accuracy": found.mean,
        "localisation": shares.mean,
        "grids": number,
        "milliseconds": 1000 * sorted(seconds)[len(seconds) // 2],
    }


def figure(rows: dict[int, dict[str, float]], words: str) -> Figure:
    drawn = Figure(figsize=(7, 2.6), layout="constrained")
    places = range(len(rows))
    for axes, key, colour, title in zip(
        drawn.subplots(1, 2), ("accuracy", "localisation"), (BLUE, RED), ("accuracy", "localisation, 2x2"), strict=True
    ):
        plain(axes, title, "stride of the features", "")
        axes.plot(places, [row[key] for row in rows.values()], "o-", color=colour)
        axes.set_xticks(places, [str(stride) for stride in rows])
    drawn.supxlabel(words, x=0.01, ha="left", fontsize=7, color="#707070")
    return drawn


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("cut_points", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("photographs", type=Path, help="a folder of them, with a folder a class in it")
    parser.add_argument("--output", type=Path, default=Path("figures"))
    parser.add_argument("--strides", type=int, nargs="+", default=list(CUTS), choices=list(CUTS))
    parser.add_argument("--views", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--grids", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    try:
        _run(given)
    except (ValueError, OSError) as error:
        print(f"cut_points: {error}", file=sys.stderr)
        return 2
    return 0


def _run(given: argparse.Namespace) -> None:
    given.output.mkdir(parents=True, exist_ok=True)
    classes = class_names(given.photographs)
    whole = listing(given.photographs, classes)
    kept, held = (whole.part(indices) for indices in stratified(whole.labels, HELD_OUT_FRACTION, given.seed))
    rows: dict[int, dict[str, float]] = {}
    for stride in given.strides:
        model = build(stride, classes, given.seed)
        with tempfile.TemporaryDirectory(dir=given.output) as folder:
            cache = features(model, kept, given.views, given.seed, Path(folder) / "features")
            train(model, cache, kept.labels, given.views, given.epochs, given.seed)
        rows[stride] = measure(model.eval(), FolderSplit(held.paths, held.labels, SIZE), given.grids, given.seed)
        print(f"stride {stride}: " + ", ".join(f"{key} {value:.4g}" for key, value in rows[stride].items()), flush=True)
    words = f"{len(held.paths)} held-out photographs, seed {given.seed}, codanet {codanet.__version__}"
    described = {"n": {"train": len(kept.paths), "held out": len(held.paths)}, "seed": given.seed, "numbers": rows}
    (given.output / "cut_points.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    save(figure(rows, words), given.output / "cut_points.png")


if __name__ == "__main__":
    sys.exit(main())
