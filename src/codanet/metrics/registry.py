"""What can be measured: the single list, which the evaluation, the command line and the tests read."""

from .._support.messages import nearest
from .box import BOX
from .completeness import COMPLETENESS
from .disconnected import DIFULL, DIPART
from .insertion import DELETION, INSERTION
from .localisation import LOCALISATION
from .metric import Metric
from .pointing import POINTING, POINTING_BOX
from .predictions import ACCURACY
from .quantus import PREFIX, quantus_metric
from .removal import REMOVAL_LEAST, REMOVAL_MOST
from .road import ROAD
from .sanity import SANITY

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        ACCURACY,
        LOCALISATION,
        POINTING,
        DIFULL,
        DIPART,
        REMOVAL_LEAST,
        REMOVAL_MOST,
        INSERTION,
        DELETION,
        ROAD,
        BOX,
        POINTING_BOX,
        COMPLETENESS,
        SANITY,
    )
}
FAMILIES = {"removal": ("removal-least", "removal-most")}  # names that stand for several


def register_metric(metric: Metric) -> Metric:
    """Give a metric of your own a name for `evaluate`, the tables and the report."""
    taken = metric.name in METRICS or metric.name in FAMILIES or metric.name.startswith(PREFIX)
    if taken or "," in metric.name or not metric.name:
        raise ValueError(f"a metric cannot be called {metric.name!r}: choose a name that is new and has no comma")
    METRICS[metric.name] = metric
    return metric


def find_metric(name: str) -> Metric:
    """The entry of a name, one of Quantus's among them: `quantus:pixel-flipping`."""
    if name.startswith(PREFIX):
        return quantus_metric(name)
    if name not in METRICS:
        known = (*METRICS, *FAMILIES, f"{PREFIX}NAME of a metric of Quantus")
        raise ValueError(f"unknown metric {name!r}{nearest(name, known)}")
    return METRICS[name]


def known_metric(name: str) -> Metric | None:
    """The same of a name that a file holds; None if nothing is known of it here."""
    try:
        return find_metric(name)
    except ValueError:
        return None


def choose_metrics(names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """The registered names, families spelt out, each once and in the order given."""
    chosen: list[str] = []
    for name in names:
        chosen += FAMILIES[name] if name in FAMILIES else (find_metric(name).name,)
    if not chosen:
        raise ValueError(f"no metric was named: choose some of {', '.join((*METRICS, *FAMILIES))}")
    return tuple(dict.fromkeys(chosen))
