"""What can be measured: the single list, which the evaluation, the command line and the tests read."""

from .._support.messages import nearest
from .box import BOX
from .completeness import COMPLETENESS
from .insertion import DELETION, INSERTION
from .localisation import LOCALISATION
from .metric import Metric
from .predictions import ACCURACY
from .removal import REMOVAL_LEAST, REMOVAL_MOST
from .sanity import SANITY

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        ACCURACY,
        LOCALISATION,
        REMOVAL_LEAST,
        REMOVAL_MOST,
        INSERTION,
        DELETION,
        BOX,
        COMPLETENESS,
        SANITY,
    )
}
FAMILIES = {"removal": ("removal-least", "removal-most")}  # names that stand for several


def register_metric(metric: Metric) -> Metric:
    """Give a metric of your own a name for `evaluate`, the tables and the report."""
    if metric.name in METRICS or metric.name in FAMILIES or "," in metric.name or not metric.name:
        raise ValueError(f"a metric cannot be called {metric.name!r}: choose a name that is new and has no comma")
    METRICS[metric.name] = metric
    return metric


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
