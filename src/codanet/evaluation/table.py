"""The table of an evaluation: its rows, in memory or read back from JSON, as words for a terminal, a file or a page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from ..attribution import method_title
from ..metrics import known_metric

HEADS = ("metric", "model", "method", "mean", "95% interval", "n", "failed", "ms/map")


@dataclass(frozen=True)
class Row:
    """One measurement; the interval is a bootstrap over independent units, whole grids for localisation."""

    metric: str = ""
    model: str = ""
    method: str = ""  # "" for what is measured on the model alone
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0  # values, failed ones included
    units: int = 0  # independent ones among them
    failed: int = 0
    notes: dict[str, int] = field(default_factory=dict)  # what was odd, and on how many samples
    seconds_per_map: float = math.nan
    higher_is_better: bool = True
    published: float = math.nan  # the mean elsewhere
    from_best: float = math.nan  # the mean less that of the best method, over the samples of both
    from_best_low: float = math.nan
    from_best_high: float = math.nan

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> "Row":
        """A row of results.json, which may lack anything and hold nonsense: that is left empty."""
        kinds = get_type_hints(cls)
        values = {each.name: _plain(entries.get(each.name), kinds[each.name]) for each in fields(cls)}
        return cls(**{name: value for name, value in values.items() if value is not None})

    @property
    def title(self) -> str:
        metric = known_metric(self.metric)
        return metric.title if metric else self.metric


def _plain(value: object, kind: Any) -> Any:
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            return float(value)
        except OverflowError:  # a whole number beyond all floats
            return None
    if kind in (str, bool):
        return value if isinstance(value, kind) else None
    if kind is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    return dict(value) if isinstance(value, Mapping) else None


def compared(rows: Sequence[Row]) -> bool:
    """Whether some of it has been published."""
    return any(not math.isnan(row.published) for row in rows)


def several(rows: Sequence[Row]) -> bool:
    """Whether methods were measured beside each other."""
    return any(not math.isnan(row.from_best_low) for row in rows)


def heads(rows: Sequence[Row]) -> tuple[str, ...]:
    return (*HEADS, *(["from best (95%)"] if several(rows) else []), *(["published"] if compared(rows) else []))


def cells(rows: Sequence[Row], star: str = "*") -> list[tuple[str, ...]]:
    """The table as words, the best mean of each metric and model marked, and all that share it, where there is one."""
    best, beside, published = best_methods(rows), several(rows), compared(rows)
    lines: list[tuple[str, ...]] = []
    for row in rows:
        metric = known_metric(row.metric)
        first = row.method and row.method in best.get((row.metric, row.model), ())
        units = f"{row.n} in {row.units} {metric.unit if metric else 'units'}"
        line = (
            f"{row.title} {'↑' if row.higher_is_better else '↓'}",
            row.model,
            method_title(row.method) + (f" {star}" if first else ""),
            number(row.mean),
            f"{number(row.low, 3)} – {number(row.high, 3)}",
            str(row.n) if row.units == row.n else units,
            str(row.failed),
            _milliseconds(row.seconds_per_map),
        )
        lines.append((*line, *([_from_best(row)] if beside else []), *([_known(row.published)] if published else [])))
    return lines


def best_methods(rows: Sequence[Row]) -> dict[tuple[str, str], set[str]]:
    """The methods with the best mean, by metric and model: where there are several, and the metric ranks them."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        metric = known_metric(row.metric)
        if row.method and metric and metric.ranked:
            methods = found.setdefault((row.metric, row.model), {})
            methods[row.method] = row.mean if row.higher_is_better else -row.mean
    best = {}
    for key, methods in found.items():
        means = [mean for mean in methods.values() if not math.isnan(mean)]
        if len(methods) > 1 and means:
            best[key] = {name for name, mean in methods.items() if mean == max(means)}
    return best


def words(rows: Sequence[Row]) -> list[str]:
    """What the metrics are, what was odd, and what is in the columns."""
    named = [known_metric(name) for name in dict.fromkeys(row.metric for row in rows)]
    told = [f"{metric.title}: {metric.about}." for metric in named if metric]
    for row in rows:
        where = " of ".join(part for part in (row.title, method_title(row.method)) if part)
        told += [f"{where} on {row.model}, {count} of {row.n}: {note}." for note, count in row.notes.items()]
    if any(not math.isnan(row.seconds_per_map) for row in rows):
        told.append("ms/map: time per map in this run; a map of a grid has as many pixels as the grid.")
    if several(rows):
        told.append(
            "from best: the difference from the best method's mean over the same samples, with its 95% interval; if 0 "
            "lies in the interval, these samples do not tell the two apart. Where less is better (↓), a positive "
            "difference is a worse mean."
        )
    if compared(rows):
        told.append("published: the mean in the file of published figures, for the model measured there.")
    return told


def number(value: float, digits: int = 4, sign: str = "-") -> str:
    """sign: '+' to write it before positive numbers as well."""
    if math.isnan(value):
        return "none"
    return f"{value:{sign}.{digits}f}" if value == 0 or abs(value) >= 1e-3 else f"{value:{sign}.1e}"


def _from_best(row: Row) -> str:
    if math.isnan(row.from_best_low):
        return ""
    away, low, high = (number(value, 3, "+") for value in (row.from_best, row.from_best_low, row.from_best_high))
    return f"{away} ({low} – {high})"


def _known(value: float) -> str:
    return "" if math.isnan(value) else number(value)


def _milliseconds(seconds: float) -> str:
    return "" if math.isnan(seconds) else f"{seconds * 1000:.3g}" if seconds < 0.1 else f"{seconds * 1000:.0f}"
