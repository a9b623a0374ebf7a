"""Locks that end with the process that holds them, however it ends.

They are the kernel's (flock): a killed process leaves at most an empty file behind, never the lock. Where a system or a
file system has none, nothing is locked, as `supported` says.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .progress import note

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".codanet.lock"  # in a folder that belongs to one process at a time
UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_held: set[int] = set()  # descriptors


class Busy(ValueError):
    """Another process is at work there."""


def _forget() -> None:
    """A forked child, such as a reader of images, must not keep the lock of a parent that was killed."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def acquire(path: Path, flags: int, *, wait: bool = False) -> int | None:
    """A descriptor of `path` that holds its lock, or None if another process does.

    What has been removed or replaced meanwhile is opened anew, so whoever holds a lock may remove what it is on.
    """
    while True:
        descriptor = os.open(path, flags, 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            if error.errno not in UNSUPPORTED:
                raise
            descriptor = os.open(path, flags, 0o666)
        except BaseException:
            os.close(descriptor)
            raise
        try:
            there = os.stat(path)
        except FileNotFoundError:
            there = None
        mine = os.fstat(descriptor)
        if there is not None and (there.st_ino, there.st_dev) == (mine.st_ino, mine.st_dev):
            _held.add(descriptor)
            return descriptor
        os.close(descriptor)


def release(descriptor: int) -> None:
    if descriptor in _held:
        _held.discard(descriptor)
        os.close(descriptor)


def supported(folder: Path) -> bool:
    """Whether a lock in this folder can be trusted."""
    if fcntl is None:
        return False
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in UNSUPPORTED
    finally:
        os.close(descriptor)
    return True


@contextmanager
def alone(path: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Only one process at a time is inside, for the same `path`: a file made for the purpose.

    With `wait` the others wait; otherwise they get a `Busy` that begins with `what`.
    """
    flags = os.O_RDWR | os.O_CREAT
    descriptor = acquire(path, flags)
    if descriptor is None and wait:
        note(f"{what} is in use by {_holder(path)}: waiting until it has finished")
        descriptor = acquire(path, flags, wait=True)
    if descriptor is None:
        raise Busy(f"{what} is in use by {_holder(path)}: wait until it has finished, or choose another place")
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        if descriptor in _held:  # not in a forked child
            path.unlink(missing_ok=True)
            release(descriptor)


@contextmanager
def alone_in(folder: Path, what: str) -> Iterator[None]:
    """Only one process at a time, in a folder that is made if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} cannot be used ({error.strerror or error}): choose another --output") from None
    with alone(folder / LOCK, f"{what} in {folder}"):
        yield


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")[:200] or "another process"
    except (OSError, UnicodeDecodeError):
        return "another process"
