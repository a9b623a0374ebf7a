"""Picture files: found in folders, and by patterns."""

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from .errors import DataError
from .files import expanded

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
IGNORED = {"thumbs.db", "desktop.ini", "__macosx"}


def visible(entry: Path) -> bool:
    return not entry.name.startswith(".") and entry.name.lower() not in IGNORED


def image_files(folder: Path) -> list[Path]:
    """All visible files below `folder`, sorted."""
    files: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if visible(Path(name)))
        files.extend(Path(place, name) for name in names if visible(Path(name)))
    return sorted(files)


def picture_paths(words: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Files as they are given, the pictures in folders, and what patterns such as 'photos/*.jpg' match; each once."""
    paths: dict[Path, None] = {}
    for word in words:
        path = expanded(word)
        if path.is_dir():
            matches = [file for file in image_files(path) if file.suffix.lower() in SUFFIXES]
            if not matches:
                raise DataError(f"'{path}' has no pictures in it: give a folder of {', '.join(SUFFIXES)} files")
        elif path.exists() or not glob.has_magic(str(word)):
            matches = [path]
        else:
            matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if not Path(name).is_dir()]
            if not matches:
                raise DataError(f"nothing matches '{word}': check the pattern and the folder")
        paths.update(dict.fromkeys(matches))
    if missing := [path for path in paths if not path.exists()]:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise DataError(f"'{missing[0]}'{more} does not exist: check the path of the picture")
    return list(paths)
