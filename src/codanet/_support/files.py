"""Files that are there whole or not at all."""

import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STALE_SECONDS = 24 * 3600


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file beside `path` that takes its place only if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.touch(exist_ok=False)
        mode = part.stat().st_mode  # as the user wants files, whoever writes this one anew
        yield part
        part.chmod(mode)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def remove_stale(path: Path) -> None:
    """Drop what a killed process left beside `path` more than a day ago."""
    for part in path.parent.glob(f".{path.name}.*.part"):
        try:
            if time.time() - part.stat().st_mtime > STALE_SECONDS:
                part.unlink()
        except OSError:
            continue


def file_digest(path: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
