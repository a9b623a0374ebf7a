"""Fig. A6: the sanity check of Adebayo et al.: the maps change when the network's parameters do.

The layers of a trained CoDA-Net are set to random parameters one after another, from the output to the input; after
each step the maps of the same images and classes are made again. Maps that stayed would not explain this network.

    python experiments/sanity.py --quick
    python experiments/sanity.py --data cifar10 --model model.safetensors
"""

import sys
from collections.abc import Sequence
from typing import Any, cast

import torch
from matplotlib.figure import Figure
from torch import Tensor

import ablation
import codanet
import result
from codanet.data.pictures import Pictures
from codanet.metrics import SanityCheck, confident_images, contributions, predict
from codanet.metrics import sanity as sanity_check
from figure import BLUE, RED, grey, plain, signed, table
from result import Outcome, Setting

SHOWN = 4


def experiment(setting: Setting) -> Outcome:
    start = ablation.base(setting)
    data = setting.images(size=start.image_size)
    model = codanet.load(setting.files["model"]) if "model" in setting.files else ablation.trained(setting, start)
    confident = confident_images(predict(model, Pictures(data.val)).scores())
    chosen = [image for images in confident.values() for image in images[: setting.pick(3, 20)]]
    if not chosen:
        raise ValueError("the model is sure of no image, so there is nothing to explain: give a better one as --model")
    images, labels, _ = Pictures(data.val).read(chosen)
    checked = sanity_check(model, images, labels, contributions, seed=setting.seed)
    numbers = {
        "steps": checked.steps,
        **{f"{name}_mean": values.mean(0).tolist() for name, values in checked.scores.extras.items()},
        **{f"{name}_std": values.std(0).tolist() for name, values in checked.scores.extras.items()},
        "accuracy_of_the_trained_network": model.provenance.get("val_accuracy"),
    }
    step = max(1, len(images) // SHOWN)
    some = torch.arange(0, len(images), step)[:SHOWN]
    figure = draw(images[some], labels[some], checked, checked.maps[some], data.classes)
    return Outcome({"test images": len(images)}, data.image_size, numbers, figure)


def draw(images: Tensor, labels: Tensor, checked: SanityCheck, maps: Tensor, classes: Sequence[str]) -> Figure:
    steps = len(checked.steps)
    figure = Figure((1.15 * (steps + 2) + 1, 1.2 * len(images) + 2.4), layout="constrained")
    upper, lower = cast(Any, figure.subfigures(2, 1, height_ratios=[1.15 * len(images), 1.7]))
    rows = [[picture, *signed(row)] for picture, row in zip(grey(images), maps, strict=True)]
    after = [f"+ layer {steps - step}" for step in range(1, steps)]
    titles = ["image", "trained", f"layer {steps} random", *after]
    table(rows, titles, [classes[label] for label in labels.tolist()], figure=upper)
    upper.suptitle("Contribution maps while layer after layer is re-initialised, from the output", fontsize=10)
    axes = plain(
        lower.subplots(), "likeness to the trained network's maps (mean over the images)", "layers re-initialised", ""
    )
    for name, colour, words in (("spearman", RED, "rank correlation"), ("ssim", BLUE, "structural similarity")):
        values = checked.scores.extras[name]
        if values.isfinite().all():
            axes.plot(range(steps + 1), [1, *values.mean(0).tolist()], "o-", color=colour, ms=4, lw=1, label=words)
    axes.axhline(0, color="#c4c4c4", lw=0.8)
    axes.set_xticks(range(steps + 1))
    axes.legend(fontsize=7, frameon=False)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    return result.main(
        __file__,
        __doc__,
        experiment,
        arguments,
        data=("digits", "mnist", "cifar10"),
        quick_data="digits",
        files={"model": "a trained CoDA-Net (safetensors); without it one is trained"},
    )


if __name__ == "__main__":
    sys.exit(main())
