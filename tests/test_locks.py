"""One folder, one process; and nothing that a killed process can leave in the way of the next."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from codanet._support.files import remove_leftovers, replacing
from codanet._support.locks import LOCK, Busy, alone, alone_in
from codanet.data.cache import stored

HOLD = """
import os, sys, time
from pathlib import Path
from codanet._support.locks import alone_in
with alone_in(Path(sys.argv[1]), "the run"):
    if len(sys.argv) > 2:
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.write(writing, b".")
            time.sleep(60)  # a child that outlives its parent
            os._exit(0)
        os.read(reading, 1)  # the child has begun, and so let go of what it got with the fork
    print("held", flush=True)
    time.sleep(60)
"""


def holder(folder: Path, *more: str) -> subprocess.Popen:
    words = [sys.executable, "-c", HOLD, str(folder), *more]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("more", [(), ("fork",)], ids=["alone", "with a child"])
def test_a_killed_process_leaves_no_lock(tmp_path, more):
    process = holder(tmp_path, *more)
    try:
        with pytest.raises(Busy, match=f"the run in .* is in use by process {process.pid} on .*: wait"):
            alone_in(tmp_path, "the run").__enter__()
        process.kill()
        process.wait()
        with alone_in(tmp_path, "the run"):
            assert (tmp_path / LOCK).exists()
        assert not list(tmp_path.iterdir())
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_who_waits_comes_next(tmp_path, capfd):
    order = []

    def second() -> None:
        with alone(tmp_path / "x.lock", "x", wait=True):
            order.append("second")

    with alone(tmp_path / "x.lock", "x"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert "waiting until it has finished" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    script = """
import sys, time
from pathlib import Path
from codanet._support.files import replacing
with replacing(Path(sys.argv[1])) as part:
    part.write_text("half")
    (part.parent / ".tmpXY").write_text("a library's own")
    print("held", flush=True)
    time.sleep(60)
"""
    words = [sys.executable, "-c", script, str(tmp_path / "a.txt")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        remove_leftovers(tmp_path)
        assert len(list(tmp_path.iterdir())) == 1  # the writer is alive
        process.kill()
    with replacing(tmp_path / "a.txt") as part:
        part.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "whole"


def test_devices_pipes_and_links_are_not_replaced(tmp_path):
    pipe, link, real = tmp_path / "pipe.png", tmp_path / "link.png", tmp_path / "real.png"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="is a pipe, and a file is written whole or not at all"), replacing(pipe):
        pass
    assert pipe.is_fifo()
    link.symlink_to(real)
    for words in ("one", "two"):
        with replacing(link) as part:
            part.write_text(words)
        assert link.is_symlink()
        assert real.read_text() == words
    with pytest.raises(ValueError, match="is a folder"), replacing(tmp_path):
        pass
    device = Path("/dev/full")
    with pytest.raises(OSError, match="No space left"), replacing(device) as part:
        part.write_text("x")
    assert device.is_char_device()
    with replacing(Path("/dev/null")) as part:
        part.write_text("x")
    assert Path("/dev/null").is_char_device()


def test_long_names(tmp_path):
    path = tmp_path / ("x" * 251 + ".png")
    with replacing(path) as part:
        part.write_text("x")
    assert path.read_text() == "x"


def test_unpacking_that_was_killed_leaves_nothing(tmp_path):
    """Neither do other folders of scratch: the next one there removes them."""
    script = """
import io, os, signal, sys, tarfile
from pathlib import Path
import codanet._support.download as download
archive = Path(sys.argv[1])
with tarfile.open(archive, "w") as file:
    file.addfile(tarfile.TarInfo("a"), io.BytesIO())
if len(sys.argv) > 2:
    download.write_member = lambda *parts: os.kill(os.getpid(), signal.SIGKILL)
download.unpack(archive, archive.parent / "made")
"""
    words = [sys.executable, "-c", script, str(tmp_path / "archive.tar")]
    assert subprocess.run([*words, "killed"], timeout=60).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    assert subprocess.run(words, timeout=60).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive.tar", "made"]


def test_one_process_fetches_the_engine(tmp_path, monkeypatch):
    """The others wait for it, and take what it has fetched."""
    from codanet.export import engine

    monkeypatch.setenv("CODANET_DATA", str(tmp_path))
    monkeypatch.setattr(engine, "_complete", lambda folder: (folder / "whole").exists())
    fetched = []

    def fetch(place: Path, folder: Path) -> None:
        fetched.append(place)
        time.sleep(0.2)
        folder.mkdir()
        (folder / "whole").touch()

    monkeypatch.setattr(engine, "_fetched", fetch)
    threads = [threading.Thread(target=engine.engine) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(fetched) == 1
    assert [path.name for path in tmp_path.iterdir()] == [f"{engine.PACKAGE}-{engine.VERSION}"]


def test_one_process_builds_stored_data(tmp_path):
    """The others wait for it, and read what it has built."""
    built = []

    def build() -> dict[str, torch.Tensor]:
        built.append(threading.current_thread())
        time.sleep(0.2)
        return {"train_images": torch.ones(2, 3), "train_labels": torch.zeros(2)}

    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(stored(tmp_path / "x.safetensors", build)[1])) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(built) == 1
    assert len(found) == 3
    assert len(set(found)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]
