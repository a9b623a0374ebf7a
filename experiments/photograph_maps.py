"""Do the maps of photographs lie on the right photograph: a hybrid's own, others', and those of the plain backbone.

Grids of 2x2 held-out photographs of four classes, all of which both networks classify confidently: every method
explains each of the four classes, and the share of its positive part in the right quarter is counted (eq. 11; chance is
0.25). The plain network is the whole EfficientNet-Lite0 with a linear head, trained on several views of the same
photographs. Slow methods get fewer grids, the first of the same ones. Stopped and started again, it goes on.

    python experiments/photograph_maps.py waste photographs --output figures
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import codanet
from codanet._support.files import replacing
from codanet._support.numbers import for_json
from codanet.attribution import MethodSpec, Registered
from codanet.data import ImageData
from codanet.data.image import decode, to_tensor
from codanet.data.photographs import load_photographs
from codanet.data.split import FolderSplit
from codanet.data.tiling import grids_up_to
from codanet.data.views import Views
from codanet.evaluation.models import fitting, split_seeds
from codanet.metrics import confident_images, localisation, predict
from codanet.models.efficientnet_lite import EfficientNetLite0, efficientnet_lite0
from codanet.models.hybrid import HybridNet
from result import exit_code

GRID = 2  # photographs per side
# methods as the command line has them, and the share of all grids they get
OF_THE_HYBRID = {
    "contributions": 1.0,
    "contributions:window=5:stride=2": 1.0,
    "occlusion5": 1.0,
    "gradcam": 1.0,
    "rise:masks=500": 0.05,
    "lime:samples=64": 0.05,
    "ixg:space=image": 0.1,
    "occlusion9:window=64:stride=64:space=image": 0.05,
}
OF_THE_BACKBONE = {
    "gradcam": 0.5,
    "ixg": 0.1,
    "occlusion9:window=64:stride=64": 0.05,
    "intgrad:steps=10": 0.05,
}


class Plain(nn.Module):
    """The whole backbone under a linear head: what one would train without Dynamic Alignment layers."""

    def __init__(self, backbone: EfficientNetLite0, classes: int):
        super().__init__()
        backbone.classifier = nn.Linear(1280, classes)
        self.backbone = backbone.requires_grad_(False)
        self.normalise = backbone.normalise  # what a removed pixel is, is asked of a direct child

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.backbone(images)
        return logits

    def pooled(self, images: Tensor) -> Tensor:
        """What the head sees of images, [N, 1280]."""
        part = self.backbone
        maps: Tensor = part.head(part.blocks(part.stem(part.normalise(images))))
        return maps.mean((2, 3))


@torch.inference_mode()
def pooled_views(model: Plain, split: FolderSplit, views: Views, number: int) -> Tensor:
    """[views, N, 1280]"""
    parts = []
    for picture, path in enumerate(split.paths):
        photograph = decode(path, 3)
        images = [to_tensor(views.view(photograph, picture, view)) for view in range(number)]
        parts.append(torch.cat([model.pooled(image[None].float() / 255) for image in images]))
    return torch.stack(parts, 1)


def train_head(model: Plain, pooled: Tensor, labels: Tensor, decay: float = 1e-3) -> None:
    """Logistic regression on all views [V, N, 1280], by L-BFGS: the same wherever it starts."""
    inputs, wanted = pooled.flatten(0, 1).clone(), labels.repeat(len(pooled))
    head = model.backbone.classifier
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    head.requires_grad_()
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = cross_entropy(head(inputs), wanted) + decay * head.weight.square().sum() / 2
        loss.backward()
        return loss

    optimiser.step(closure)
    head.requires_grad_(False)


def plain_network(data: ImageData, folder: Path, seed: int, views: int) -> Plain:
    """Trained; what its head learns from is kept in the folder."""
    model = Plain(efficientnet_lite0(), len(data.classes)).eval()
    height, width = data.image_size
    file = folder / f"pooled-{views}-{height}x{width}-{seed}-{data.checksum[:12]}.pt"
    if not file.is_file():
        assert isinstance(data.train, FolderSplit)
        pooled = pooled_views(model, data.train, Views(data.image_size, seed=seed), views)
        with replacing(file) as part:
            torch.save(pooled, part)
    train_head(model, torch.load(file, weights_only=True), data.train.labels)
    return model


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "photograph_maps", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="a hybrid: waste, or a file of weights")
    parser.add_argument("photographs", type=Path, help="the folder that it was trained on")
    parser.add_argument("--output", type=Path, default=Path("figures"))
    parser.add_argument("--grids", type=int, default=100)
    parser.add_argument("--views", type=int, default=4, help="of every photograph, for the plain network's head")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    return exit_code("photograph_maps", lambda: _run(given))


def taken_up(file: Path, described: dict[str, Any]) -> dict[str, Any]:
    """What is in the file, if it was made with the same settings; it is not written over by others."""
    before: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(for_json(described)))
    for key in now.keys() - {"localisation"}:
        if before.get(key) != now[key]:
            raise ValueError(f"{file} has {key} {before.get(key)!r}, now it is {now[key]!r}: choose another --output")
    return before


def _run(given: argparse.Namespace) -> None:
    given.output.mkdir(parents=True, exist_ok=True)
    hybrid = codanet.load(given.model)
    if not isinstance(hybrid, HybridNet):
        raise ValueError(f"{given.model} is no hybrid: give a model that stands on a backbone")
    (seed,) = split_seeds({"hybrid": hybrid})
    data = load_photographs(given.photographs, size=hybrid.image_size, seed=seed)
    pictures = fitting(str(given.model), hybrid, data, train=False)
    models = {"hybrid": hybrid, "backbone": plain_network(data, given.output, seed, given.views)}
    found = {name: predict(model, pictures).scores() for name, model in models.items()}
    for name, scores in found.items():
        print(f"{name}: accuracy {scores.mean:.4f} {scores.interval()} of {len(scores)}", flush=True)
    sure = {name: confident_images(scores) for name, scores in found.items()}
    both = {
        label: [image for image in images if image in set(sure["backbone"].get(label, []))]
        for label, images in sure["hybrid"].items()
    }
    grids = grids_up_to(given.grids, both, GRID, seed=given.seed)
    if grids is None:
        raise ValueError("too few held-out photographs are classified with confidence for one 2x2 grid")
    file = given.output / "photograph_maps.json"
    described: dict[str, Any] = {
        "model": str(given.model),
        "grids": len(grids),
        "seed": given.seed,
        "views": given.views,
        "codanet": codanet.__version__,
        "accuracy": {name: [scores.mean, *scores.interval()] for name, scores in found.items()},
        "localisation": {},
    }
    if file.is_file():
        described = taken_up(file, described)
    for name, methods in (("hybrid", OF_THE_HYBRID), ("backbone", OF_THE_BACKBONE)):
        for method, share in methods.items():
            key = f"{name} {method}"
            if key in described["localisation"]:
                continue
            some = grids.part(0, max(2, round(share * len(grids))))
            started = time.perf_counter()
            attribute = Registered(MethodSpec.parse(method).settings, given.seed)
            shares = localisation(models[name], pictures, some, attribute, grids_at_once=1)
            row = {"mean": shares.mean, "interval_95": shares.interval(), "grids": len(some)}
            row |= {"shares": shares.values.tolist(), "seconds": round(time.perf_counter() - started, 1)}
            described["localisation"][key] = row
            print(f"{key}: {row['mean']:.3f} {row['interval_95']} of {row['grids']} grids", flush=True)
            with replacing(file) as part:
                part.write_text(json.dumps(for_json(described), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
