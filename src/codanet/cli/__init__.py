"""The command line: one command per task, each thin over the library's own functions.

Exit codes: 0 all is well, 1 part of the work failed, 2 a mistake in the command, 130 stopped by Ctrl-C (demo: 0).
"""

import errno
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper

from .._support.extras import optional
from .._support.interrupts import Interrupts, interrupts
from .._support.messages import nearest, plain
from .._support.version import __version__

USAGE = """\
codanet: image classifiers whose every decision is an exact sum of pixel contributions

  codanet explain cifar10 cat.jpg          which pixels speak for the class, which against: why.png
  codanet train digits                     train on the built-in digits, under a minute
  codanet train path/to/pictures           train on your own pictures, one folder per class
  codanet train photos/ --backbone efficientnet_lite0     for photographs: better, and in minutes
  codanet train cifar10-cpu --epochs 2     a recipe, with a setting of your own
  codanet evaluate cifar10 --data cifar10  compare its explanations with those of other methods
  codanet report runs/digits               a run or an evaluation as one page to look at
  codanet demo                             a web page: give it a picture, see why
  codanet export cifar10 -o cifar10.onnx   the model with its explanation, for any language
  codanet page cifar10 -o why.html         a page that explains pictures without a server
  codanet recipes                          what can be trained: the paper's recipes and ours
  codanet models                           the networks, with their sizes
  codanet bench --output bench.json        speed and memory against the paper's Algorithm 1
  codanet completion bash                  a script for the Tab key

codanet COMMAND --help explains each command, with examples."""


# where each command's main(arguments) is; a module is imported only when its command is given
COMMANDS = {
    "explain": ".explain",
    "train": ".train",
    "evaluate": ".evaluate",
    "report": ".report",
    "demo": ".demo",
    "export": ".export",
    "page": ".page",
    "models": ".models",
    "recipes": ".recipes",
    "bench": ".bench",
    "completion": ".completion",
}

RESUMED = {
    "train": "; the same command goes on from the last complete epoch",
    "evaluate": "; the same command goes on where it stopped",
}


def main(arguments: list[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return _told(USAGE)
    if arguments[0] in ("--version", "-V"):
        return _told(f"codanet {__version__}")
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        print(f"codanet: unknown command {command[:80]!r}{nearest(command[:80], COMMANDS)}", file=sys.stderr)
        return 2
    with interrupts() as heard, _plain_warnings(), _any_sign():
        return _run(command, rest, heard)


def _run(command: str, rest: list[str], heard: Interrupts) -> int:
    try:
        with optional():
            code = import_module(COMMANDS[command], __name__).main(rest) or 0
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _stopped(command)
    except BrokenPipeError:  # the reader of our output, `head` for example, has closed it
        return _unread()
    except Exception as error:
        if heard.came:  # interrupted while it is imported, a library may turn that into another error
            return _stopped(command)
        if not isinstance(error, ValueError | OSError):
            raise
        print(f"codanet: {plain(_sentence(error))}", file=sys.stderr)
        return 2


def _told(words: str) -> int:
    try:
        print(words, flush=True)
    except BrokenPipeError:
        return _unread()
    return 0


def _unread() -> int:
    """Nobody reads what is printed any more, which is no error: what is still to be flushed goes nowhere."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (closed when Python ends)
    return 0


@contextmanager
def _any_sign() -> Iterator[None]:
    """Print a sign that the terminal's encoding lacks as its number, instead of ending with an error."""
    out = sys.stdout
    if not isinstance(out, TextIOWrapper) or out.errors != "strict":
        yield
        return
    out.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        if sys.stdout is out:  # else nobody reads it
            out.reconfigure(errors="strict")


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print a warning as one sentence, like an error, without its source line."""
    before = warnings.formatwarning

    def sentence(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if category is not UserWarning:  # PyTorch's and Python's own are for developers
            return before(message, category, filename, lineno, line)
        return f"codanet: {plain(message)}\n"

    warnings.formatwarning = sentence
    try:
        yield
    finally:
        warnings.formatwarning = before


def _stopped(command: str) -> int:
    # If an interrupt comes out of code that is executed from text, as when a dataclass is made, Python records it as
    # uncaught and would end the process by the signal. Executing text that ends well clears that record.
    exec("")
    print(f"codanet: stopped{RESUMED.get(command, '')}", file=sys.stderr)
    return 130


def _sentence(error: ValueError | OSError) -> str:
    """What the system says, without error numbers, and what to do about a full disk."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    place = f"{error.filename}: " if error.filename else ""
    advice = ": make room, and give the same command again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{place}{error.strerror}{advice}"
