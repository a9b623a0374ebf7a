"""`--workers N`: the same command in several processes on this machine, which share the work."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from .._support.allocator import keep_freed
from .._support.crew import MOST_WORKERS, Place, end_with_the_starter, workers
from .._support.crew import place as own_place
from .._support.threads import torch_threads
from .parser import Parser, whole


def add_workers(parser: Parser, where: str = "") -> None:
    """where: What the option goes with, for its help."""
    parser.add_argument(
        "--workers",
        type=whole(1, MOST_WORKERS),
        default=1,
        metavar="N",
        help=f"{where}processes on this machine that share the work (1); use torchrun or SLURM for many machines",
    )


@contextmanager
def together(options: argparse.Namespace, command: list[str]) -> Iterator[Place]:
    """This process's place among the workers, with as many threads as `--threads` says.

    Processors are divided among them as well, unless the user says how many threads to use.
    """
    keep_freed()
    if options.workers == 1:
        end_with_the_starter()
        place = own_place()
        with torch_threads(options.threads):
            yield place
        return
    if options.threads is None and "OMP_NUM_THREADS" not in os.environ:
        options.threads = max(1, (os.cpu_count() or 1) // options.workers)
    more = ["--workers", "1"] + (["--threads", str(options.threads)] if options.threads else [])
    # what follows -- is no option
    end = command.index("--") if "--" in command else len(command)
    with workers(options.workers, [*command[:end], *more, *command[end:]]) as place, torch_threads(options.threads):
        yield place
