"""The settings of work that is kept in a folder: written by whoever comes first, the same for all after."""

import json
from pathlib import Path
from typing import Any

from .files import replacing
from .limits import read_json


def settle(
    folder: Path, name: str, settings: dict[str, Any], what: str, *, done: str, others: bool, joined: str = ""
) -> None:
    """Keep the settings, or refuse others than those of the work that is there, or being done.

    name: of the file.
    done: the file that shows that there is work; "" if there is none, when what a folder says of itself does not count.
    others: whether some are at it.
    joined: the name of a setting that is a mapping to which more may be added, but nothing changed.
    """
    path, given = folder / name, json.loads(json.dumps(settings))  # as they are read back
    if done and not path.is_file():
        raise ValueError(f"{folder} holds {done} without {name}, which tells how it was made: choose another --output")
    if path.is_file() and (done or others):
        try:
            before = dict(read_json(path))
            known = dict(before.get(joined, {}))
        except (ValueError, TypeError):
            raise ValueError(f"{path} is damaged: choose another --output") from None
        other = [key for key in given if key != joined and before.get(key) != given[key]]
        words = [f"{key} {before.get(key)!r} instead of {given[key]!r}" for key in other]
        if joined:
            together = {**known, **given[joined]}
            words += [
                f"another {joined.removesuffix('s')} {key!r}" for key, value in known.items() if together[key] != value
            ]
            given[joined] = together
        if words:
            raise ValueError(f"{folder} holds {what} with {', '.join(words)}: choose another --output")
    with replacing(path) as part:
        part.write_text(json.dumps(given, indent=2), encoding="utf-8")
