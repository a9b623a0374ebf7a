"""Several processes at one piece of work, in one folder that all of them see: who does which part.

A part is claimed by a lock on one byte of a file. It is the kernel's lock (POSIX, which NFS knows as well), and ends
with the process that holds it, however that ends: nothing has to be cleaned up after a kill. Where there are no such
locks every claim succeeds, and a part that is done twice gives the same result twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from .limits import shown
from .locks import LOCK, alone
from .progress import note

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CLAIMS = ".codanet.claims"
STARTERS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))  # torchrun's variables, SLURM's
BY_WORKERS = "CODANET_WORKER"  # set for the processes that --workers starts
MOST_WORKERS = 1024
PRESENT, SETTLING, FIRST_PART = 0, 1, 16  # bytes of the file of claims
WAIT_SECONDS = 0.2

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Which of how many processes this one is."""

    rank: int = 0
    size: int = 1


def place() -> Place:
    """As torchrun, SLURM or `--workers` say; the only one if nobody does."""
    for rank_name, size_name in STARTERS:
        if rank_name in os.environ and size_name in os.environ:
            given = os.environ[rank_name], os.environ[size_name]
            if not all(word.isdecimal() for word in given) or not int(given[0]) < int(given[1]) <= MOST_WORKERS:
                raise ValueError(
                    f"{rank_name} is {shown(given[0])} and {size_name} {shown(given[1])}: they say which of how many "
                    f"processes this is, so give 0 of 1 up to {MOST_WORKERS - 1} of {MOST_WORKERS}, or unset them"
                )
            return Place(int(given[0]), int(given[1]))
    return Place()


class Crew:
    """A process among those that work in a folder; make it with `crew_in`."""

    def __init__(self, folder: Path, place: Place, file: int):
        self.folder, self.rank, self.size, self._file = folder, place.rank, place.size, file

    def in_order(self, parts: Sequence[T]) -> list[T]:
        """This process's share first (every size-th part from its rank on), then the others'."""
        return [part for shift in range(self.size) for part in parts[(self.rank + shift) % self.size :: self.size]]

    @contextmanager
    def claim(self, part: object) -> Iterator[bool]:
        """Whether the part is this process's, for as long as the block runs."""
        place = FIRST_PART + int.from_bytes(sha256(repr(part).encode()).digest()[:7], "big") // 2
        mine = self._lock(place, wait=False)
        try:
            yield mine
        finally:
            if mine:
                self._unlock(place)

    @contextmanager
    def settling(self) -> Iterator[bool]:
        """One process at a time; whether it is the only one in the folder."""
        self._lock(SETTLING, wait=True)
        try:
            only = self._lock(PRESENT, wait=False)
            self._lock(PRESENT, wait=True, shared=True)  # which makes an exclusive lock a shared one
            yield only
        finally:
            self._unlock(SETTLING)

    def _lock(self, byte: int, *, wait: bool, shared: bool = False) -> bool:
        if fcntl is None:
            return True
        try:
            fcntl.lockf(
                self._file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB), 1, byte
            )
        except BlockingIOError:
            return False
        except PermissionError:  # what some systems say instead
            return False
        except OSError:  # a file system without locks
            return True
        return True

    def _unlock(self, byte: int) -> None:
        if fcntl is not None:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)
            except OSError:
                return


@contextmanager
def crew_in(folder: Path, what: str, place: Place) -> Iterator[Crew]:
    """This process among those that work in a folder, which is made if it is missing; no other may have its rank."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            rank = LOCK if place.rank == 0 else f"{LOCK}-{place.rank}"
            words = f"{what} in {folder}" + (f" (as process {place.rank} of {place.size})" if place.size > 1 else "")
            stack.enter_context(alone(folder / rank, words))
            file = os.open(folder / CLAIMS, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ValueError(f"{folder} cannot be used ({error.strerror or error}): choose another --output") from None
        stack.callback(os.close, file)
        yield Crew(folder, place, file)


@contextmanager
def workers(number: int, arguments: Iterable[str]) -> Iterator[Place]:
    """The other processes of `--workers N`, started with the same command; this one is the first.

    They end with this process, and one that is killed is no loss: its parts are done by the others.
    """
    arguments, started = list(arguments), list[subprocess.Popen[bytes]]()
    for rank in range(1, number):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(number), BY_WORKERS: "1"}
        command = [sys.executable, "-m", "codanet", *arguments]
        started.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))
    try:
        yield Place(0, number)
        for rank, process in enumerate(started, 1):
            if code := process.poll():
                how = f"was ended by signal {-code}" if code < 0 else "ended with an error"
                note(f"worker {rank} {how}; the others have done its work")
    finally:
        for process in started:
            if process.stdin:
                process.stdin.close()  # which tells it that nobody waits for it any more
            if process.poll() is None:
                process.terminate()
                process.wait()


def end_with_the_starter() -> None:
    """In a process that `workers` started: end when the one that started it has, killed or not."""
    if BY_WORKERS not in os.environ:
        return

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
