"""A run whose log cannot be written: the disk is full when the thread of the log's writer gets to it."""

import errno
import os
import threading

import pytest
from PIL import Image

from codanet.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_log_that_cannot_be_written(tmp_path, monkeypatch, capfd):
    """The thread says nothing: the run ends, and the command tells why."""
    for label in "ab":
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(8):
            Image.effect_noise((8, 8), 80).convert("RGB").save(tmp_path / "pictures" / label / f"{number}.png")

    threads = []

    def full(*arguments):
        threads.append(threading.current_thread())
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", full)
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # pytest's own prints nothing
    small = ["--epochs", "1", "--threads", "1", "--model", "nano_coda", "--image-size", "8", "--batch-size", "8"]
    assert main(["train", str(tmp_path / "pictures"), *small, "--output", str(tmp_path / "run")]) == 2
    told = capfd.readouterr().err
    assert "codanet: No space left on device: make room, and give the same command again" in told
    assert "Traceback" not in told
    assert threading.main_thread() not in threads
