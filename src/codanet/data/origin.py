"""Where a data set's files come from: a path the user has, the official address, or the npm client."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from codanet._support.download import cache_root, unpack
from codanet._support.errors import DataError, NetworkError
from codanet._support.files import scratch
from codanet._support.progress import note
from codanet.data.cache import fingerprint, stored

SOURCES = ("auto", "official", "npm")
SUFFIXES = (".zip", ".tar.gz", ".tgz", ".tar")


@dataclass(frozen=True)
class Origin:
    """How the files of one data set are found or fetched, and read."""

    name: str
    markers: tuple[str, ...]  # a folder that holds one of these files holds the data set
    official: Callable[[Path], Path]  # fetch into a folder; an archive or the folder itself
    npm: Callable[[Path], Path] | None
    read: Callable[[Path], dict[str, Tensor]]  # train_images, train_labels, val_images, val_labels …

    def tensors(self, root: Path | None, source: str) -> tuple[dict[str, Tensor], str]:
        """The decoded data and the checksum of their training part: from the cache, `root`, or `source`."""
        if source not in SOURCES or (source == "npm" and self.npm is None):
            allowed = [name for name in SOURCES if name != "npm" or self.npm is not None]
            raise DataError(f"source '{source}' is unknown for {self.name}: choose one of {', '.join(allowed)}")
        if root is None:
            return stored(cache_root() / f"{self.name}.safetensors", lambda: self.fetched(source))
        place = self.locate(root)
        key = fingerprint(watched(place))
        return stored(cache_root() / f"{self.name}-{key}.safetensors", lambda: self.opened(place))

    def fetched(self, source: str) -> dict[str, Tensor]:
        with scratch_folder() as folder:
            if source == "npm" and self.npm is not None:
                return self.opened(self.npm(folder))
            try:
                place = self.official(folder)
            except NetworkError as error:
                if source == "official" or self.npm is None or shutil.which("npm") is None:
                    raise
                note(f"{str(error).split(': ')[0]}; fetching {self.name} through npm instead")
                place = self.npm(folder)
            return self.opened(place)

    def opened(self, place: Path) -> dict[str, Tensor]:
        """Read a folder, or an archive by way of a temporary folder."""
        if place.is_dir():
            return self.read(self.marked(place) or place)
        with scratch_folder() as folder:
            inside = unpack(place, folder / "unpacked")
            marked = self.marked(inside)
            if marked is None:
                raise DataError(f"'{place}' does not hold {self.name}: expected {' or '.join(self.markers)} in it")
            return self.read(marked)

    def locate(self, root: Path) -> Path:
        """The folder or archive of this data set at or below `root`."""
        if not root.exists():
            raise DataError(f"'{root}' does not exist: pass the folder or archive of {self.name}, or leave root out")
        if root.is_file():
            return root
        marked = self.marked(root)
        archives = sorted(path for path in root.iterdir() if path.is_file() and path.name.endswith(SUFFIXES))
        if marked is None and len(archives) == 1:
            return archives[0]
        if marked is None:
            raise DataError(
                f"'{root}' does not hold {self.name}: expected {' or '.join(self.markers)}, or the one archive of them"
            )
        return marked

    def marked(self, folder: Path) -> Path | None:
        """The folder with one of the markers: this one, or one or two levels below."""
        for pattern in ("", "*/", "*/*/"):
            for marker in self.markers:
                for found in sorted(folder.glob(pattern + marker)):
                    return found.parent
        return None


def watched(place: Path) -> list[Path]:
    """What changes when a data set is edited: its files, and the folders of its images."""
    if place.is_file():
        return [place]
    return [place, *sorted([*place.glob("*"), *place.glob("*/*"), *place.glob("*/*/images")])]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder in the cache (or the system's, if that cannot be written), gone afterwards."""
    home = cache_root()
    with ExitStack() as stack:
        try:
            home.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(scratch(home))
        except OSError:
            folder = stack.enter_context(scratch(Path(tempfile.gettempdir())))
        yield folder
