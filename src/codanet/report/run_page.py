"""The page of a training run: the model's, and how its training went."""

from __future__ import annotations

from pathlib import Path

from .._support.files import file_digest
from ..export import load
from ..training.run_files import MAPS, MODEL, SETTINGS
from . import sections
from .beside import beside
from .curves import training_curves
from .model_page import decided, look, missing, origin, summary
from .sources import epochs, images, read_json, with_first_stage


def body(folder: Path, root: Path | None, corrupted: int, quiet: bool) -> str:
    settings = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    weights = folder / MODEL
    history = epochs(folder)
    whole = with_first_stage(folder, history)
    curves = sections.plot("Loss and accuracy after every epoch", training_curves(whole)) if whole else ""
    if not weights.is_file():
        words = f"The training has not ended: {len(history)} of {settings.get('epochs', '?')} epochs are logged."
        return (
            missing(words)
            + sections.section("Training", curves)
            + sections.section("Settings", sections.facts(settings))
        )
    model = load(weights)
    findings, absent = look("the model", model, images(settings, settings.get("data_checksum"), root), quiet)
    file = {"weights": str(weights), "sha256": file_digest(weights, "sha256")}
    return (
        summary(model, findings)
        + decided(model, findings, absent, corrupted, quiet)
        + beside(model, findings, {}, quiet=quiet)
        + sections.section("Training", curves)
        + sections.section("Maps as training went on", _maps(folder))
        + sections.section("Where this comes from", origin(model, file))
    )


def _maps(folder: Path) -> str:
    """The first, a middle and the last picture of contribution maps."""
    paths = sorted((folder / MAPS).glob("epoch-*.png"), key=lambda path: (len(path.name), path.name))
    chosen = dict.fromkeys(paths[place] for place in (0, len(paths) // 2, -1)) if paths else {}
    return "".join(sections.plot_file(path, f"After {path.stem.replace('-', ' ')}") for path in chosen)
