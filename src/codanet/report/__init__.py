"""An evaluation or a training run as one HTML page that needs nothing else: `report("runs/digits")`."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._support.files import check_apart, expanded, file_digest, replacing
from .._support.html import text
from .._support.numbers import check_whole
from .._support.progress import progress_bar
from .._support.version import __version__
from ..data import ImageData
from ..evaluation.models import HELD_OUT, fitting, model_digest
from ..evaluation.records import RESULTS
from ..evaluation.table import Row
from ..export import load
from ..models.network import CoDANet
from ..models.peers import Peer
from ..models.weight_files import SHIPPED
from ..training.run_files import MAPS, MODEL, SETTINGS
from . import sections
from .beside import beside, strongest
from .card import IMAGES, card, corrupted_images
from .curves import training_curves
from .findings import Findings, find
from .sources import Images, epochs, images, kind, read_json, with_first_stage

PLOTS = ("localisation", "removal", "insertion", "sanity")  # in this order; what else there is follows
MOST_BYTES = 16 * 2**20  # the largest picture that is taken into the page
CSS = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # nothing is fetched, nothing runs
SURE_RIGHT = (
    "Of each class the decision the network was surest of, and the contributions to it: red pixels speak for the "
    "class, blue ones against it, each map on a scale of its own. Together with b₀ they are the logit."
)
SURE_WRONG = (
    "The mistakes it was surest of: the image, the contributions to what it said, and those to what is true. Where "
    "both maps look at the same place the network read it wrongly; where they do not, it looked elsewhere."
)
CONFUSION = (
    "Rows are the true classes, columns what the network said. 'found' is the share of a class that was recognised, "
    "'true' the share of images called that class that belong to it. Off the diagonal the red is three times as strong."
)
STARS = "★ marks the best method of each metric and model; intervals are bootstraps over independent units."


def report(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    corrupted: int = IMAGES,
    quiet: bool = False,
) -> Path:
    """Write the page, by default FOLDER/report.html.

    `folder` is what `codanet evaluate` or `codanet train` left. The confusion matrix and the decisions need the images:
    they are taken from where the run had them, from `root`, or from the cache; nothing is downloaded. `corrupted`: on
    how many of them, made worse, the model is tried.
    """
    folder = expanded(folder)
    check_whole(0, corrupted=corrupted)
    what = kind(folder)
    path = expanded(output) if output is not None else folder / "report.html"
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file, such as {path / 'report.html'}")
    check_apart([path], (each for each in folder.iterdir() if each.suffix != ".html"), "reported")
    place = None if root is None else expanded(root)
    name = folder.resolve().name
    make = _evaluation if what == "evaluation" else _run
    body = make(folder, place, corrupted, quiet)
    title = f"{name}: {'evaluation' if what == 'evaluation' else 'training run'}"
    try:
        with replacing(path) as part:
            part.write_text(page(title, body), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror or error}): choose another -o") from None
    return path


def page(title: str, body: str) -> str:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{text(title)}</title><style>{CSS}</style></head><body>"
        f"<header><h1>{text(title)}</h1><p>codanet {text(__version__)}, {now}</p></header>{body}"
        "<footer>A contribution map tells what the network used, not what is true of the world.</footer></body></html>"
    )


def _run(folder: Path, root: Path | None, corrupted: int, quiet: bool) -> str:
    settings = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    weights = folder / MODEL
    history = epochs(folder)
    whole = with_first_stage(folder, history)
    curves = sections.plot("Loss and accuracy after every epoch", training_curves(whole)) if whole else ""
    if not weights.is_file():
        words = f"The training has not ended: {len(history)} of {settings.get('epochs', '?')} epochs are logged."
        return (
            _missing(words)
            + sections.section("Training", curves)
            + sections.section("Settings", sections.facts(settings))
        )
    model = load(weights)
    facts = model.provenance
    findings, missing = _findings("the model", model, images({**settings}, settings.get("data_checksum"), root), quiet)
    return (
        _summary(model, facts, findings)
        + _missing(missing)
        + _decisions(findings)
        + _card(model, findings, "", corrupted, quiet)
        + beside(model, findings, {}, quiet=quiet)
        + sections.section("Training", curves)
        + sections.section("Maps as training went on", _maps(folder))
        + sections.section(
            "Where this comes from",
            _provenance(model, facts, {"weights": str(weights), "sha256": file_digest(weights, "sha256")}),
        )
    )


def _evaluation(folder: Path, root: Path | None, corrupted: int, quiet: bool) -> str:
    results = read_json(folder / RESULTS)
    rows, provenance = results.get("rows"), results.get("provenance")
    if not (isinstance(rows, list) and isinstance(provenance, Mapping) and all(isinstance(r, Mapping) for r in rows)):
        raise ValueError(f"{folder / RESULTS} has no rows of measurements: evaluate again")
    table, remarks = [Row.of(row) for row in rows], results.get("remarks")
    body = sections.figures(_leading(rows))
    body += sections.section(
        "Measurements",
        sections.measurements(table),
        STARS,
    )
    body += sections.section(
        "How to read them", sections.metric_words(table, remarks if isinstance(remarks, list) else [])
    )
    body += sections.section("Plots", _plots(folder))
    for label, entry in mapping(provenance.get("models")).items():
        model, why = _model(entry, folder)
        if model is None:
            body += _missing(f"{label}: {why}, so there is no confusion matrix of it")
            continue
        findings, missing = _findings(label, model, _images_of(model, provenance, root), quiet)
        body += _missing(missing) + _decisions(findings, f" of {label}")
        body += _card(model, findings, f" of {label}", corrupted, quiet)
        body += beside(model, findings, strongest(rows, label), f" on {label}", quiet=quiet)
    return body + sections.section("Where this comes from", sections.facts(provenance))


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


def _model(entry: object, folder: Path) -> tuple[nn.Module | None, str]:
    """The model that was evaluated, if its file is still there and still the same."""
    file = str(entry.get("file") or "") if isinstance(entry, Mapping) else ""
    places = (
        SHIPPED / f"{file}.safetensors",
        Path(file),
        folder / file,
    )  # names first, as there
    paths = [path for path in places if file and path.is_file()]
    if not paths:
        return None, "its weights are not on this machine" if file else "it was not read from a file"
    try:
        model = load(paths[0])
    except ValueError as error:
        return None, f"its weights cannot be read here ({error})"
    if isinstance(entry, Mapping) and entry.get("digest") not in (None, model_digest(model)):
        return None, "its weights have changed since"
    return model, ""


def _images_of(model: nn.Module, provenance: Mapping[str, Any], root: Path | None) -> Images:
    """Of an evaluation, as it read them: from the folder of the model's training if that set is of the same name."""
    data, measured = mapping(provenance.get("data")), mapping(provenance.get("settings"))
    settings: dict[str, Any] = {"data": data.get("name")}
    if isinstance(model, CoDANet | Peer):
        elsewhere = {} if model.provenance.get("data") == data.get("name") else {**settings, "root": None}
        own = mapping(model.provenance.get("settings"))
        holdout = own.get("holdout", 0) if measured.get("split") == HELD_OUT else 0
        settings = {**settings, **own, **elsewhere, "holdout": holdout}
    if "image_size" in measured:
        settings["image_size"] = measured["image_size"]
    return images(settings, data.get("checksum"), root)


