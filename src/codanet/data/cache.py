"""Decoded data kept on disk: one safetensors file a data set, written atomically, memory-mapped when read."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from codanet._support.files import replacing
from codanet._support.locks import alone
from codanet._support.messages import reason


def stored(path: Path, build: Callable[[], dict[str, Tensor]]) -> tuple[dict[str, Tensor], str]:
    """The tensors at `path` and the checksum of their training part, built and stored there if they are missing.

    Of several processes that miss them, one builds them and the others wait.
    """
    tensors = _read(path)
    if tensors is not None:
        return tensors
    with ExitStack() as stack:
        with suppress(OSError):  # what cannot be written will not be kept, and needs no lock
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(alone(path.with_name(f".{path.name}.lock"), f"'{path}'", wait=True))
        tensors = _read(path)
        if tensors is None and path.is_file():
            warnings.warn(f"the stored data in '{path}' are damaged and are built again", stacklevel=2)
        return tensors or _built(path, build)


def readable(path: Path) -> bool:
    """Whether they are there, by their header alone, which knows how long the file is."""
    try:
        with safe_open(path, framework="pt") as file:
            return "checksum" in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def _read(path: Path) -> tuple[dict[str, Tensor], str] | None:
    """None if they are missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, file.metadata()["checksum"]
    except (SafetensorError, OSError, KeyError, TypeError):
        return None


def _built(path: Path, build: Callable[[], dict[str, Tensor]]) -> tuple[dict[str, Tensor], str]:
    tensors = {name: tensor.contiguous() for name, tensor in build().items()}
    digest = checksum(tensors["train_images"], tensors["train_labels"])
    try:
        with replacing(path) as part:
            save_file(tensors, part, {"checksum": digest})
    except (OSError, SafetensorError) as error:
        warnings.warn(
            f"decoded data could not be kept in '{path.parent}' ({reason(error)}): they will be decoded again next "
            "time, unless CODANET_DATA names a folder with room",
            stacklevel=2,
        )
    return tensors, digest


def checksum(images: Tensor, labels: Tensor) -> str:
    """sha256 over the bytes of the images and the labels."""
    digest = hashlib.sha256(images.contiguous().numpy().data)
    digest.update(labels.contiguous().numpy().data)
    return digest.hexdigest()


def fingerprint(paths: list[Path]) -> str:
    """Eight hexadecimal digits that change when a file or folder in `paths` is moved, resized or rewritten."""
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        line = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\n"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()[:8]
