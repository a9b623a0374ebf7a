"""`make campaign`: attacks on the package, bounded in time; a page with counts, seeds and failures to meet again.

python campaign --minutes 10 --seed 0 --output campaign.md
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # forked children cannot share threads

import disks
import kills
import wrong_inputs
from report import page

import visitors

# cases, and the share of the time
PARTS = {
    "inputs": (wrong_inputs.run, 2000, 0.35),
    "kills": (kills.run, 100, 0.25),
    "disks": (disks.run, 100, 0.15),
    "visitors": (visitors.run, 10_000, 0.2),
    "polite": (visitors.polite_only, 4000, 0.05),  # so that one prediction in a hundred is more than two
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--cases", type=int, help="of each part; 2,000 inputs, 100 kills and so on without")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case, to meet a failure again")
    parser.add_argument("--output", type=Path, default=Path("campaign.md"))
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children of a shell's background job would ignore it
    started, results = time.monotonic(), []
    chosen = options.parts.split(",")
    if unknown := [name for name in chosen if name not in PARTS]:
        parser.error(f"unknown parts {unknown}: there are {', '.join(PARTS)}")
    for place, name in enumerate(chosen):
        run, number, share = PARTS[name]
        cases = range(options.first, options.first + (options.cases or number))
        left = options.minutes * 60 - (time.monotonic() - started)
        shares = sum(PARTS[other][2] for other in chosen[place:])
        minutes = left * share / shares / 60
        print(f"{name}: up to {len(cases)} cases in {minutes:.1f} minutes", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
            part = run(Path(folder), options.seed, cases, time.monotonic() + 60 * minutes)
        results.append(part)
    command = f"python campaign {shlex.join(sys.argv[1:])}"
    options.output.write_text(page(results, (time.monotonic() - started) / 60, command), encoding="utf-8")
    print(options.output)
    return 1 if any(part.failures for part in results) else 0


if __name__ == "__main__":
    sys.exit(main())
