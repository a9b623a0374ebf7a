"""The page of an evaluation: its measurements, and the page of every model that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._support.limits import mapping
from ..evaluation.models import provenance_of
from ..evaluation.records import RESULTS
from ..evaluation.table import Row
from . import sections
from .beside import beside, strongest
from .model_page import decided, look, missing, origin
from .sources import images_of_evaluation, measured_model, read_json

PLOTS = ("localisation", "removal", "insertion", "sanity")  # in this order; what else there is follows
STARS = "★ marks the best method of each metric and model; intervals are bootstraps over independent units."


def body(folder: Path, root: Path | None, corrupted: int, quiet: bool) -> str:
    results = read_json(folder / RESULTS)
    rows, provenance = results.get("rows"), results.get("provenance")
    if not (isinstance(rows, list) and isinstance(provenance, Mapping) and all(isinstance(r, Mapping) for r in rows)):
        raise ValueError(f"{folder / RESULTS} has no rows of measurements: evaluate again")
    table, remarks = [Row.of(row) for row in rows], results.get("remarks")
    told = sections.metric_words(table, remarks if isinstance(remarks, list) else [])
    parts = [
        sections.figures(_leading(rows)),
        sections.section("Measurements", sections.measurements(table), STARS),
        sections.section("How to read them", told),
        sections.section("Plots", _plots(folder)),
    ]
    for label, entry in mapping(provenance.get("models")).items():
        model, why = measured_model(entry, folder)
        if model is None:
            parts.append(missing(f"{label}: {why}, so there is no confusion matrix of it"))
            continue
        findings, absent = look(label, model, images_of_evaluation(model, provenance, root), quiet)
        parts.append(decided(model, findings, absent, corrupted, quiet, f" of {label}"))
        parts.append(beside(model, findings, strongest(rows, label), f" on {label}", quiet=quiet))
        if provenance_of(model):
            parts.append(sections.section(f"How {label} was trained", origin(model, {})))
    return "".join(parts) + sections.section("Where the measurements come from", sections.facts(provenance))


def _leading(rows: list[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Accuracy and localisation of each model, in large letters."""
    shown = []
    for row in rows:
        mean = row.get("mean")
        own = row.get("metric") == "accuracy" or (row.get("metric"), row.get("method")) == (
            "localisation",
            "contributions",
        )
        if own and isinstance(mean, float):
            what = "accuracy" if row.get("metric") == "accuracy" else "localisation of its own maps"
            value = f"{mean:.2%}" if row.get("metric") == "accuracy" else f"{mean:.3f}"
            shown.append((value, f"{what}, {row.get('model')}, n = {row.get('n')}"))
    return shown


def _plots(folder: Path) -> str:
    paths = {path.stem: path for path in sorted(folder.glob("*.png"))}
    order = [name for name in PLOTS if name in paths] + [name for name in paths if name not in PLOTS]
    return "".join(sections.plot_file(paths[name], name.replace("-", " ").capitalize()) for name in order)
