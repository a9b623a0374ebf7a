"""Table 1 at an equal budget: S-CoDA and its peers, each trained on CIFAR-10 for the same time on one core.

    python experiments/peers.py                       half an hour each, eight networks: four hours, and the evaluation
    python experiments/peers.py --networks resnet20   only one of them; its row joins those that are there
    python experiments/peers.py --minutes 1 --grids 4 --images 16        to see that it works
    python experiments/peers.py --networks vgg19_bn --steps 624          the updates of another machine's half hour
    python experiments/peers.py --data tiny-imagenet --root tiny-imagenet-20.zip --networks tiny_coda,resnet20

Every network sees the same augmented images, small ones first (half the side, growing to the whole in the first 65% of
the time), with one objective, one-vs-all, and a learning rate that rises and falls once over the time it has. CoDA-Nets
are trained with Muon, a T that rises from 1000 to 80000 and a term against evidence for wrong classes, the others with
Adam. Some training images are held out; the test images are looked at once, by the evaluation. A network without maps
of its own gets the post-hoc method that localises best on two grids of held-out images. Time is the processor's, so
that other work on the machine costs nobody a step. Stopped and started again, it goes on from the last minute.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn.functional import interpolate

import codanet
from codanet._support.files import replacing
from codanet._support.messages import nearest
from codanet.attribution import Registered, settings_of
from codanet.cli.parser import positive
from codanet.data import batches, load_data
from codanet.data.augmentation import augmentation
from codanet.data.pictures import Pictures
from codanet.data.split import held_out
from codanet.data.tiling import TooFewImages, make_grids
from codanet.evaluation import Results, evaluate
from codanet.metrics import confident_images, localisation, predict
from codanet.models.network import CoDANet
from codanet.models.peers import PEERS, Peer, create_peer
from codanet.models.self_explaining import SelfExplaining
from codanet.plot import save
from codanet.training.loss import objective
from codanet.training.muon import Muon
from result import exit_code

CODA_NETS = {
    "s_coda_r1_8": "S-CoDA, rank 1/8",
    "s_coda_r1_4": "S-CoDA, rank 1/4",
    "tiny_coda": "CoDA for 64x64, ranks 4 and 8",
}
TITLES = CODA_NETS | {name: peer.title for name, peer in PEERS.items()}
METRICS = ("accuracy", "localisation", "removal-least")
GRID, CHOICE = 3, 2  # images a side; grids on which a network's method is chosen
BATCH, GROWN = 128, 0.65
TEMPERATURES = (1000.0, 80000.0)  # of a CoDA-Net, from the first image to the last
EVIDENCE = 0.2  # weight of what speaks for wrong classes in a CoDA-Net's loss
RATES = {"muon": 0.05, "adam": 3e-3}  # at their highest
KEEP_SECONDS = 60.0


@dataclass(frozen=True)
class DataSet:
    """What networks are trained and judged on."""

    name: str
    side: int
    holdout: int
    networks: tuple[str, ...]
    post_hoc: tuple[str, ...]  # that may explain a network without maps of its own

    @property
    def stem(self) -> str:
        """Of the names of what is written."""
        return "peers" if self.name == "cifar10" else f"peers-{self.name}"


DATA_SETS = {
    "cifar10": DataSet(
        "cifar10", 32, 5000, ("s_coda_r1_8", "s_coda_r1_4", *PEERS), ("gradcam", "occlusion9", "ixg", "intgrad")
    ),
    # without Occlusion, which takes minutes a map
    "tiny-imagenet": DataSet("tiny-imagenet", 64, 1000, ("tiny_coda", *PEERS), ("gradcam", "ixg", "intgrad")),
}


@dataclass
class Progress:
    """What a run needs to be taken up again, besides the weights."""

    seconds: float = 0.0  # of the processor
    step: int = 0
    accuracy: float = math.nan  # on the images that were held out


def untrained(name: str, classes: tuple[str, ...], side: int) -> CoDANet | Peer:
    torch.manual_seed(0)
    if name in PEERS:
        return create_peer(name, num_classes=len(classes), image_size=(side, side), class_names=classes)
    return codanet.create_model(name, temperature=TEMPERATURES[1], class_names=classes, image_size=(side, side))


def at(share: float, model: nn.Module, full: int) -> tuple[float, int, float]:
    """The learning rate's factor, the side of the pictures, `full` in the end, and T, at a share of the time."""
    rising = 0.25
    factor = share / rising if share < rising else 0.5 * (1 + math.cos(math.pi * (share - rising) / (1 - rising)))
    side = full if share >= GROWN else int(full / 2 * (1 + share / GROWN)) // 4 * 4
    low, high = TEMPERATURES
    temperature = low * (high / low) ** share if isinstance(model, CoDANet) else 1.0
    return max(factor, 1e-3), side, temperature


