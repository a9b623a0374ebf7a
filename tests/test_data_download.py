"""Downloads that break, lie or do not fit, and archives that try to leave their folder."""

import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from codanet._support import download as download_module
from codanet._support import files as files_module
from codanet._support.download import cache_root, fetch, npm_pack, unpack
from codanet.data import DataError, NetworkError

CONTENT = bytes(range(256)) * 4096  # 1 MiB


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/unknown-length":
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        if self.path == "/cut":
            self.wfile.write(CONTENT[: len(CONTENT) // 2])
        elif self.path == "/slow":
            try:
                for start in range(0, len(CONTENT), 4096):
                    self.wfile.write(CONTENT[start : start + 4096])
                    time.sleep(0.05)
            except OSError:
                pass
        else:
            self.wfile.write(CONTENT)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_fetch(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "file.bin"
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert fetch(f"{address}/file", path, sha256=digest, md5=hashlib.md5(CONTENT).hexdigest()) == path
    assert path.read_bytes() == CONTENT
    assert os.listdir(path.parent) == ["file.bin"]
    fetch(f"{address}/unknown-length", path, sha256=digest[:8])
    for short in ("", digest[:7], "0" * 8):
        with pytest.raises(DataError, match="checksum"):
            fetch(f"{address}/file", path, sha256=short)
    output = capsys.readouterr()
    assert output.out == ""
    assert f"{address}/file" in output.err


@pytest.mark.parametrize(
    ("page", "words", "kind"),
    [
        ("cut", "was cut after 524288 of 1048576 bytes|cannot be reached", NetworkError),
        ("missing", "answered 404", NetworkError),
        ("wrong", "checksum", DataError),
    ],
)
def test_failed_fetch_leaves_nothing(address: str, tmp_path: Path, page: str, words: str, kind: type) -> None:
    with pytest.raises(kind, match=words) as error:
        fetch(f"{address}/{page}", tmp_path / "file.bin", sha256="0" * 64 if page == "wrong" else None)
    assert not str(error.value).endswith(".")
    assert os.listdir(tmp_path) == []


def test_failed_fetch_keeps_what_was_there(address: str, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"before")
    with pytest.raises(DataError):
        fetch(f"{address}/cut", path)
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["file.bin"]


def test_no_network(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=r"127\.0\.0\.1 cannot be reached .*pass the path of files you have as root"):
        fetch("http://127.0.0.1:1/file", tmp_path / "file.bin")
    with pytest.raises(NetworkError, match="cannot be reached"):
        fetch("http://no-such-host.invalid/file", tmp_path / "file.bin")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("url", ["file:///etc/hosts", "ftp://example.org/x", "cifar10", "http://"])
def test_only_web_addresses(url: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="web address"):
        fetch(url, tmp_path / "file.bin")


def test_cancelled(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(download_module, "copy", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(f"{address}/file", tmp_path / "file.bin")
    assert os.listdir(tmp_path) == []


def running_fetch(url: str, path: Path, before: str = "") -> subprocess.Popen[bytes]:
    imports = "from pathlib import Path\nfrom codanet._support.download import fetch"
    code = f"{before}\n{imports}\nfetch({url!r}, Path({str(path)!r}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, env=environment)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGKILL"])
def test_really_stopped(address: str, tmp_path: Path, signal_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.bin"
    process = running_fetch(f"{address}/slow", path)
    deadline = time.monotonic() + 30
    while not os.listdir(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(getattr(signal, signal_name))
    process.communicate()
    assert not path.exists()
    if signal_name == "SIGINT":
        assert os.listdir(tmp_path) == []
    else:  # nobody could clean up: the next download does, once the remains are old
        monkeypatch.setattr(files_module, "STALE_SECONDS", -1)
        fetch(f"{address}/file", path)
        assert os.listdir(tmp_path) == ["file.bin"]


def test_stopped_before_its_folder_is_locked(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        assert os.listdir(tmp_path), "the folder is there already"
        raise KeyboardInterrupt

    monkeypatch.setattr(files_module, "acquire", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(f"{address}/file", tmp_path / "file.bin")
    assert os.listdir(tmp_path) == []


def test_disk_too_full_is_known_before(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(DataError, match="MB free, but 1 MB are needed"):
        fetch(f"{address}/file", tmp_path / "file.bin")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="resource limits")
def test_write_that_really_fails(address: str, tmp_path: Path) -> None:
    limit = "import resource, torch; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))"
    process = running_fetch(f"{address}/file", tmp_path / "file.bin", limit)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"cannot be written (File too large)" in errors
    assert os.listdir(tmp_path) == []


def test_folder_that_cannot_be_written(address: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(DataError, match="CODANET_DATA"):
        fetch(f"{address}/file", tmp_path / "taken" / "file.bin")


def test_cache_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CODANET_DATA", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("CODANET_DATA")
    assert cache_root() == Path.home() / ".cache" / "codanet"


# npm


def fake_npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script plays npm")
def test_npm_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path / "bin", 'test "$1 $2" = "pack thing@1.0.0" && printf content > thing-1.0.0.tgz', monkeypatch)
    good, cache = hashlib.sha512(b"content").hexdigest(), tmp_path / "cache"
    with pytest.raises(DataError, match="checksum"):
        npm_pack("thing", "1.0.0", cache, sha512="0" * 128)
    assert os.listdir(cache) == []
    path = npm_pack("thing", "1.0.0", cache, sha512=good)
    assert path.read_bytes() == b"content"
    assert os.listdir(cache) == [path.name]
    monkeypatch.setenv("PATH", "")
    assert npm_pack("thing", "1.0.0", cache, sha512=good) == path


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script plays npm")
def test_npm_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path / "bin", "echo 'npm error network down' >&2; exit 1", monkeypatch)
    with pytest.raises(NetworkError, match="network down") as error:
        npm_pack("thing", "1.0.0", tmp_path / "cache", sha512="")
    assert str(error.value).endswith("as root")
    assert os.listdir(tmp_path / "cache") == []
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NetworkError, match="not installed"):
        npm_pack("thing", "1.0.0", tmp_path / "cache", sha512="")


# archives


def make_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def make_tar(path: Path, members: dict[str, bytes], extra: tarfile.TarInfo | None = None) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
        if extra is not None:
            file.addfile(extra)
    return path


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_unpack(make: type, tmp_path: Path) -> None:
    archive = make(tmp_path / "a.archive", {"top/one.txt": b"1", "top/deep/two.txt": b"22"})
    folder = unpack(archive, tmp_path / "new" / "out")
    assert (folder / "top/one.txt").read_bytes() == b"1"
    assert (folder / "top/deep/two.txt").read_bytes() == b"22"
    assert os.listdir(tmp_path / "new") == ["out"]
    with pytest.raises(DataError, match="exists already"):
        unpack(archive, folder)


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize("name", ["../out.txt", "/tmp/out.txt", "a/../../out.txt", "..\\out.txt", "C:\\out.txt"])
def test_no_path_leaves_the_folder(make: type, name: str, tmp_path: Path) -> None:
    archive = make(tmp_path / "a.archive", {"fine.txt": b"1", name: b"2"})
    with pytest.raises(DataError, match="outside the folder"):
        unpack(archive, tmp_path / "in" / "out")
    assert os.listdir(tmp_path / "in") == []
    assert sorted(os.listdir(tmp_path)) == ["a.archive", "in"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_tar_links_and_devices(kind: bytes, tmp_path: Path) -> None:
    extra = tarfile.TarInfo("link")
    extra.type, extra.linkname = kind, "/etc/passwd"
    archive = make_tar(tmp_path / "a.tar.gz", {"fine.txt": b"1"}, extra)
    with pytest.raises(DataError, match="link or a device"):
        unpack(archive, tmp_path / "out")
    assert os.listdir(tmp_path) == ["a.tar.gz"]


def test_zip_link(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        info = zipfile.ZipInfo("link")
        info.external_attr = 0o120777 << 16
        file.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="link or a device"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_unpacked_size_is_bounded(make: type, tmp_path: Path) -> None:
    archive = make(tmp_path / "bomb", {"a": bytes(600_000), "b": bytes(600_000)})
    assert archive.stat().st_size < 5000
    with pytest.raises(DataError, match="more bytes than are allowed"):
        unpack(archive, tmp_path / "out", limit=1_000_000)
    assert os.listdir(tmp_path) == ["bomb"]


def test_zip_that_lies_about_its_size(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", {"a": bytes(600_000)})
    size = (600_000).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(size, (10).to_bytes(4, "little")))
    with pytest.raises(DataError):
        unpack(path, tmp_path / "out", limit=1000)
    assert os.listdir(tmp_path) == ["a.zip"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_repeated_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("a", "1")
        file.writestr("a", "2")
    with pytest.raises(DataError, match="repeated"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_truncated_archive(make: type, tmp_path: Path) -> None:
    content = os.urandom(200_000)
    whole = make(tmp_path / "whole", {"a": content, "b": content}).read_bytes()
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 30):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(DataError, match="not a complete"):
            unpack(tmp_path / "cut", tmp_path / "out")
        assert sorted(os.listdir(tmp_path)) == ["cut", "whole"]
    with pytest.raises(DataError, match="is not a file"):
        unpack(tmp_path / "none", tmp_path / "out")


def test_damaged_tar_of_another_compression(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.xz"
    with tarfile.open(path, "w:xz") as file:
        member = tarfile.TarInfo("a")
        member.size = 200_000
        file.addfile(member, io.BytesIO(os.urandom(member.size)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a complete"):
        unpack(path, tmp_path / "out")
    assert os.listdir(tmp_path) == ["a.tar.xz"]
