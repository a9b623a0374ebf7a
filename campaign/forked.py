"""A command in a process of its own, forked from one that has imported everything: a case takes half a second."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

PATIENCE = 90.0  # seconds; longer than that is a hang
TICK = 0.5  # seconds; a longer gap between two looks at a child is a pause of the campaign, and counts as this
COLD = 40  # one case in so many starts Python anew, which takes as long as ten forked ones
TEMPORARY = "tmp"
KEPT = ("torchinductor", ".ses")  # by torch and onnxruntime, for good
MOST_MEMORY = 3 * 2**30  # bytes resident


@dataclass(frozen=True)
class Ending:
    code: int  # exit code; negative, the signal
    seconds: float
    memory: int  # bytes
    out: str
    err: str

    def wrong(self, killed: bool = False) -> str:
        """What must never happen, or ""."""
        if self.code == -signal.SIGALRM:
            place = [line.strip() for line in self.err.splitlines() if line.strip().startswith("File")]
            return f"hang: more than {PATIENCE:.0f} s, at {place[:2]}"
        if self.code < 0 and not killed:
            return f"death by signal {-self.code}"
        if "Traceback (most recent call last)" in self.err:
            return "traceback: " + self.err.strip().splitlines()[-1][:160]
        if self.memory > MOST_MEMORY:
            return f"memory: {self.memory / 2**30:.1f} GiB"
        if self.code not in (0, 1, 2, 130) and not killed:
            return f"exit code {self.code}"
        if self.code == 2 and not self.err.strip():
            return "a mistake without a word"
        return ""


# whatever a command may import
MODULES = """app attribution evaluation export.graph export.page data.photographs models.efficientnet_lite plot.film
plot.gallery report training.run cli.evaluate cli.explain cli.train cli.export cli.page cli.report"""
OTHERS = ("gradio", "onnxruntime", "skimage.data", "skimage.segmentation", "torch.utils.tensorboard", "yaml")


def preload() -> None:
    """Import everything once, and compute nothing: a forked child inherits modules, but no threads."""
    for name in (*(f"codanet.{name}" for name in MODULES.split()), *OTHERS):
        import_module(name)
    import torch

    torch.set_num_threads(1)


def cold(words: Sequence[str]) -> Callable[[], int]:
    """The command as a shell starts it: `forked` replaces the child by a new Python."""
    return lambda: os.execv(sys.executable, [sys.executable, "-m", "codanet", *words])


def forked(
    work: Callable[[], int], folder: Path, moment: float | None = None, act: Callable[[int], None] | None = None
) -> Ending:
    """Run `work` in a child, in `folder`; if it is still there after `moment` seconds, `act` on its process number."""
    logs = folder.parent / f".{folder.name}.out", folder.parent / f".{folder.name}.err"
    passed, seconds, last = 0.0, 0.0, time.monotonic()
    child = os.fork()
    if child == 0:
        _work(work, folder, logs)
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            break
        now = time.monotonic()
        passed, last = passed + min(now - last, TICK), now
        seconds = max(0.0, passed - kept_waiting(child))  # of its own, however busy the machine is
        if act is not None and seconds > (moment or 0.0):
            act(child)
            act = None
        if seconds > PATIENCE:
            os.kill(child, signal.SIGALRM)
            _, status, usage = os.wait4(child, 0)
            break
        time.sleep(0.005)
    out, err = (log.read_text(errors="replace") if log.exists() else "" for log in logs)
    for log in logs:
        log.unlink(missing_ok=True)
    return Ending(os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss * 1024, out, err)


def kept_waiting(process: int) -> float:
    """Seconds that a process was ready and other processes had the processors; 0 where Linux does not tell."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _work(work: Callable[[], int], folder: Path, logs: tuple[Path, Path]) -> None:
    code = 70
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        os.chdir(folder)
        if (folder / TEMPORARY).is_dir():  # a place of its own for what libraries leave
            tempfile.tempdir = os.environ["TMPDIR"] = str(folder / TEMPORARY)
        for number, log in zip((1, 2), logs, strict=True):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.register(signal.SIGALRM, chain=True)  # a hang says where, and ends
        code = work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def leftovers(folder: Path) -> list[str]:
    """Files that only a write which did not end leaves."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.name.startswith((".codanet-", ".codanet.lock", ".tmp", ".probe", ".last", ".best"))
        or path.name.endswith(".part")
        or (path.parent.name == TEMPORARY and not path.name.startswith(KEPT))
    )
