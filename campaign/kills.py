"""(b) kill -9 at random moments of training, evaluation, download and export; each resumed to the same result."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

from forked import COLD, forked, leftovers, preload
from report import Part
from works import Work, works
from wrong_inputs import built, copied

STARTING = 4.0  # seconds that Python and torch take to be there


def unharmed(part: Part, folder: Path, right: Path, name: str, work: Work) -> tuple[str, float] | None:
    """What a command leaves that nothing happens to, and the seconds it takes."""
    place = folder / f"whole-{name}"
    copied(right, place)
    ending = forked(work.run, place)
    if ending.wrong() or ending.code:
        part.count(ending.wrong() or ending.err[-300:], f"{name}, left alone")
        return None
    return work.outcome(place), ending.seconds


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def run(folder: Path, seed: int, cases: range, until: float) -> Part:
    preload()
    right = built(folder)
    all_works, server = works()
    part, kills = Part("kill -9", seed), Counter[str]()
    found = {name: unharmed(part, folder, right, name, work) for name, work in all_works.items()}
    expected = {name: each for name, each in found.items() if each}
    for index in cases:
        if not expected or time.monotonic() > until:
            break
        draw, started = random.Random(f"{seed}-{index}"), index % COLD == 0
        name = draw.choices(list(expected), [3 if each == "training" else 2 for each in expected])[0]
        work, (outcome, usual) = all_works[name], expected[name]
        place = folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        copied(right, place)
        usual += STARTING * started
        moments = [draw.uniform(0, 1.1 * usual) for _ in range(draw.choice((1, 1, 2, 3)))]
        problem = ""
        for moment in moments:
            ending = forked(work.anew if started else work.run, place, moment, kill)
            kills[name] += ending.code == -signal.SIGKILL
            problem = problem or ending.wrong(killed=True)
        ending = forked(work.run, place)
        problem = problem or ending.wrong() or (ending.err[-300:] if ending.code else "")
        if not problem and work.outcome(place) != outcome:
            problem = "another result"
        if not problem and (left := leftovers(place)):
            problem = f"left behind: {left[:3]}"
        part.count(problem, f"case {index}, {name}, killed after {[round(each, 2) for each in moments]} s")
    server.shutdown()
    part.facts["kills that met a running process"] = ", ".join(f"{count} in {name}" for name, count in kills.items())
    part.facts["started anew, not forked"] = f"one in {COLD}"
    part.facts["without a kill"] = ", ".join(f"{name} {seconds:.1f} s" for name, (_, seconds) in expected.items())
    part.facts["compared"] = "every number of the weights, the best and the last checkpoint; every value; every byte"
    return part
