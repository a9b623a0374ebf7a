"""Limits on what comes from a file or an argument, checked before any work is done with it."""

from __future__ import annotations

import json
import os
import reprlib
from pathlib import Path
from typing import Any

MOST_TEXT = 64 * 2**20  # bytes of a file of JSON
MOST_THREADS = max(64, 4 * (os.cpu_count() or 1))
LARGEST = 2**31 - 1  # of a number that counts something


def shown(value: object, most: int = 80) -> str:
    """A value for a message: repr, cut where it is long or deep."""
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = brief.maxlong = most
    brief.maxlevel = 3
    return brief.repr(value)


def parse_json(words: str | bytes) -> Any:
    """json.loads, with a ValueError for whatever is wrong, a nesting that is too deep among it."""
    try:
        return json.loads(words)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """The JSON in a file of at most 64 MiB."""
    if path.stat().st_size > MOST_TEXT:
        raise ValueError(f"it is larger than {MOST_TEXT // 2**20} MiB")
    return parse_json(path.read_text(encoding="utf-8"))


def check_threads(number: int | None) -> int | None:
    """As many threads as a machine can start; more of them end the process by a signal."""
    if number is not None and not 1 <= number <= MOST_THREADS:
        raise ValueError(
            f"threads is {shown(number)}: it must be from 1 to {MOST_THREADS}, on this machine of {os.cpu_count()} "
            "processors"
        )
    return number
