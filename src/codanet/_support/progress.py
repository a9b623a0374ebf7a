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
    title: str, total: int | None, *, shown: bool = True, unit: str = "bytes"
) -> Iterator[Callable[[float], None]]:
    """A bar on stderr; the block calls what it is given with the amount done since the last call."""
    if not shown or not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda amount: bar.advance(task, amount)
