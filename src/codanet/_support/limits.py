"""Limits on what comes from a file or an argument, checked before any work is done with it."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_TEXT = 64 * 2**20  # bytes of a file of JSON
MOST_THREADS = max(64, 4 * (os.cpu_count() or 1))
LARGEST = 2**31 - 1  # the largest number that may count something
MOST_SAMPLES = 1_000_000  # masks, steps or samples that a method takes of a picture
MOST_YAML, MOST_NESTING = 2**20, 8  # bytes and levels of a file of settings


def memory() -> int | None:
    """Bytes of this machine, where it tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None


def shown(value: object, most: int = 80) -> str:
    """A value for a message: repr, cut where it is long or deep."""
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = brief.maxlong = most
    brief.maxlevel = 3
    return brief.repr(value)


def parse_json(words: str | bytes) -> Any:
    """json.loads, with a ValueError for anything wrong, including nesting that is too deep."""
    try:
        return json.loads(words)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """The JSON in a file of at most 64 MiB."""
    if path.exists() and not path.is_file():
        raise ValueError("it is not a regular file")  # a device or a pipe may never end
    if path.stat().st_size > MOST_TEXT:
        raise ValueError(f"it is larger than {MOST_TEXT // 2**20} MiB")
    return parse_json(path.read_text(encoding="utf-8"))


def seed_in(settings: Mapping[str, Any]) -> int:
    """The seed in settings that a file holds; 0 for what cannot be one."""
    seed = settings.get("seed")
    return seed if isinstance(seed, int) and 0 <= seed < 2**63 else 0


def holdout_in(settings: Mapping[str, Any]) -> int:
    """How many training images a training held out for choices; 0 for what is no such number."""
    number = settings.get("holdout")
    return number if isinstance(number, int) and number > 0 else 0


def mapping(value: object) -> dict[str, Any]:
    """A file may say anything."""
    return dict(value) if isinstance(value, Mapping) else {}


def parse_yaml(words: str) -> Any:
    """yaml.safe_load of settings, which are small and flat and refer to nothing: a ValueError for anything else."""
    import yaml

    if len(words) > MOST_YAML:
        raise ValueError(f"it is longer than {MOST_YAML // 2**20} MiB")
    depth = 0
    for event in yaml.parse(words, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has an alias (*), which settings do without")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_NESTING:
            raise ValueError("it is nested too deeply")
    return yaml.safe_load(words)


def check_threads(number: int | None) -> int | None:
    """As many threads as a machine can start; more of them end the process by a signal."""
    if number is not None and not 1 <= number <= MOST_THREADS:
        raise ValueError(
            f"threads is {shown(number)}: it must be from 1 to {MOST_THREADS}, on this machine of {os.cpu_count()} "
            "processors"
        )
    return number
