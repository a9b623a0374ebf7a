"""Fig. A5, Fig. B3b: the strength λ of the mean |W| in the loss (eq. 10) keeps maps on what they explain.

The linear map W(x) is there explicitly, so its entries can be pressed towards zero where they are not needed: less of a
map lies beside what it explains.

    python experiments/regularisation.py --quick
    python experiments/regularisation.py --quick --data cifar10
    python experiments/regularisation.py --data cifar10
"""

import sys
from collections.abc import Sequence

import ablation
import result
from codanet.training.recipe import load_recipe
from result import Outcome, Setting

QUICK = {"digits": (0, 0.1, 1), "mnist": (0, 0.1, 1), "cifar10": (0, 0.01, 0.05, 0.1)}
FULL = (0, 0.05, 0.1, 0.3, 1, 3)
# the paper's T for CIFAR-10, and for the digits as small a one: without regularisation the maps are noisy
TEMPERATURE = {"digits": 1, "mnist": 3, "cifar10": 64}


def experiment(setting: Setting) -> Outcome:
    sweep = load_recipe("ablation-lambda").sweep
    paper = {"cifar10": sweep[1] if sweep else ()}
    values = setting.pick(QUICK, dict.fromkeys(QUICK, FULL) | paper)[setting.data]
    temperature = TEMPERATURE[setting.data]
    cases = {f"λ = {value:g}": {"regularisation": value, "temperature": temperature} for value in values}
    runs, data = ablation.compare(setting, cases)
    title = f"The stronger W is regularised, the more of a class's map lies on its image (T = {temperature})"
    return ablation.outcome(setting, runs, data, title, "regularisation λ")


def main(arguments: Sequence[str] | None = None) -> int:
    return result.main(
        __file__, __doc__, experiment, arguments, data=("digits", "mnist", "cifar10"), quick_data="digits"
    )


if __name__ == "__main__":
    sys.exit(main())