def mapping(value: object) -> dict[str, Any]:
    """A file may say anything."""
    return dict(value) if isinstance(value, Mapping) else {}


def _findings(label: str, model: nn.Module, there: Images, quiet: bool) -> tuple[Findings | None, str]:
    if there.data is None:
        return None, f"{there.missing}: no confusion matrix and no decisions to look at. --root says where they are."
    data: ImageData = there.data
    try:
        pictures = fitting(label, model, data, train=False)
    except ValueError as error:
        return None, f"The images do not fit the model: {error}."
    with (
        torch.no_grad(),
        progress_bar("reading held-out images", len(pictures), shown=not quiet, unit="images") as done,
    ):
        return find(model, pictures, data.classes, done), ""


def _missing(words: str) -> str:
    return f"<section><p class='missing'>{text(words)}</p></section>" if words else ""


def _summary(model: CoDANet, facts: Mapping[str, Any], findings: Findings | None) -> str:
    shown = []
    if findings is not None:
        low, high = findings.interval()
        shown.append(
            (
                f"{findings.accuracy:.2%}",
                f"accuracy on {findings.number} held-out images, 95% interval {low:.1%} to {high:.1%}",
            )
        )
    elif isinstance(facts.get("val_accuracy"), float):
        shown.append(
            (
                f"{facts['val_accuracy']:.2%}",
                f"accuracy on {facts.get('val_images', '?')} held-out images, as training measured it",
            )
        )
    shown.append((f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M", f"parameters of {model.name}"))
    shown += [(str(facts[key]), key) for key in ("epochs", "hours") if key in facts]
    shown.append((f"{model.temperature:g}", "temperature T"))
    return sections.figures(shown)


def _decisions(findings: Findings | None, whose: str = "") -> str:
    if findings is None:
        return ""
    unread = f" {findings.unread} images could not be read and are left out." if findings.unread else ""
    exact = f" They are {text(findings.exact_for)}; below these nothing is claimed." if findings.exact_for else ""
    return (
        sections.section(f"Sure and right{whose}", sections.right_cases(findings), SURE_RIGHT + exact)
        + sections.section(f"Sure and wrong{whose}", sections.wrong_cases(findings), SURE_WRONG)
        + sections.section(f"Confusion{whose}", sections.confusion(findings), CONFUSION + unread)
    )


def _card(model: nn.Module, findings: Findings | None, whose: str, corrupted: int, quiet: bool) -> str:
    total = corrupted_images(findings, corrupted)
    with progress_bar("trying worse images", total, shown=not quiet and total > 0, unit="images") as done:
        return card(model, findings, whose, images=corrupted, done=done)


def _maps(folder: Path) -> str:
    """The first, a middle and the last picture of contribution maps."""
    paths = sorted((folder / MAPS).glob("epoch-*.png"), key=lambda path: (len(path.name), path.name))
    chosen = dict.fromkeys(paths[place] for place in (0, len(paths) // 2, -1)) if paths else {}
    return "".join(_embedded(path, f"After {path.stem.replace('-', ' ')}") for path in chosen)


def _plots(folder: Path) -> str:
    paths = {path.stem: path for path in sorted(folder.glob("*.png"))}
    order = [name for name in PLOTS if name in paths] + [name for name in paths if name not in PLOTS]
    return "".join(_embedded(paths[name], name.replace("-", " ").capitalize()) for name in order)


def _embedded(path: Path, title: str) -> str:
    if path.stat().st_size > MOST_BYTES:
        return f"<p class='missing'>{text(path.name)} is larger than {MOST_BYTES // 2**20} MiB and is left out.</p>"
    return sections.plot(title, path.read_bytes())


def _provenance(model: CoDANet, facts: Mapping[str, Any], more: Mapping[str, Any]) -> str:
    network = {
        "name": model.name,
        "classes": model.num_classes,
        "image size": list(model.image_size or ()),
        **({"rescale": str(model.rescale)} if isinstance(model, CoDANet) else {}),
    }
    here = {"codanet": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return sections.facts({**more, "network": network, **facts, "report made with": here})
