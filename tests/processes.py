"""Programs to be run, killed and interrupted in tests, forked from a process that has imported PyTorch for them.

Each is a process like any other, with its own id, signals and exit code; it is only spared the seconds that a new
interpreter spends on imports. What is tested of those seconds themselves starts a real interpreter.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

START = multiprocessing.get_context("forkserver")
OWN = ["codanet.training.run", "codanet.evaluation.run", "codanet.cli.train", "codanet.cli.evaluate"]
LATE = ["torch.utils.tensorboard", "matplotlib.backends.backend_agg", "PIL.PngImagePlugin"]  # what a run begins with
START.set_forkserver_preload([*OWN, *LATE])

COMMAND = "import sys; from codanet.cli import main; sys.exit(main())"


def _run(program: str, words: list[str], folder: str, environment: dict[str, str], outputs: tuple[str, str]) -> None:
    """In the new process: the program, as `python -c` runs it."""
    for number, path in enumerate(outputs, start=1):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["-c", *words]
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


class Forked:
    """A program that runs on its own, with as much of subprocess.Popen as the tests use."""

    def __init__(self, program: str, *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None):
        self.folder = tempfile.TemporaryDirectory()
        self.outputs = [Path(self.folder.name, name) for name in ("out", "err")]
        for path in self.outputs:
            path.touch()
        arguments = (program, [*map(str, words)], str(cwd or Path.cwd()), {**os.environ, **(env or {})})
        self.process = START.Process(target=_run, args=(*arguments, tuple(map(str, self.outputs))))
        self.process.start()
        self.pid = self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def said(self) -> tuple[str, str]:
        """Output and errors so far."""
        return tuple(path.read_text() for path in self.outputs)

    def first_line(self, timeout: float = 120) -> str:
        """What it says first, once it has; or all it has said, once it has ended."""
        deadline = time.monotonic() + timeout
        while "\n" not in self.said()[0] and self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return "".join(self.said()[0].splitlines(keepends=True)[:1])

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float = 240) -> tuple[str, str]:
        """Output and errors once it has ended."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise subprocess.TimeoutExpired("a forked program", timeout, *self.said())
        return self.said()

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.process.kill()
        self.process.join()
        self.folder.cleanup()


def run(program: str, *words: object, **options) -> subprocess.CompletedProcess[str]:
    with Forked(program, *words, **options) as process:
        out, error = process.communicate()
        return subprocess.CompletedProcess([program, *words], process.returncode, out, error)


def codanet(*words: object, **options) -> subprocess.CompletedProcess[str]:
    """`codanet WORDS`, to its end."""
    return run(COMMAND, *words, **options)
