"""(b) kill -9 at random moments of training, evaluation, download and explanation; each resumed to the same result."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from forked import forked, leftovers, preload
from report import Part
from wrong_inputs import build

TRAIN = (
    "train pictures --output run --epochs 4 --batch-size 8 --image-size 8 --model nano_coda --threads 1 "
    "--accelerator cpu"
)
EVALUATE = (
    "evaluate model.safetensors --data pictures --methods contributions,grad,occlusion5,rise:masks=200 --metrics "
    "removal,completeness --images 6 --points 5 --image-size 8 --threads 1 -o results"
)
EXPLAIN = "explain model.safetensors clip.gif -o why.gif"
BYTES = bytes(range(256)) * 8192


class Slow(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BYTES)))
        self.end_headers()
        try:
            for start in range(0, len(BYTES), 65536):
                self.wfile.write(BYTES[start : start + 65536])
                time.sleep(0.01)
        except OSError:
            pass

    def log_message(self, *words: Any) -> None:
        """Nothing."""


def command(words: str) -> int:
    from codanet.cli import main

    return main(words.split())


def download(port: int) -> int:
    from codanet._support.download import fetch

    fetch(f"http://127.0.0.1:{port}/x", Path("data.bin"), sha256=hashlib.sha256(BYTES).hexdigest(), progress=False)
    return 0


def weights(folder: Path) -> str:
    """Of the trained model, the best and the last checkpoint: every number of them."""
    from safetensors.torch import load_file

    from codanet.models.digest import content_digest
    from codanet.training.checkpoint import read_checkpoint

    found = content_digest("", load_file(folder / "run" / "model.safetensors"))
    for name in ("best.ckpt", "last.ckpt"):
        checkpoint = read_checkpoint(folder / "run" / name)
        found += content_digest(str(checkpoint["epoch"]), checkpoint["state_dict"])
    return found


def numbers(folder: Path) -> str:
    """Every value of an evaluation, without the times."""
    lines = [json.loads(line) for line in (folder / "results" / "records.jsonl").read_text().splitlines()]
    kept = [{key: line[key] for key in ("method", "metric", "start", "values", "extras")} for line in lines]
    return json.dumps(sorted(kept, key=str))


def content(name: str, folder: Path) -> str:
    return hashlib.sha256((folder / name).read_bytes()).hexdigest()


def run(folder: Path, seed: int, number: int, until: float) -> Part:
    right, draw = folder / "right", random.Random(seed)
    preload()
    forked(lambda: build(right) or 0, folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    works: dict[str, tuple[Callable[[], int], Callable[[Path], str]]] = {
        "training": (partial(command, TRAIN), weights),
        "evaluation": (partial(command, EVALUATE), numbers),
        "download": (partial(download, server.server_port), partial(content, "data.bin")),
        "film": (partial(command, EXPLAIN), partial(content, "why.gif")),
    }
    result, expected, usual, kills = Part("kill -9", seed), {}, {}, Counter[str]()
    for name, (work, outcome) in works.items():
        place = folder / f"whole-{name}"
        shutil.copytree(right, place)
        ending = forked(work, place)
        if ending.wrong() or ending.code:
            result.count(ending.wrong() or ending.err[-300:], f"{name}, not killed at all")
            continue
        expected[name], usual[name] = outcome(place), ending.seconds
    while expected and result.cases < number and time.monotonic() < until:
        name = draw.choices(list(expected), [4 if each == "training" else 2 for each in expected])[0]
        work, outcome = works[name]
        place = folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(right, place)
        moments = [draw.uniform(0, 1.1 * usual[name]) for _ in range(draw.choice((1, 1, 2, 3)))]
        problem = ""
        for moment in moments:
            ending = forked(work, place, kill_after=moment)
            kills[name] += ending.code == -9
            problem = problem or ending.wrong(killed=True)
        ending = forked(work, place)
        problem = problem or ending.wrong() or (ending.err[-300:] if ending.code else "")
        if not problem and outcome(place) != expected[name]:
            problem = "another result"
        if not problem and (left := [each for each in leftovers(place) if "lock" not in each]):
            problem = f"left behind: {left[:3]}"
        result.count(problem, f"{name}, case {result.cases}, killed after {[round(each, 2) for each in moments]} s")
    server.shutdown()
    result.facts["kills that met a running process"] = ", ".join(f"{count} in {name}" for name, count in kills.items())
    result.facts["without a kill"] = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in usual.items())
    result.facts["compared"] = "every number of the weights, the best and the last checkpoint; every value; every byte"
    result.facts["process"] = f"forked from {os.path.basename(__file__)}, so that imports take no time"
    return result
