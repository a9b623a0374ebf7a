"""(d) A disk that fills up at random moments; with room again, the same command comes to the same result."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections import Counter
from functools import partial
from pathlib import Path

from forked import forked, leftovers, preload
from kills import unharmed
from report import Part
from works import works
from wrong_inputs import built, copied

DISK = 96 * 2**20  # bytes
FILLER = "filler"


def mounted(place: Path) -> str:
    """Mount a small disk in memory there; why not, or ""."""
    place.mkdir()
    try:
        words = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "codanet-campaign", str(place)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def fill(place: Path, left: int, process: int = 0) -> None:
    """All of the disk but `left` bytes."""
    with (place / FILLER).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(2**20))
        except OSError:
            file.truncate(max(0, file.tell() - left))


def clear(place: Path) -> None:
    for path in place.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def run(folder: Path, seed: int, cases: range, until: float) -> Part:
    place = folder / "case"
    part, met = Part("Full disk", seed), Counter[str]()
    if reason := mounted(place):
        part.facts["not tried"] = f"no disk could be mounted ({reason})"
        return part
    preload()
    right = built(folder)
    all_works, server = works()
    try:
        found = {name: unharmed(part, folder, right, name, work) for name, work in all_works.items()}
        expected = {name: each for name, each in found.items() if each}
        for index in cases:
            if not expected or time.monotonic() > until:
                break
            draw = random.Random(f"{seed}-{index}")
            name = draw.choice(list(expected))
            work, (outcome, usual) = all_works[name], expected[name]
            clear(place)
            copied(right, place)
            moment, left = draw.uniform(0, usual), draw.choice((0, 4096, 2**16, 2**18, 2**20))
            ending = forked(work.run, place, moment, partial(fill, place, left))
            met[name] += ending.code != 0
            problem = ending.wrong()
            if not problem and (remains := leftovers(place)):
                problem = f"left behind: {remains[:3]}"
            if not problem and ending.code and list(place.glob("why*")):
                problem = "a file, although it was said that it could not be written"
            (place / FILLER).unlink(missing_ok=True)
            ending = forked(work.run, place)
            problem = problem or ending.wrong() or (ending.err[-300:] if ending.code else "")
            if not problem and work.outcome(place) != outcome:
                problem = "another result with room again"
            part.count(problem, f"case {index}, {name}, full but for {left} bytes after {moment:.2f} s")
    finally:
        server.shutdown()
        os.chdir(folder.parent)
        subprocess.run(["umount", "--lazy", str(place)], check=False)
    part.facts["stopped by the full disk"] = ", ".join(f"{count} in {name}" for name, count in met.items())
    return part
