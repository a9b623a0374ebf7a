"""Commands that work, to be killed or to meet a full disk, and what each must have left in the end."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from forked import cold

SMALL = "--threads 1 --accelerator cpu --output run"
COMMANDS = {
    "training": f"train pictures --epochs 4 --batch-size 8 --image-size 8 --model nano_coda {SMALL}",
    "photographs": "train pictures --backbone efficientnet_lite0 --layer blocks.2 --image-size 32 --views 3 --epochs 3 "
    f"--batch-size 8 {SMALL}",
    "evaluation": "evaluate model.safetensors --data pictures --methods contributions,grad,occlusion5,rise:masks=200 "
    "--metrics removal,completeness --images 6 --points 5 --image-size 8 --threads 1 -o results",
    "film": "explain model.safetensors clip.gif -o why.gif",
    "export": "export model.safetensors -o why.onnx",
    "page": "page model.safetensors -o why.html",
}
BYTES = bytes(range(256)) * 8192


class Work(NamedTuple):
    run: Callable[[], int]
    anew: Callable[[], int]  # the same, in a Python of its own
    outcome: Callable[[Path], str]  # of its folder, to be compared


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
    from codanet._support.errors import DataError

    try:
        fetch(f"http://127.0.0.1:{port}/x", Path("why.bin"), sha256=hashlib.sha256(BYTES).hexdigest(), progress=False)
    except DataError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
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


def content(folder: Path) -> str:
    """Every byte of what was written."""
    (path,) = folder.glob("why.*")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def works() -> tuple[dict[str, Work], ThreadingHTTPServer]:
    """All of them by name, and the server of the download."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    outcomes = {"training": weights, "photographs": weights, "evaluation": numbers}
    found = {
        name: Work(partial(command, words), cold(words.split()), outcomes.get(name, content))
        for name, words in COMMANDS.items()
    }
    fetching = partial(download, server.server_port)
    return found | {"download": Work(fetching, fetching, content)}, server
