"""Fig. B2: all ranks of a network times one factor: fewer parameters for some accuracy.

The rank r of AB is the number of dimensions that a DAU's weights can move in; a layer's parameters are proportional to
it. On CIFAR-10 rank-1/8, -1/4 and -1/2 S-CoDA are trained; the larger ones take a GPU: `codanet train ablation-rank`.

    python experiments/rank.py --quick
    python experiments/rank.py --quick --data cifar10
    python experiments/rank.py --data cifar10
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction

import ablation
import result
from codanet.models.architectures import architecture, register_model
from result import Outcome, Setting

QUICK, FULL = ("1/8", "1/4", "1"), ("1/8", "1/4", "1/2", "1", "9/2")
CIFAR10 = {"1/8": "s_coda_r1_8", "1/4": "s_coda_r1_4", "1/2": "s_coda_r1_2"}


@contextmanager
def scaled(name: str, factors: Sequence[str]) -> Iterator[dict[str, str]]:
    """Factor to name of the architecture with its ranks times the factor, known inside the block."""
    whole, names = architecture(name), {"1": name}
    with ExitStack() as stack:
        for factor in factors:
            if factor not in names:
                layers = tuple(replace(layer, rank=int(layer.rank * Fraction(factor))) for layer in whole.layers)
                names[factor] = f"{name}_rank_x_{factor.replace('/', '_')}"
                stack.enter_context(register_model(names[factor], replace(whole, layers=layers)))
        yield {factor: names[factor] for factor in factors}


def experiment(setting: Setting) -> Outcome:
    if setting.data == "cifar10":
        runs, data = ablation.compare(setting, {f"x {factor}": {"model": model} for factor, model in CIFAR10.items()})
    else:
        with scaled("nano_coda", setting.pick(QUICK, FULL)) as names:
            runs, data = ablation.compare(setting, {f"x {factor}": {"model": name} for factor, name in names.items()})
    title = "The larger the ranks of the DAUs, the more parameters: what they gain"
    sizes = [sum(parameter.numel() for parameter in run.model.parameters()) for run in runs]
    varied = f"ranks times a factor ({sizes[0]:,} to {sizes[-1]:,} parameters)"
    return ablation.outcome(setting, runs, data, title, varied)


def main(arguments: Sequence[str] | None = None) -> int:
    return result.main(
        __file__, __doc__, experiment, arguments, data=("digits", "mnist", "cifar10"), quick_data="digits"
    )


if __name__ == "__main__":
    sys.exit(main())
