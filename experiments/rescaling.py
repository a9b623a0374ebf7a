"""Fig. B3a, left half of Table 1: with L2 instead of SQ as rescaling of the weights (eq. 2) much is the same.

Both bound ‖w(x)‖ by 1. With either, the network's own contributions lie on the image of their class more than what
gradients make of the same network. On CIFAR-10 both are trained twice, as the rows of Table 1: with a large T, and with
a small one and λ instead.

    python experiments/rescaling.py --quick
    python experiments/rescaling.py --quick --data cifar10
    python experiments/rescaling.py --data cifar10
"""

import sys
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

import ablation
import result
from ablation import Run, localise
from codanet.attribution import METHODS, attribute
from codanet.data import ImageData
from codanet.data.pictures import Pictures
from codanet.training.recipe import load_recipe
from result import Outcome, Setting, progress_bar

# quick and full
POST_HOC = ("grad", "ixg"), ("grad", "ixg", "intgrad", "gradcam")
GRIDS = 10, 100  # for them

ROWS = {"T": "t", "λ": "lambda"}  # of Table 1, and the ends of their recipes' names
PENALTY = ("temperature", "regularisation")


def post_hoc(setting: Setting, run: Run, data: ImageData) -> dict[str, float | None]:
    """Localisation of other methods on the same network."""
    found: dict[str, float | None] = {}
    methods = setting.pick(*POST_HOC)
    with progress_bar(f"gradients of {run.label}", len(methods), unit="methods") as advance:
        for name in methods:

            def maps(model: nn.Module, images: Tensor, targets: Tensor, method: str = name) -> Tensor:
                return attribute(model, images, targets, method)

            scores = localise(run.model, Pictures(data.val), run.predictions, setting.pick(*GRIDS), setting.seed, maps)
            found[METHODS[name].title] = None if scores is None else scores.mean
            advance(1)
    return found


def cases(data: str) -> dict[str, dict[str, Any]]:
    """Label to changed settings."""
    if data != "cifar10":
        return {kind.upper(): {"rescale": kind} for kind in ("sq", "l2")}
    return {
        f"{kind.upper()} ({by})": {"rescale": kind, **{name: getattr(paper, name) for name in PENALTY}}
        for by, paper in ((by, load_recipe(f"cifar10-s-sq-{recipe}").settings) for by, recipe in ROWS.items())
        for kind in ("sq", "l2")
    }


def experiment(setting: Setting) -> Outcome:
    runs, data = ablation.compare(setting, cases(setting.data))
    outcome = ablation.outcome(setting, runs, data, "SQ and L2: the same maps by and large", "rescaling g")
    described: list[dict[str, Any]] = outcome.numbers["runs"]
    for numbers, run in zip(described, runs, strict=True):
        numbers["localisation_post_hoc"] = post_hoc(setting, run, data)
    chart = outcome.figure.subfigs[0].axes[0]
    for place, numbers in enumerate(described):
        for (name, value), mark in zip(numbers["localisation_post_hoc"].items(), "v^<>", strict=False):
            chart.plot([place], [value], mark, color="#8a8a8a", ms=4, label=name if place == 0 else None)
    chart.legend(fontsize=6, frameon=False, loc="upper center", ncols=4)
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    return result.main(
        __file__, __doc__, experiment, arguments, data=("digits", "mnist", "cifar10"), quick_data="digits"
    )


if __name__ == "__main__":
    sys.exit(main())
