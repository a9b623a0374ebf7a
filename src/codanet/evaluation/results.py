"""The table of an evaluation, in the terminal's, Markdown's and JSON's way."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from .._support.files import replacing
from .._support.numbers import for_json
from ..attribution import method_title
from ..metrics import Scores, find_metric
from . import table
from .published import Published
from .records import RESULTS, Records
from .table import Row


@dataclass(frozen=True)
class Results:
    """What an evaluation measured: the table, every single score, and where they come from.

    Args:
        folder: Where results.json, table.md and the pictures are.
        rows: One for each model, method and metric, with mean, interval and n.
        scores: The single values by (model, method, metric).
        provenance: Date, command, versions, digests and settings.
        remarks: What was left out or cut, and why.

    Examples:
        >>> evaluate(["cifar10"], "cifar10").row("cifar10", "contributions", "localisation").mean  # doctest: +SKIP
    """

    folder: Path
    rows: tuple[Row, ...]
    scores: dict[tuple[str, str, str], Scores]
    provenance: dict[str, Any]
    remarks: tuple[str, ...] = ()

    def row(self, model: str, method: str, metric: str) -> Row:
        for row in self.rows:
            if (row.model, row.method, row.metric) == (model, method, metric):
                return row
        raise ValueError(f"there is no {metric} of {method or 'the model'} on {model}: it was not measured")

    def cells(self) -> list[tuple[str, ...]]:
        """The table as words, the best mean of each metric and model marked with a star, several if they are equal."""
        return table.cells(self.rows)

    @property
    def heads(self) -> tuple[str, ...]:
        return table.heads(self.rows)

    def markdown(self) -> str:
        facts = self.provenance
        lines = ["| " + " | ".join(self.heads) + " |", "|" + " --- |" * len(self.heads)]
        lines += ["| " + " | ".join(line) + " |" for line in self.cells()]
        lines += ["", *(f"- {sentence}" for sentence in self.sentences()), ""]
        lines += [
            f"Made on {facts['date']} by codanet {facts['versions']['codanet']}, torch {facts['versions']['torch']}, "
            f"{facts['threads']} threads, {facts['hours']:.2f} hours, seed {facts['settings']['seed']}"
            + (f": `{facts['command']}`" if facts["command"] else "."),
            "",
        ]
        return "\n".join(lines)

    def sentences(self) -> list[str]:
        """What a reader of the table must know: what metrics and columns are, what failed, what was left out."""
        told = table.words(self.rows)
        for key, scores in self.scores.items():
            if "chance" in scores.extras:
                chance = float(scores.extras["chance"].double().nanmean())
                told.append(f"The boxes cover {chance:.3f} of the images on average: the chance level ({key[0]}).")
            if "outside" in scores.extras:
                words = f"{find_metric(key[2]).title} of {method_title(key[1])} on {key[0]}"
                told.append(
                    f"{words}: outside of the explained cell the largest |attribution| is "
                    f"{_outside(scores):.2g} of the largest anywhere."
                )
        return [*dict.fromkeys(told), *self.remarks]

    def as_json(self) -> dict[str, Any]:
        rows = []
        for row in self.rows:
            scores = self.scores[row.model, row.method, row.metric]
            line: dict[str, Any] = asdict(row) | {"metric": row.metric, "title": find_metric(row.metric).title}
            names = ("q05", "q25", "median", "q75", "q95")
            line |= dict(zip(names, scores.quantiles(0.05, 0.25, 0.5, 0.75, 0.95), strict=True))
            if "curve" in scores.extras and scores.points is not None:
                line["points"] = [round(point, 6) for point in scores.points.tolist()]
                line["curve"] = [round(value, 6) for value in scores.curve().tolist()]
            if "chance" in scores.extras:
                line["chance"] = float(scores.extras["chance"].double().nanmean())
            if "outside" in scores.extras:
                line["outside"] = _outside(scores)
            rows.append(line)
        return {"provenance": self.provenance, "remarks": list(self.remarks), "rows": for_json(rows)}

    def write(self) -> None:
        """results.json and table.md, each whole or not at all."""
        for name, text in ((RESULTS, json.dumps(self.as_json(), indent=1)), ("table.md", self.markdown())):
            with replacing(self.folder / name) as part:
                part.write_text(text, encoding="utf-8")


def rows_of(
    records: Records,
    keys: Sequence[tuple[str, str, str]],
    models: Mapping[str, nn.Module],
    published: Published | None = None,
) -> tuple[Row, ...]:
    measured, rows = {key: records.scores(key) for key in keys}, []
    for (model, method, metric), scores in measured.items():
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
                find_metric(metric).higher_is_better,
                published.mean(metric, models[model], method) if published else math.nan,
            )
        )
    return tuple(beside_the_best(rows, measured))


def beside_the_best(rows: Sequence[Row], scores: Mapping[tuple[str, str, str], Scores]) -> list[Row]:
    """The rows with the paired difference of each method from the first of the best on its metric and model."""
    best, found = table.best_methods(rows), []
    for row in rows:
        methods = best.get((row.metric, row.model), set())
        if row.method and methods and row.method not in methods:
            first = next(each.method for each in rows if _same(each, row) and each.method in methods)
            apart = scores[row.model, row.method, row.metric].less(scores[row.model, first, row.metric])
            low, high = apart.interval()
            row = replace(row, from_best=apart.mean, from_best_low=low, from_best_high=high)
        found.append(row)
    return found


def _same(row: Row, other: Row) -> bool:
    return (row.metric, row.model) == (other.metric, other.model)


def _outside(scores: Scores) -> float:
    """The largest of the maps that did not fail; NaN if all did."""
    values = scores.extras["outside"].double()
    return float(values[~values.isnan()].amax()) if not values.isnan().all() else math.nan
