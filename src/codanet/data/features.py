"""Features of a frozen network kept on disk: computed once for every view of every picture, checked, of bounded size.

One file of float16 [views, pictures, C, h, w] and one of checksums, a checksum for every entry that is complete, in a
folder that belongs to a run. An interrupted extraction goes on where it stopped; entries that were damaged meanwhile
are found when the folder is opened and computed again.
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codanet._support.errors import DataError
from codanet._support.files import replacing
from codanet._support.limits import read_json
from codanet._support.threads import torch_threads

LIMIT_BYTES = 4 * 2**30
VERSION = 1
DONE = 1 << 32  # added to the checksum of an entry that is there
NUMBER = np.dtype(np.float16)
OURS = ("index.json", "features.bin", "checksums.bin", ".codanet-")  # how the names in such a folder begin


def views_within(limit: int, pictures: int, shape: Sequence[int], wanted: int, others: int = 0) -> int:
    """As many views of the pictures, up to `wanted` and at least one, as `limit` bytes hold beside one of `others`."""
    kept = limit // (int(np.prod(shape)) * NUMBER.itemsize)
    return max(1, min(wanted, (kept - others) // pictures))


class FeatureCache:
    """Maps [C, h, w] by view and picture, in `folder`; what is there already is used if it was made of the same.

    made_of: what the features depend on (backbone, layer, pictures, views, seed), as plain values.
    """

    def __init__(self, folder: Path, made_of: Mapping[str, Any], views: int, pictures: int, shape: Sequence[int]):
        self.folder, self.shape = folder, (views, pictures, *shape)
        self._index = json.loads(json.dumps({"version": VERSION, "shape": self.shape, **made_of}))
        self._features, self._checksums = self._opened()

    def _opened(self) -> tuple[NDArray[np.float16], NDArray[np.uint64]]:
        described = self.folder / "index.json"
        if self.folder.exists() and not self._fits(described):
            strange = [path.name for path in self.folder.iterdir() if not path.name.startswith(OURS)]
            if strange:
                raise DataError(f"'{self.folder}' holds {strange[0]!r}, which is no feature: choose another output")
            warnings.warn(f"the features in '{self.folder}' are of other settings and are made again", stacklevel=4)
            self.remove()
        new = not described.is_file()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            arrays = (
                _mapped(self.folder / "features.bin", NUMBER, self.shape),
                _mapped(self.folder / "checksums.bin", np.dtype(np.uint64), self.shape[:2]),
            )
            if new:  # written last: a folder without it was never complete
                with replacing(described) as part:
                    part.write_text(json.dumps(self._index, indent=2), encoding="utf-8")
        except OSError as error:
            if new:
                self.remove()
            needed = int(np.prod(self.shape)) * NUMBER.itemsize / 2**20
            raise DataError(
                f"the features need {needed:.0f} MiB in '{self.folder}' ({error.strerror}): make room, ask for fewer "
                "views, or choose another output"
            ) from error
        if not new:
            self._forget_damaged(*arrays)
        return arrays

    def _fits(self, described: Path) -> bool:
        try:
            return bool(read_json(described) == self._index)
        except (OSError, ValueError):
            return False

    @staticmethod
    def _forget_damaged(features: NDArray[np.float16], checksums: NDArray[np.uint64]) -> None:
        for place in zip(*checksums.nonzero(), strict=True):
            if int(checksums[place]) != crc32(features[place].tobytes()) + DONE:
                checksums[place] = 0

    def missing(self) -> list[tuple[int, int]]:
        """(view, picture) of every entry still to be computed, in order."""
        return [(int(view), int(picture)) for view, picture in zip(*(self._checksums == 0).nonzero(), strict=True)]

    def write(self, view: int, picture: int, maps: Tensor) -> None:
        """Keep the maps [C, h, w] of one view."""
        numbers = maps.detach().half().contiguous().numpy()
        if not np.isfinite(numbers).all():
            raise DataError(f"the features of picture {picture} are not finite or beyond 65504: choose another layer")
        self._features[view, picture] = numbers
        self._checksums[view, picture] = crc32(numbers.tobytes()) + DONE

    def read(self, views: Tensor, pictures: Tensor) -> Tensor:
        """Maps float16 [n, C, h, w] of so many pairs."""
        return torch.from_numpy(self._features[views.numpy(), pictures.numpy()])

    def remove(self) -> None:
        """With the run that it belongs to."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _mapped(path: Path, kind: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """A file of zeros at first, its room on the disk taken at once: a full disk is an error now, not a crash later."""
    size = int(np.prod(shape)) * kind.itemsize
    with open(path, "ab") as file:
        if file.tell() != size:
            file.truncate(0)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
    return np.memmap(path, kind, "r+", shape=shape)


def extract(
    cache: FeatureCache,
    maps: Callable[[int, int], Tensor],
    advance: Callable[[int], None] = lambda count: None,
    workers: int | None = None,
) -> dict[int, str]:
    """Fill in what is missing with `maps(view, picture)` [C, h, w], in threads of one CPU thread each.

    A thread makes all views of a picture, one after the other. Every view goes through the network alone, so that its
    features are the same in whatever order they are made. Returns why pictures could not be read, by their number.
    """
    groups: dict[int, list[int]] = {}
    for view, picture in cache.missing():
        groups.setdefault(picture, []).append(view)
    unread: dict[int, str] = {}

    def work(picture: int) -> int:
        for view in groups[picture]:
            try:
                with torch.inference_mode():
                    made = maps(view, picture)
            except DataError as error:
                unread[picture] = str(error)
                break
            cache.write(view, picture, made)
        return len(groups[picture])

    pool = ThreadPoolExecutor(workers or min(16, os.cpu_count() or 1))
    with torch_threads(1):
        try:
            for count in pool.map(work, groups):
                advance(count)
        finally:
            pool.shutdown(cancel_futures=True)
    return unread
