"""`codanet page`: models, engine and pictures in one HTML file that asks nothing of any network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .._support.files import expanded, replacing
from .._support.html import picture_uri, text
from .._support.lazy import called
from .._support.messages import reason
from .._support.numbers import for_json
from .._support.version import __version__
from .._support.web import HEAD, ICON, script, styles
from ..data import ImageData
from ..data.examples import check_shown, examples
from ..data.image import size_for
from ..models.facts import facts, named_classes
from ..models.hybrid import HybridNet
from ..models.network import CoDANet
from ..plot.colours import PALETTES, PERCENTILE, SHADES, heatmap
from .check import Differences
from .engine import BINARY, PACKAGE, SCRIPT, VERSION, engine
from .write import export, exportable

WEB = Path(__file__).parent / "web"
SHARED = ("picker", "viewer", "chooser", "saver")  # the scripts that `codanet demo` has, too
OWN = ("packing", "picture", "colours", "network", "views", "files", "desk")
PICTURE_SIDE = 224  # the shorter side of the examples
MOST_BYTES = 64 * 2**20  # the largest picture the page takes
# Nothing but what is in the file: scripts by digest, the engine from the page's own memory, no request anywhere.
POLICY = (
    "default-src 'none'; script-src '{digest}' blob: 'wasm-unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Page:
    """A page that was written."""

    path: Path
    bytes: int
    differences: dict[str, Differences]  # how far every model's graph is from PyTorch


def page(
    models: Mapping[str, CoDANet],
    path: str | os.PathLike[str],
    *,
    data: ImageData | None = None,
    half: bool = False,
) -> Page:
    """Write one HTML file in which the models explain any picture, in the browser alone.

    Args:
        models: By the names they go by on the page; grey or RGB.
        path: Where to write, whole or not at all.
        data: What gives the pictures to begin with, as in `codanet demo`.
        half: Keep the weights in half precision: a smaller page, with slightly other numbers.

    Raises:
        ValueError: for what cannot be shown or written, and if the engine cannot be had.

    Examples:
        >>> codanet.export.page({"cifar10": codanet.load("cifar10")}, "why.html").path  # doctest: +SKIP
        PosixPath('why.html')
    """
    path = _checked(models, data, expanded(path))
    place = engine()
    blocks = {"engine": (place / SCRIPT).read_bytes(), "binary": (place / BINARY).read_bytes()}
    differences = {}
    try:
        with replacing(path) as part:
            for number, (name, model) in enumerate(models.items()):
                file = part.with_name(f"{number}.onnx")
                try:
                    exported = export(model, file, half=half)
                except ValueError as error:
                    raise ValueError(str(error).replace(str(file), f"{path}, for {name},")) from None
                blocks[f"model-{number}"] = exported.path.read_bytes()
                differences[name] = exported.half or exported.differences
            content = _document(models, data, blocks).encode("utf-8")
            part.write_bytes(content)
    except OSError as error:
        raise ValueError(f"{path} could not be written ({reason(error)}): make room or choose another place") from None
    return Page(path, len(content), differences)


def _checked(models: Mapping[str, CoDANet], data: ImageData | None, path: Path) -> Path:
    check_shown({name: exportable(model) for name, model in models.items()}, data)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file, such as {path / 'why.html'}")
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{path} does not end in .html: a browser would not know it for a page")
    return path


def _document(models: Mapping[str, CoDANet], data: ImageData | None, blocks: Mapping[str, bytes]) -> str:
    program = _program()
    digest = "sha256-" + base64.b64encode(hashlib.sha256(program.encode("utf-8")).digest()).decode("ascii")
    packed = "\n".join(_packed(name, content) for name, content in blocks.items())
    words = json.dumps(for_json(_settings(models, data)), allow_nan=False).replace("<", "\\u003c")
    title = " and ".join(models) if len(models) < 3 else f"{len(models)} models"
    return (
        (WEB / "page.html")
        .read_text(encoding="utf-8")
        .format(
            policy=POLICY.format(digest=digest),
            title=text(title),
            icon=ICON,
            styles=styles() + (WEB / "page.css").read_text(encoding="utf-8"),
            head=HEAD,
            version=text(__version__),
            engine=f"{PACKAGE} {VERSION}",
            settings=words,
            packed=packed,
            program=program,
        )
    )


def _program() -> str:
    """The scripts as one: those of `codanet demo` become functions of what Gradio would give them."""
    shared = "".join(f"function {name}(element, trigger, props, watch) {{\n{script(name)}}}\n" for name in SHARED)
    own = "\n".join((WEB / f"{name}.js").read_text(encoding="utf-8") for name in OWN)
    return f'"use strict";\n{shared}\n{own}'


def _packed(name: str, content: bytes) -> str:
    """Compressed, five letters for four bytes; without < there is nothing in it that could end the element."""
    small = gzip.compress(content, 9, mtime=0)
    letters = base64.b85encode(small, pad=True).decode("ascii").replace("<", ",")
    return f'<script type="text/plain" id="{name}" data-bytes="{len(small)}">{letters}</script>'


def _settings(models: Mapping[str, CoDANet], data: ImageData | None) -> dict[str, Any]:
    pictures: dict[str, dict[str, str]] = {}
    described = []
    for number, (name, model) in enumerate(models.items()):
        keys = []
        for title, image in examples(model, data).items():
            uri = picture_uri(_small(image, model), "PNG" if max(image.size) <= 128 else "JPEG")
            key = next((known for known, other in pictures.items() if other["uri"] == uri), f"example-{len(pictures)}")
            pictures[key] = {"title": title, "uri": uri}
            keys.append(key)
        described.append({"block": f"model-{number}", "title": name, "pictures": keys, **_described(model)})
    shades = heatmap(np.linspace(-1, 1, SHADES)[None], 1.0)[0]
    return {
        "version": __version__,
        "models": described,
        "pictures": pictures,
        "shades": base64.b64encode(shades.tobytes()).decode("ascii"),
        "palette": PALETTES["red-blue"].split(),
        "percentile": PERCENTILE,
        "most_bytes": MOST_BYTES,
    }


def _small(image: Image.Image, model: CoDANet) -> Image.Image:
    shorter = max(PICTURE_SIDE, *size_for(model))
    scale = min(1.0, shorter / min(image.size))
    return image if scale == 1 else image.resize((round(image.width * scale), round(image.height * scale)))


def _described(model: CoDANet) -> dict[str, Any]:
    return {
        "name": model.name,
        "classes": named_classes(model),
        "size": size_for(model),
        "channels": model.image_channels,
        "temperature": model.temperature,
        "bias": model.logit_bias,
        "exact_for": model.exact_for if isinstance(model, HybridNet) else "",  # where that is not the pixels
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "facts": facts(model),
    }


called(__name__, page)