def trained(name: str, data: Any, folder: Path, seconds: float, steps: int | None = None) -> tuple[Path, Progress]:
    """The weights, after `seconds` of training in all, or after so many `steps`; from where it was."""
    full: int = data.image_size[0]
    model, file, weights = untrained(name, data.classes, full), folder / "last.pt", folder / "model.safetensors"
    kind = "muon" if isinstance(model, CoDANet) else "adam"
    optimiser: torch.optim.Optimizer = (
        Muon(model.parameters(), RATES[kind]) if kind == "muon" else torch.optim.Adam(model.parameters(), RATES[kind])
    )
    progress = Progress()

    def share() -> float:
        return progress.step / steps if steps else progress.seconds / seconds

    if file.is_file():
        state = torch.load(file, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        progress = Progress(**state["progress"])
    augmented, kept = augmentation("flip-crop-cutout", (full, full)), progress.seconds
    began_at = progress.seconds
    model.train()
    while share() < 1:
        for images, labels in batches(data.train, BATCH, shuffle=True, seed=progress.step, drop_last=True):
            began = time.process_time()
            factor, side, temperature = at(share(), model, full)
            pictures = augmented(images.float() / 255, torch.Generator().manual_seed(progress.step))
            if side < full:
                pictures = interpolate(pictures, side, mode="bilinear", antialias=True)
                temperature *= (side / full) ** 2 if isinstance(model, CoDANet) else 1.0
            for group in optimiser.param_groups:
                group["lr"] = RATES[kind] * factor
            evidence = EVIDENCE if isinstance(model, CoDANet) else 0.0
            loss, _ = objective(
                cast(CoDANet, model), pictures, labels, temperature=temperature, wrong_evidence=evidence
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            progress.step += 1
            progress.seconds += time.process_time() - began
            if share() >= 1:
                break
            if progress.seconds - kept > KEEP_SECONDS:
                _keep(file, model, optimiser, progress)
                kept = progress.seconds
    if math.isnan(progress.accuracy) or progress.seconds > began_at:
        model.eval()
        with torch.no_grad():
            right = [(model(i.float() / 255).argmax(1) == n).float() for i, n in batches(data.val, 250)]
        progress.accuracy = float(torch.cat(right).mean())
        _keep(file, model, optimiser, progress)
    facts = {"experiment": "peers", "seconds": progress.seconds, "steps": progress.step, "held out": len(data.val)}
    codanet.save(cast(CoDANet, model.eval()), weights, facts)
    return weights, progress


def _keep(file: Path, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress) -> None:
    state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "progress": asdict(progress)}
    with replacing(file) as part:
        torch.save(state, part)


def choice(model: nn.Module, data: Any, post_hoc: Sequence[str]) -> dict[str, float]:
    """What may explain the network, with its localisation on a few grids of held-out images: its own maps alone, if it
    makes some, or all post-hoc methods; the first, if the network is sure of too few images."""
    if isinstance(model, SelfExplaining):
        return {"contributions": math.nan}
    pictures = Pictures(data.val)
    try:
        grids = make_grids(confident_images(predict(model, pictures).scores()), CHOICE, GRID)
    except TooFewImages:
        return {post_hoc[0]: math.nan}
    methods = {name: Registered(settings_of(name)) for name in post_hoc}
    return {name: localisation(model, pictures, grids, method).mean for name, method in methods.items()}


def judged(method: str, weights: Path, folder: Path, options: argparse.Namespace) -> Results:
    """On the test images; without localisation if the network is sure of too few of them for so many grids."""
    asked: dict[str, Any] = {"grids": options.grids, "images": options.images, "root": options.root}
    asked |= {"points": 17, "quiet": True}
    try:
        return evaluate([str(weights)], options.data, [method], METRICS, folder / "evaluation", **asked)
    except TooFewImages as error:
        print(f"{folder.name}: {error}")
        metrics = [metric for metric in METRICS if metric != "localisation"]
        return evaluate([str(weights)], options.data, [method], metrics, folder / "evaluation", **asked)


def row(name: str, progress: Progress, results: Results, parameters: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"network": TITLES[name], "parameters": parameters}
    facts |= {"hours": round(progress.seconds / 3600, 3), "steps": progress.step, "held_out": progress.accuracy}
    for line in results.rows:
        key = {"removal-least": "removal"}.get(line.metric, line.metric)
        facts |= {key: line.mean, f"{key}_interval": [line.low, line.high], f"{key}_n": line.n}
        if line.metric == "removal-least":
            facts |= {"maps": line.method, "ms_per_map": 1000 * line.seconds_per_map}
    return facts


def table(rows: list[dict[str, Any]]) -> str:
    heads = ["network", "parameters", "hours", "accuracy", "maps", "localisation"]
    heads += ["removal, least first", "ms/map"]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for facts in sorted(rows, key=lambda facts: -facts["accuracy"]):
        cells = [facts["network"], f"{facts['parameters'] / 1e6:.2f} M", f"{facts['hours']:.2f}"]
        cells += [_spread(facts, "accuracy"), facts["maps"]]
        cells.append(_spread(facts, "localisation") if "localisation" in facts else "sure of too few images")
        cells += [_spread(facts, "removal"), f"{facts['ms_per_map']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\nSeed 0; 95% bootstrap intervals; each followed by n."


def _spread(facts: dict[str, Any], name: str) -> str:
    low, high = facts[f"{name}_interval"]
    return f"{facts[name]:.3f} ({low:.3f} to {high:.3f}; {facts[f'{name}_n']})"


def picture(rows: list[dict[str, Any]]) -> Figure:
    """Accuracy over localisation: what is good lies to the upper right."""
    figure = Figure((5.2, 4.0), dpi=200, facecolor="white", layout="constrained")
    axes = figure.subplots()
    for facts in rows:
        if "localisation" not in facts:
            continue
        own = facts["maps"] == "contributions"
        x, y = facts["localisation"], 100 * facts["accuracy"]
        axes.scatter([x], [y], s=30, color="#b2182b" if own else "#2277bb", marker="o" if own else "s", zorder=3)
        side, place = ("right", (-5, 0)) if x > 0.5 else ("left", (5, 0))  # towards the middle
        axes.annotate(facts["network"], (x, y), place, textcoords="offset points", ha=side, va="center", fontsize=7)
    axes.axvline(1 / 9, color="#b8b8b8", linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_xlabel("localisation (3x3 grids); dashed: chance", fontsize=9)
    axes.set_ylabel("accuracy (%), test images", fontsize=9)
    axes.set_title("red: maps of its own; blue: the best post-hoc method", fontsize=8)
    axes.set_xlim(0, 1)
    axes.margins(y=0.15)
    return figure


def chosen(names: str) -> list[str]:
    """The networks of a comma-separated list; an argparse error for one that is not known, before any is trained."""
    found = names.split(",")
    for name in found:
        if name not in TITLES:
            raise argparse.ArgumentTypeError(f"unknown network {name!r}{nearest(name, TITLES)}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=positive(float), default=30.0, help="of training, for each network (30)")
    parser.add_argument("--steps", type=positive(int), help="updates to make instead, whatever time they take")
    parser.add_argument("--data", choices=list(DATA_SETS), default="cifar10", help="default: %(default)s")
    parser.add_argument("--root", type=Path, help="where the data are")
    parser.add_argument("--networks", type=chosen, help="default: the CoDA-Nets of that data set and all peers")
    parser.add_argument("--grids", type=positive(int), default=50)
    parser.add_argument("--images", type=positive(int), default=256, help="for pixel removal (256)")
    parser.add_argument("--output", type=Path, default=Path("figures"))
    parser.add_argument("--threads", type=positive(int), default=1)
    options = parser.parse_args(arguments)
    return exit_code("peers", lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    asked = DATA_SETS[options.data]
    data = held_out(load_data(asked.name, root=options.root, size=asked.side), asked.holdout, 0)
    for name in options.networks or asked.networks:
        folder = place(options, name)
        folder.mkdir(parents=True, exist_ok=True)
        weights, progress = trained(name, data, folder, 60 * options.minutes, options.steps)
        model = codanet.load(weights)
        methods = choice(model, data, asked.post_hoc)
        results = judged(max(methods, key=methods.__getitem__), weights, folder, options)
        facts = row(name, progress, results, sum(parameter.numel() for parameter in model.parameters()))
        facts["choice"] = {} if len(methods) == 1 else methods
        print(json.dumps(facts), flush=True)
        _write(folder / "row.json", json.dumps(facts, indent=1))
        publish(options)


def place(options: argparse.Namespace, name: str) -> Path:
    """The folder of a network that has had this time."""
    folder: Path = options.output / DATA_SETS[options.data].stem / f"{name}-{options.minutes:g}-minutes"
    return folder


def publish(options: argparse.Namespace) -> None:
    """The table and the picture of all networks that have had this time, whichever process trained them."""
    stem = DATA_SETS[options.data].stem
    files = [place(options, name) / "row.json" for name in TITLES]
    rows = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    settings = {"minutes": options.minutes, "seed": 0, "threads": options.threads, "torch": torch.__version__}
    _write(options.output / f"{stem}.md", table(rows))
    _write(options.output / f"{stem}.json", json.dumps({**settings, "rows": rows}, indent=1))
    save(picture(rows), options.output / f"{stem}.png")


def _write(file: Path, words: str) -> None:
    with replacing(file) as part:
        part.write_text(words + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
