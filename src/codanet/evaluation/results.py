"""The table of an evaluation, in the terminal's, Markdown's and JSON's way."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from .._support.files import replacing
from ..attribution import METHODS
from ..metrics import METRICS, Scores
from .published import Published
from .records import Records

HEADS = ("metric", "model", "method", "mean", "95% interval", "n", "failed", "ms/map")


@dataclass(frozen=True)
class Row:
    """One measurement; the interval is a bootstrap over independent units, whole grids for localisation."""

    metric: str
    model: str
    method: str  # "" for what is measured on the model alone
    mean: float
    low: float
    high: float
    n: int  # values, failed ones included
    units: int  # independent ones among them
    failed: int
    notes: dict[str, int]  # what was odd, and on how many samples
    seconds_per_map: float
    higher_is_better: bool
    published: float = math.nan  # the mean elsewhere


@dataclass(frozen=True)
class Results:
    folder: Path
    rows: tuple[Row, ...]
    scores: dict[tuple[str, str, str], Scores]  # (model, method, metric)
    provenance: dict[str, Any]
    remarks: tuple[str, ...] = ()  # what was left out or cut, and why

    def row(self, model: str, method: str, metric: str) -> Row:
        for row in self.rows:
            if (row.model, row.method, row.metric) == (model, method, metric):
                return row
        raise ValueError(f"there is no {metric} of {method or 'the model'} on {model}: it was not measured")

    def cells(self) -> list[tuple[str, ...]]:
        """The table as words, the best mean of each metric and model marked with a star."""
        best: dict[tuple[str, str], tuple[float, str]] = {}
        for row in self.rows:
            key, sign = (row.metric, row.model), 1 if row.higher_is_better else -1
            if row.method and not math.isnan(row.mean):
                best[key] = max(best.get(key, (-math.inf, "")), (sign * row.mean, row.method))
        lines: list[tuple[str, ...]] = []
        for row in self.rows:
            several = sum((other.metric, other.model) == (row.metric, row.model) for other in self.rows) > 1
            first = best.get((row.metric, row.model), (0, ""))[1] == row.method
            star = " *" if several and first and METRICS[row.metric].ranked else ""
            unit = METRICS[row.metric].unit
            lines.append(
                (
                    f"{METRICS[row.metric].title} {'↑' if row.higher_is_better else '↓'}",
                    row.model,
                    method_title(row.method) + star if row.method else "",
                    _number(row.mean),
                    f"{_number(row.low, 3)} – {_number(row.high, 3)}",
                    str(row.n) if row.units == row.n else f"{row.n} in {row.units} {unit}",
                    str(row.failed),
                    _milliseconds(row.seconds_per_map),
                )
                + (("" if math.isnan(row.published) else _number(row.published),) if self.compared else ())
            )
        return lines

    @property
    def compared(self) -> bool:
        """Whether some of it has been published."""
        return any(not math.isnan(row.published) for row in self.rows)

    @property
    def heads(self) -> tuple[str, ...]:
        return (*HEADS, "published") if self.compared else HEADS

    def markdown(self) -> str:
        made = self.provenance
        lines = ["| " + " | ".join(self.heads) + " |", "|" + " --- |" * len(self.heads)]
        lines += ["| " + " | ".join(line) + " |" for line in self.cells()]
        lines += ["", *(f"- {sentence}" for sentence in self.sentences()), ""]
        lines += [
            f"Made on {made['date']} by codanet {made['versions']['codanet']}, torch {made['versions']['torch']}, "
            f"{made['threads']} threads, {made['hours']:.2f} hours, seed {made['settings']['seed']}"
            + (f": `{made['command']}`" if made["command"] else "."),
            "",
        ]
        return "\n".join(lines)

    def sentences(self) -> list[str]:
        """What a reader of the table must know: what the metrics are, what failed, what was left out."""
        named = dict.fromkeys(row.metric for row in self.rows)
        told = [f"{METRICS[name].title}: {METRICS[name].about}." for name in named]
        for row in self.rows:
            where = " of ".join(part for part in (METRICS[row.metric].title, method_title(row.method)) if part)
            told += [f"{where} on {row.model}, {count} of {row.n}: {note}." for note, count in row.notes.items()]
        for key, scores in self.scores.items():
            if "chance" in scores.extras:
                chance = float(scores.extras["chance"].double().mean())
                told.append(f"The boxes cover {chance:.3f} of the images on average: the chance level ({key[0]}).")
        told = list(dict.fromkeys(told))
        if any(not math.isnan(row.seconds_per_map) for row in self.rows):
            told.append("ms/map: time per map in this run; a map of a grid has as many pixels as the grid.")
        if self.compared:
            told.append("published: the mean in the file of published figures, for the model measured there.")
        return [*told, *self.remarks]

    def as_json(self) -> dict[str, Any]:
        rows = []
        for row in self.rows:
            scores = self.scores[row.model, row.method, row.metric]
            line: dict[str, Any] = asdict(row) | {"metric": row.metric, "title": METRICS[row.metric].title}
            names = ("q05", "q25", "median", "q75", "q95")
            line |= dict(zip(names, scores.quantiles(0.05, 0.25, 0.5, 0.75, 0.95), strict=True))
            if "curve" in scores.extras and scores.points is not None:
                line["points"] = [round(point, 6) for point in scores.points.tolist()]
                line["curve"] = [round(value, 6) for value in scores.curve().tolist()]
            if "chance" in scores.extras:
                line["chance"] = float(scores.extras["chance"].double().mean())
            rows.append(line)
        return {"provenance": self.provenance, "remarks": list(self.remarks), "rows": _finite(rows)}

    def write(self) -> None:
        """results.json and table.md, each whole or not at all."""
        for name, text in (("results.json", json.dumps(self.as_json(), indent=1)), ("table.md", self.markdown())):
            with replacing(self.folder / name) as part:
                part.write_text(text, encoding="utf-8")


def rows_of(
    records: Records,
    keys: Sequence[tuple[str, str, str]],
    models: Mapping[str, nn.Module],
    published: Published | None = None,
) -> tuple[Row, ...]:
    rows = []
    for model, method, metric in keys:
        scores = records.scores((model, method, metric))
        low, high = scores.interval()
        rows.append(
            Row(
                metric,
                model,
                method,
                scores.mean,
                low,
                high,
                len(scores),
                len(scores) // scores.unit,
                scores.failed,
                scores.reasons,
                records.seconds_per_map((model, method, metric)),
                scores.higher_is_better,
                published.mean(metric, models[model], method) if published else math.nan,
            )
        )
    return tuple(rows)


def method_title(name: str) -> str:
    """As figures call it, the settings that were changed kept: 'Occ9:stride=4'."""
    plain, colon, changes = name.partition(":")
    return METHODS[plain].title + colon + changes if plain in METHODS else name


def _number(value: float, digits: int = 4) -> str:
    if math.isnan(value):
        return "none"
    return f"{value:.{digits}f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"


def _milliseconds(seconds: float) -> str:
    return "" if math.isnan(seconds) else f"{seconds * 1000:.3g}" if seconds < 0.1 else f"{seconds * 1000:.0f}"


def _finite(value: Any) -> Any:
    """JSON has no NaN: null."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
