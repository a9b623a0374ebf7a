"""Fig. 4, Fig. 6 (right), Fig. B1: a larger temperature T gives better localised maps for a little accuracy.

logits = W(x) x / T + b0, and W(x) x is bounded: the larger T, the better the weights must align with the image to say
anything at all. On CIFAR-10 the paper's temperatures are trained on a budget for a CPU and patience; its quick setting
is two epochs each.

    python experiments/temperature.py --quick
    python experiments/temperature.py --quick --data cifar10
    python experiments/temperature.py --data cifar10
"""

import sys
from collections.abc import Sequence

import ablation
import result
from codanet.training.recipe import load_recipe
from result import Outcome, Setting

# T = 16 is average pooling on 8x8 digits, 49 on MNIST at 14x14, 64 on CIFAR-10
QUICK = {"digits": (0.1, 1, 16, 64), "mnist": (0.3, 3, 49, 200), "cifar10": (10, 100, 1000, 5000)}
FULL = {"digits": (0.1, 1, 4, 16, 64, 256), "mnist": (0.3, 3, 49, 200, 800)}


def experiment(setting: Setting) -> Outcome:
    sweep = load_recipe("ablation-temperature").sweep
    paper = {"cifar10": sweep[1] if sweep else ()}
    values = setting.pick(QUICK, FULL | paper)[setting.data]
    runs, data = ablation.compare(setting, {f"T = {value:g}": {"temperature": value} for value in values})
    title = "A larger temperature puts more of a class's map on its image"
    return ablation.outcome(setting, runs, data, title, "temperature T")


def main(arguments: Sequence[str] | None = None) -> int:
    return result.main(
        __file__, __doc__, experiment, arguments, data=("digits", "mnist", "cifar10"), quick_data="digits"
    )


if __name__ == "__main__":
    sys.exit(main())
