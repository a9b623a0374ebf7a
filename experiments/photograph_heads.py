"""Which layers and which loss to put on a backbone: several heads on the same features, chosen between on photographs
that are held out of the training part.

The seeded fifth of every class that `codanet train` holds out is never looked at; another fifth, of what is left, is
held out here. The frozen stages are run once for a few views; then every head is trained as the recipe for photographs
trains its own, with what its name changes, and measured: accuracy, and on 2x2 grids of the maps of confidently
classified photographs the share of the positive part in the right quarter (eq. 11; chance is 0.25), for its own maps
and for Occlusion on the features.

    python experiments/photograph_heads.py photographs --heads "recipe;head=32/8/3 32/8/1;evidence=0.2"
    python experiments/photograph_heads.py photographs --model waste --grids 100
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

import codanet
from codanet.attribution import Contributions, Occlusion
from codanet.attribution.task import Task
from codanet.data import ImageData, batches
from codanet.data.photographs import load_photographs
from codanet.data.split import held_out
from codanet.data.tiling import grids_up_to, tiled
from codanet.metrics import confident_images
from codanet.metrics.localisation import cell_shares
from codanet.metrics.predictions import Predictions
from codanet.metrics.scores import Scores
from codanet.models.efficientnet_lite import IMAGE_SIZE
from codanet.models.hybrid import HybridNet
from codanet.training.loss import (
    at_temperature,
    class_weights,
    classification_loss,
    contributions,
    contributions_term,
    evidence_term,
    wrong_classes,
)
from codanet.training.muon import Muon
from codanet.training.photos import build, calibrate, featured
from codanet.training.recipe import load_recipe
from codanet.training.schedule import learning_rate_factor, temperature_at
from codanet.training.settings import Settings, changed
from result import exit_code

GRID = 2  # photographs per side
HELD_OUT = 0.2  # of the training part
RECIPE = load_recipe("photos", backbone="efficientnet_lite0").settings
BATCH = RECIPE.batch_size


@dataclasses.dataclass(frozen=True)
class Head:
    """What may differ from the recipe."""

    head: str = RECIPE.head
    evidence: float = RECIPE.wrong_evidence  # weight of the last layer's evidence for wrong classes
    pulled: float = 0.0  # weight of the positive contributions of features to a wrong class
    share: float = 0.25  # of the images of a batch that the term before it sees
    after: float = 0.0  # the part of the updates after which it is added
    smooth: int = 1  # the side of the squares that features are averaged over before they enter
    temperature: float = RECIPE.temperature or 64.0
    epochs: int = 8


def head_of(words: str) -> Head:
    """ "head=64/8/1,evidence=0.2": the recipe with these changes; "recipe" alone changes nothing."""
    changes = dict(part.split("=", 1) for part in words.split(",") if "=" in part)
    kinds = {name: type(value) for name, value in dataclasses.asdict(Head()).items()}
    return Head(**{name: kinds[name](value) for name, value in changes.items()})


def trained(data: ImageData, model: HybridNet, head: Head, settings: Settings) -> None:
    """As the recipe does: Muon, its learning rates and rising T, and more weight on rare classes."""
    optimiser = Muon([p for p in model.parameters() if p.requires_grad], settings.learning_rate)
    weights = class_weights(data.train.labels, model.num_classes, settings.class_weights)
    generator, total = torch.Generator().manual_seed(0), head.epochs * (len(data.train) // BATCH)
    step = 0
    model.train()
    for epoch in range(head.epochs):
        order = data.train.order(torch.Generator().manual_seed(epoch), epoch)
        for some in order[: len(order) // BATCH * BATCH].split(BATCH):
            maps, labels = data.train.__getitems__(some.tolist())
            done = step / total
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * learning_rate_factor(settings, epoch, done)
            temperature = temperature_at(settings, model.temperature, done)
            features = encoded(model, maps, head)
            last = model.features(features)
            logits = at_temperature(model.pool(last), model, temperature)
            loss = classification_loss(logits, labels, weights)
            loss = loss + head.evidence * evidence_term(last, labels, temperature)
            if head.pulled and done >= head.after:
                few = max(1, round(head.share * len(labels)))
                wrong = wrong_classes(labels[:few], model.num_classes, generator)[:, None]
                rows = model.align(features[:few])[1].class_rows(wrong)[:, 0]
                against = contributions_term(contributions(rows, features[:few]))
                loss = loss + head.pulled * against * (model.temperature / temperature)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step += 1
    model.eval()


def encoded(model: HybridNet, maps: Tensor, head: Head) -> Tensor:
    if head.smooth > 1:
        maps = avg_pool2d(maps.float(), head.smooth, 1, head.smooth // 2, count_include_pad=False)
    return model.encode_maps(maps)


@torch.no_grad()
def measured(model: HybridNet, data: ImageData, head: Head, grids: int, seed: int) -> dict[str, Any]:
    """On the held-out photographs, or, if these were kept, on their features; grids are of the one or the other."""
    kept = torch.cat([images for images, _ in batches(data.val, BATCH)])
    labels = data.val.labels

    def features(of: Tensor) -> Tensor:
        return encoded(model, model.maps(of.float() / 255) if of.dtype == torch.uint8 else of, head)

    logits = torch.cat([model(features(some)) for some in kept.split(BATCH)])
    log_odds = logits.gather(1, labels[:, None])[:, 0].double()
    found = Predictions(torch.arange(len(labels)), labels, logits.double(), log_odds).scores()
    sure = confident_images(found)
    chosen = grids_up_to(grids, sure, GRID, seed=seed)
    row: dict[str, Any] = {"accuracy": found.mean, "n": len(labels)}
    row |= {"cross-entropy": float(classification_loss(logits, labels)), "sure": sum(map(len, sure.values()))}
    row["grids"] = 0 if chosen is None else len(chosen)
    if chosen is None:
        return row
    shares: dict[str, list[Tensor]] = {}
    for images, classes in zip(chosen.indices, chosen.classes, strict=True):
        for name, maps in maps_of(model, features(tiled(kept[images], GRID)), classes).items():
            shares.setdefault(name, []).append(cell_shares(maps[None], GRID).values)
    for name, values in shares.items():
        scores = Scores("localisation", torch.cat(values), ("",) * chosen.indices.numel(), unit=GRID**2)
        row |= {name: scores.mean, f"{name}, interval": scores.interval()}
    return row


def maps_of(model: HybridNet, grid: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """Maps [K, h, w] of the classes [K] of a grid's features [1, C', h, w]: the model's own, the same by the windows
    that Occlusion covers, and Occlusion's."""
    task = Task(model, grid, classes[None], torch.zeros(1, grid.shape[1], 1, 1))
    methods = {
        "own": Contributions(),
        "own, by windows": Contributions(5, 2),
        "occlusion": Occlusion(window=5, stride=2),
    }
    return {name: method.maps(task)[0] for name, method in methods.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "photograph_heads", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("photographs", type=Path, help="a folder of them, with a folder a class in it")
    parser.add_argument("--heads", default="recipe", help="separated by semicolons; what each changes, by commas")
    parser.add_argument("--model", help="measure this one on what its training held out, instead of training heads")
    parser.add_argument("--output", type=Path, default=Path("figures"))
    parser.add_argument("--views", type=int, default=5)
    parser.add_argument("--grids", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args(arguments)
    return exit_code("photograph_heads", lambda: _run(given))


def _run(given: argparse.Namespace) -> None:
    torch.set_num_threads(given.threads)
    folder = given.output / "photograph-heads"
    folder.mkdir(parents=True, exist_ok=True)
    asked = {"views": given.views, "seed": given.seed, "threads": given.threads}
    settings = changed(load_recipe(given.photographs, backbone="efficientnet_lite0").settings, asked)
    data = load_photographs(given.photographs, side=IMAGE_SIZE, seed=given.seed)
    if given.model:
        hybrid = codanet.load(given.model)
        if not isinstance(hybrid, HybridNet):
            raise ValueError(f"{given.model} is no hybrid: give a model that stands on a backbone")
        print(json.dumps({"name": given.model, **measured(hybrid, data, Head(), given.grids, given.seed)}))
        return
    data = held_out(data, round(len(data.train) * HELD_OUT), given.seed)
    data = featured(build(settings, data), data, settings, folder, print)
    for words in given.heads.split(";"):
        head = head_of(words)
        torch.manual_seed(given.seed)
        model = build(changed(settings, {"head": head.head, "temperature": head.temperature}), data)
        calibrate(model, data.train, settings)
        started = time.process_time()
        trained(data, model, head, settings)
        row = {"name": words, **dataclasses.asdict(head), "seconds": round(time.process_time() - started)}
        row |= measured(model, data, head, given.grids, given.seed)
        print(json.dumps(row), flush=True)
        with (folder / "rows.jsonl").open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(row | {"seed": given.seed, "codanet": codanet.__version__}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
