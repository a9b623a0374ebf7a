"""A model, a training run or an evaluation as one HTML page that needs nothing else: `report("runs/digits")`."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

from .._support.files import check_apart, expanded, replacing
from .._support.html import text
from .._support.messages import nearest
from .._support.numbers import check_whole
from .._support.version import __version__
from ..evaluation.models import weights_of
from . import evaluation_page, model_page, run_page
from .card import IMAGES
from .sources import SPLITS, kind

CSS = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # nothing is fetched, nothing runs


def report(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    data: str | os.PathLike[str] | None = None,
    split: str | None = None,
    root: str | os.PathLike[str] | None = None,
    corrupted: int = IMAGES,
    quiet: bool = False,
) -> Path:
    """Write the page: what the model decides, on images that it was not trained on, and why.

    The confusion matrix, the decisions and the card need the images: they are taken from where the run had them, from
    `root`, or from the cache; none are downloaded.

    Args:
        source: The folder that `codanet evaluate` or `codanet train` left, or a model: the name of one that comes with
            the package, a .safetensors or .onnx file, or resnet56:PATH.
        output: The file to write; by default report.html in that folder, and MODEL-report.html for a model.
        data: Of a model: a data set's name or a folder of pictures, if it is not to be what it was trained on. Pictures
            that it was trained on are known by their checksum, wherever they lie.
        split: Of a model: "held-out", the training images that its training left out, or "test"; by default the first
            where there are any, so that the test images stay unseen.
        root: Folder or archive of the data set, if it has moved.
        corrupted: On how many of the images, made worse, the model is tried.
        quiet: Show no progress.

    Returns:
        The file that was written.

    Raises:
        ValueError: If the folder holds neither a run nor an evaluation, the data that were given are unknown or do not
            fit the model, or the page would be written over what it is made of.

    Examples:
        >>> report("cifar10", "why.html")  # doctest: +SKIP
        PosixPath('why.html')
    """
    check_whole(0, corrupted=corrupted)
    if split is not None and split not in SPLITS:
        raise ValueError(f"unknown split {split!r}{nearest(split, SPLITS)}")
    place = None if root is None else expanded(root)
    folder, what = expanded(source), kind(source)
    if what == "model":
        name, path = model_page.name_of(str(source)), Path(f"{model_page.name_of(str(source))}-report.html")
    else:
        name, path = folder.resolve().name, folder / "report.html"
        if data is not None or split is not None:
            raise ValueError(
                f"{folder} is the folder of a run or an evaluation, which have images of their own: leave data and "
                "split out, or give a model"
            )
    path = expanded(output) if output is not None else path
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file, such as {path / 'report.html'}")
    check_apart([path], _made_of(str(source)) if what == "model" else _files(folder), "reported")
    if what == "evaluation":
        body, title = evaluation_page.body(folder, place, corrupted, quiet), f"{name}: evaluation"
    elif what == "run":
        body, title = run_page.body(folder, place, corrupted, quiet), f"{name}: training run"
    else:
        body, title = model_page.body(str(source), data, split, place, corrupted, quiet), f"{name}: model"
    try:
        with replacing(path) as part:
            part.write_text(page(title, body), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror or error}): choose another -o") from None
    return path


def _made_of(model: str) -> list[Path]:
    weights = weights_of(model)
    if weights is None:
        raise ValueError(
            f"{model} may have to be fetched, and a report fetches nothing: give the file of the weights, as in "
            f"{model.replace('official', 'FILE')}"
        )
    return [weights]


def _files(folder: Path) -> list[Path]:
    """Of a run or an evaluation, without earlier reports."""
    return [each for each in folder.iterdir() if each.suffix != ".html"]


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
