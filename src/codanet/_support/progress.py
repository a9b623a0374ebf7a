"""What the terminal shows meanwhile: a line, or a bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .messages import plain


def note(message: str) -> None:
    """One line on stderr: standard output belongs to the caller."""
    print(f"codanet: {plain(message)}", file=sys.stderr, flush=True)


@contextmanager
def progress_bar(
    title: str, total: int | None, *, shown: bool = True, unit: str = "bytes", lines: bool = False
) -> Iterator[Callable[[float], None]]:
    """A bar on stderr; the block calls what it is given with the amount done since the last call.

    lines: where there is no terminal to draw it on, a line for every tenth.
    """
    if not shown or not sys.stderr.isatty():
        yield _tenths(title, total, unit) if shown and lines and total else lambda amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda amount: bar.advance(task, amount)


def _tenths(title: str, total: int, unit: str) -> Callable[[float], None]:
    """A line whenever another tenth is done; the end is for the caller to tell."""
    done = 0.0

    def advance(amount: float) -> None:
        nonlocal done
        before, done = done, done + amount
        if int(10 * before / total) < int(10 * done / total) < 10:
            note(f"{title}: {done:.0f} of {total} {unit}")

    return advance
