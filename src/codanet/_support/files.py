"""Files that are there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .locks import acquire, release, supported

STALE_SECONDS = 24 * 3600
PARTS = ".codanet-*.part"  # the folders in which files are written before they take their places


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file that takes the place of `path` only if the block succeeds.

    It lies in a folder of its own beside `path`, with all that a library may put beside it, and the folder is locked: a
    process that is killed leaves it, and the next one that writes there removes it. A link is followed, and stays. A
    character device (a terminal, /dev/null) is written to once the block has succeeded; pipes, sockets and disks are
    refused, since their reader would get no file, or may never come.
    """
    path = _followed(path)
    if path.exists() and not path.is_file():
        with _beside_a_device(path) as part:
            yield part
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with scratch(path.parent) as folder:
        part = folder / path.name
        part.touch(exist_ok=False)
        mode = part.stat().st_mode  # the user's own default, whichever process replaces the file
        yield part
        part.chmod(mode)
        os.replace(part, path)


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, locked, and gone afterwards; what a killed process left of its own is removed first."""
    remove_leftovers(parent)
    folder, lock = _unused(parent), None
    try:  # from before the folder is there: a Ctrl-C between two lines leaves none behind
        folder.mkdir()
        while (lock := _locked(folder)) is None:  # taken for a leftover
            folder = _unused(parent)
            folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            release(lock)


def _unused(parent: Path) -> Path:
    """The name of a folder that is not there yet."""
    return parent / f".codanet-{secrets.token_hex(6)}.part"


def _locked(folder: Path) -> int | None:
    try:
        return acquire(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None


def _followed(path: Path) -> Path:
    """What a link points to."""
    if not path.is_symlink():
        return path
    target = path.resolve()
    # where it is a pipe, /dev/stdout resolves to a name that does not exist
    return target if not path.exists() or (target.exists() and target.samefile(path)) else path


@contextmanager
def _beside_a_device(path: Path) -> Iterator[Path]:
    kind = path.stat().st_mode
    if not stat.S_ISCHR(kind):
        kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
        what = next((word for test, word in kinds if test(kind)), "a device")
        raise ValueError(f"{path} is {what}, and a file is written whole or not at all: give the name of a file")
    with scratch(Path(tempfile.gettempdir())) as folder:
        part = folder / path.name
        part.touch()
        yield part
        with part.open("rb") as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)


def remove_leftovers(parent: Path) -> None:
    """Drop what killed processes left in a folder; where there are no locks, what is older than a day."""
    for folder in parent.glob(PARTS):
        try:
            if not supported(parent) and time.time() - folder.stat().st_mtime < STALE_SECONDS:
                continue
            lock = acquire(folder, os.O_RDONLY)
        except OSError:
            continue
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            release(lock)


def check_apart(outputs: Iterable[Path], inputs: Iterable[Path], done: str) -> None:
    """Refuse to write over what is read, to be `done` (explained, exported)."""
    read = {_identity(path) for path in inputs} - {None}
    for output in outputs:
        if _identity(output) in read:
            raise ValueError(f"{output} is what is to be {done}: give -o another name")


def _identity(path: Path) -> tuple[int, int] | None:
    """The same for all names of a file; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def expanded(path: str | os.PathLike[str]) -> Path:
    """With ~ and ~user as the folders they stand for."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"{os.fspath(path)} names the home of a user who is not known here: give it in full") from None


def file_digest(path: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
