"""The page of a model, and what every page says of one: its decisions, its card, and where it comes from."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._support.html import text
from .._support.progress import progress_bar
from .._support.version import __version__
from ..evaluation.models import fitting, load_models, provenance_of
from ..models.labels import short_name
from ..models.network import CoDANet
from ..models.peers import Peer
from . import sections
from .beside import beside
from .card import card, corrupted_images
from .findings import Findings, find
from .sources import Images, images_of_model

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


def name_of(source: str) -> str:
    """What a model is called on its page, and in the name of the file."""
    return short_name(source, [source]).strip("/").replace(":", "-") or "model"


def body(
    source: str,
    data: str | os.PathLike[str] | None,
    split: str | None,
    root: Path | None,
    corrupted: int,
    quiet: bool,
) -> str:
    models, files = load_models([source])
    ((label, model),) = models.items()
    there = images_of_model(label, model, data, split, root)
    findings, missing = look(label, model, there, quiet)
    return (
        summary(model, findings, there.what)
        + decided(model, findings, missing, corrupted, quiet)
        + beside(model, findings, {}, quiet=quiet)
        + sections.section("Where this comes from", origin(model, files[label]))
    )


def look(label: str, model: nn.Module, there: Images, quiet: bool) -> tuple[Findings | None, str]:
    """What the model makes of the images, or the sentence that says why nobody knows."""
    if there.data is None:
        return None, f"{there.missing}: no confusion matrix and no decisions to look at. --root says where they are."
    try:
        pictures = fitting(label, model, there.data, there.train)
    except ValueError as error:
        return None, f"The images do not fit the model: {error}."
    with torch.no_grad(), progress_bar("reading images", len(pictures), shown=not quiet, unit="images") as done:
        return find(model, pictures, there.data.classes, done), ""


def decided(
    model: nn.Module, findings: Findings | None, absent: str, corrupted: int, quiet: bool, whose: str = ""
) -> str:
    """The decisions to look at and the card, or why there are none."""
    if findings is None:
        return missing(absent)
    unread = f" {findings.unread} images could not be read and are left out." if findings.unread else ""
    exact = f" They are {text(findings.exact_for)}; below these nothing is claimed." if findings.exact_for else ""
    total = corrupted_images(findings, corrupted)
    with progress_bar("trying worse images", total, shown=not quiet and total > 0, unit="images") as done:
        its_card = card(model, findings, whose, images=corrupted, done=done)
    return (
        missing(absent)
        + sections.section(f"Sure and right{whose}", sections.right_cases(findings), SURE_RIGHT + exact)
        + sections.section(f"Sure and wrong{whose}", sections.wrong_cases(findings), SURE_WRONG)
        + sections.section(f"Confusion{whose}", sections.confusion(findings), CONFUSION + unread)
        + its_card
    )


def summary(model: nn.Module, findings: Findings | None, what: str = "held-out images") -> str:
    """The figures in large letters. what: the images that were looked at."""
    facts, shown = provenance_of(model), []
    if findings is not None:
        low, high = findings.interval()
        words = f"accuracy on {findings.number} {what}, 95% interval {low:.1%} to {high:.1%}"
        shown.append((f"{findings.accuracy:.2%}", words))
    elif isinstance(facts.get("val_accuracy"), float):
        words = f"accuracy on {facts.get('val_images', '?')} held-out images, as training measured it"
        shown.append((f"{facts['val_accuracy']:.2%}", words))
    parameters = sum(p.numel() for p in model.parameters())
    kind = f" of {model.name}" if isinstance(model, CoDANet | Peer) else ""
    shown.append((f"{parameters / 1e6:.2f} M", f"parameters{kind}"))
    shown += [(str(facts[key]), key) for key in ("epochs", "hours") if key in facts]
    if isinstance(model, CoDANet):
        shown.append((f"{model.temperature:g}", "temperature T"))
    return sections.figures(shown)


def missing(words: str) -> str:
    return f"<section><p class='missing'>{text(words)}</p></section>" if words else ""


def origin(model: nn.Module, more: Mapping[str, Any]) -> str:
    """The file, the network, how it was trained, and with what this page was made."""
    network: dict[str, Any] = {}
    if isinstance(model, CoDANet | Peer):
        network = {"name": model.name, "classes": model.num_classes, "image size": list(model.image_size or ())}
    if isinstance(model, CoDANet):
        network["rescale"] = str(model.rescale)
    here = {"codanet": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return sections.facts({**more, "network": network, **provenance_of(model), "report made with": here})
