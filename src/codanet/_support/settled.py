"""The settings of work that is kept in a folder: written by whoever comes first, the same for all after."""

import json
from pathlib import Path
from typing import Any

from .files import replacing
from .limits import read_json

SETTINGS = "settings.json"


def settle(
    folder: Path, settings: dict[str, Any], what: str, *, in_use: bool, joined: str = "", name: str = SETTINGS
) -> None:
    """Keep the settings, or refuse others than those of the work that is there, or being done.

    in_use: whether there is any; what an empty folder says of itself does not count.
    name: of the file.
    joined: the name of a setting that is a mapping to which more may be added, but nothing changed.
    """
    path, given = folder / name, json.loads(json.dumps(settings))  # as they are read back
    if path.is_file() and in_use:
        try:
            before = dict(read_json(path))
        except ValueError:
            raise ValueError(f"{path} is damaged: choose another --output, or delete that folder") from None
        other = [key for key in given if key != joined and before.get(key) != given[key]]
        words = [f"{key} {before.get(key)!r} instead of {given[key]!r}" for key in other]
        if joined:
            together = {**before.get(joined, {}), **given[joined]}
            words += [
                f"another {joined.removesuffix('s')} {key!r}"
                for key, value in before.get(joined, {}).items()
                if together[key] != value
            ]
            given[joined] = together
        if words:
            raise ValueError(
                f"{folder} holds {what} with {', '.join(words)}: choose another --output, or delete that folder"
            )
    with replacing(path) as part:
        part.write_text(json.dumps(given, indent=2), encoding="utf-8")
