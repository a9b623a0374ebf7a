"""What can be measured."""

from dataclasses import dataclass

from .._support.messages import nearest


@dataclass(frozen=True)
class Metric:
    """`n` is how many units the paper measures on CIFAR-10; None stands for all there are."""

    name: str
    title: str
    higher_is_better: bool
    about: str
    n: int | None
    unit: str  # what n counts
    needs_maps: bool = True
    ranked: bool = True  # whether the best of several methods is worth naming


_ALL = (
    Metric(
        "accuracy", "Accuracy", True, "share of the split's images that are classified correctly", None, "images", False
    ),
    Metric(
        "localisation",
        "Localisation",
        True,
        "positive attribution inside the cell of the explained class over all positive attribution, on grids of "
        "confidently classified images (eq. 11); chance is 1 over the number of cells",
        500,
        "grids",
    ),
    Metric(
        "removal-least",
        "Removal, least first",
        True,
        "mean probability of the true class while the least important quarter of the pixels is removed",
        1024,
        "images",
    ),
    Metric(
        "removal-most",
        "Removal, most first",
        False,
        "mean probability of the true class while the most important quarter of the pixels is removed",
        1024,
        "images",
    ),
    Metric(
        "insertion",
        "Insertion",
        True,
        "area under the true class's probability while a blurred image gets its pixels back, most important first",
        1024,
        "images",
    ),
    Metric(
        "deletion",
        "Deletion",
        False,
        "area under the true class's probability while all pixels are removed, most important first",
        1024,
        "images",
    ),
    Metric(
        "box",
        "Inside the box",
        True,
        "positive attribution inside the object's box over all positive attribution; chance is the box's share of the "
        "image",
        1024,
        "images",
    ),
    Metric(
        "completeness",
        "Completeness error",
        False,
        "|sum of the map + logit of an empty image - logit| / max(1, |logit|)",
        1024,
        "images",
    ),
    Metric(
        "sanity",
        "Sanity check",
        False,
        "rank correlation of the maps with those of the same network, its layers re-initialised one after another "
        "from the output, mean over the steps; about 0 passes, 1 fails",
        16,
        "images",
        ranked=False,
    ),
)
METRICS = {metric.name: metric for metric in _ALL}
FAMILIES = {"removal": ("removal-least", "removal-most")}  # names that stand for several
SMALL_DATA_GRIDS = 250  # the paper's number of grids where it is not CIFAR-10


def choose_metrics(names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """The registered names, families spelt out, each once and in the order given."""
    chosen: list[str] = []
    for name in names:
        if name not in METRICS and name not in FAMILIES:
            raise ValueError(f"unknown metric {name!r}{nearest(name, (*METRICS, *FAMILIES))}")
        chosen += FAMILIES.get(name, (name,))
    if not chosen:
        raise ValueError(f"no metric was named: choose some of {', '.join((*METRICS, *FAMILIES))}")
    return tuple(dict.fromkeys(chosen))


def usual_number(metric: str, data: str) -> int | None:
    """The paper's sample size: 500 grids on CIFAR-10, 250 elsewhere; 1024 images."""
    return SMALL_DATA_GRIDS if metric == "localisation" and data != "cifar10" else METRICS[metric].n
