"""(a) Wrong inputs: arguments, weights, recipes, data folders, pictures and films, made at random from a seed."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from forked import COLD, TEMPORARY, cold, forked, leftovers, preload
from report import Part

# fmt: off
NUMBERS = ["0", "-1", "99999999999999999999", "9" * 4000, "9" * 5000, "nan", "inf", "-inf", "1e400", "1.5", "x", "",
           "٣", "1_0"]
WORDS = ["", " ", "~nosuchuser", "../..", "/", "/dev/null", "/dev/full", "a\x1b[2Jb", "é" * 200, "x" * 300, "%s%n", "-",
         "--", "*", "[", "null", "{}", "con:a=b", "🙂", "a=b", ":", ",", "\udcff", "pipe"]
# fmt: on
OPTIONS = {
    "explain": {
        "--target": NUMBERS + WORDS,
        "--top": NUMBERS,
        "--compare": [*WORDS, "rise:masks=99999999999", "gradcam:x=1", "lime:samples=-1", "occlusion5:window=99999"],
        "--style": WORDS,
        "--palette": WORDS,
        "--scale": NUMBERS,
        "--start": NUMBERS,
        "--end": NUMBERS,
        "-o": [*WORDS, "why.xyz", "no/such/why.png", "in.png/x.png"],
    },
    "evaluate": {
        "--data": WORDS,
        "--split": WORDS,
        "--methods": [*WORDS, "rise:masks=99999999999", "random:"],
        "--metrics": WORDS,
        "--grids": NUMBERS,
        "--grid-size": [*NUMBERS, "99999"],
        "--points": [*NUMBERS, "1"],
        "--seed": NUMBERS[1:],
        "--image-size": [*NUMBERS, "999999"],
        "--root": WORDS,
        "--source": WORDS,
        "--threads": [*NUMBERS, "99999"],
        "--reference": WORDS,
    },
    "train": {
        "--threads": [*NUMBERS, "99999"],
        "--epochs": NUMBERS,
        "--batch-size": NUMBERS,
        "--devices": [*NUMBERS, "99999"],
        "--learning-rate": ["nan", "inf", "-1", "0", "x"],
        "--model": WORDS,
        "--data": WORDS,
        "--rescale": WORDS,
        "--temperature": ["0", "-1", "nan", "x", "inf"],
        "--augmentation": WORDS,
        "--precision": WORDS,
        "--schedule": WORDS,
        "--seed": NUMBERS[2:],
        "--mosaic": ["2", "-1", "nan"],
        "--image-size": ["0", "-1", "x"],
        "--config": WORDS,
        "--start": WORDS,
        "--workers": ["-1", "99999", "x"],
        "--nonsense": WORDS,
    },
    "photographs": {
        "--backbone": [*WORDS, "resnet56"],
        "--layer": [*WORDS, "blocks", "blocks.99", "classifier", "stem"],
        "--head": [*WORDS, "9999999/9/3", "1/1/1 " * 9999, "32/8/2", "0/0/0", "9" * 5000 + "/1/1", "8/2/99999"],
        "--views": NUMBERS,
        "--class-weights": NUMBERS,
        "--image-size": [*NUMBERS, "1", "99999"],
        "--batch-size": NUMBERS,
    },
    "export": {
        "-o": [*WORDS, "why.onnx/x.onnx", "model.safetensors", "no/such/why.onnx", "why.xyz", "why.ONNX"],
        "--format": [*WORDS, "onnx", "pt2"],
        "--size": [*NUMBERS, "7", "99999"],
        "--half": ["", "x"],
        "": [*WORDS, "hybrid.safetensors", "graph.onnx", "in.png"],
    },
    "page": {
        "-o": [*WORDS, "why.html/x.html", "model.safetensors", "no/such/why.html", "why.xyz"],
        "--examples": [*WORDS, "pictures/a", "in.png"],
        "": [*WORDS, "model.safetensors", "hybrid.safetensors", "graph.onnx"],
    },
    "demo": {"--host": WORDS, "--share": WORDS, "--examples": WORDS, "": [*WORDS, "graph.onnx"]},
    "report": {"-o": WORDS, "--root": WORDS},
    "models": {"--nonsense": WORDS},
    "recipes": {"--nonsense": WORDS},
    "completion": {"--nonsense": WORDS},
    "bench": {"--threads": [*NUMBERS[:8], "99999"], "--batch": NUMBERS[:8], "--size": NUMBERS[:8], "--models": WORDS},
}
PHOTOGRAPHS = [
    "train",
    "pictures",
    "--backbone",
    "efficientnet_lite0",
    "--layer",
    "blocks.2",
    "--image-size",
    "32",
    "--views",
    "1",
]


def build(folder: Path) -> int:
    """What is right, to be made wrong."""
    import torch
    from PIL import Image

    import codanet
    from codanet.cli import main
    from codanet.data.film import writing
    from codanet.models.hybrid import BACKBONES, HybridNet, cut, head_layers

    (folder / TEMPORARY).mkdir(parents=True)
    os.chdir(folder)
    os.mkfifo("pipe")
    torch.manual_seed(0)
    codanet.save(codanet.create_model("nano_coda", class_names=("a", "b"), image_size=8), folder / "model.safetensors")
    codanet.export(codanet.load("model.safetensors"), "graph.onnx")
    features = cut(BACKBONES["efficientnet_lite0"].build(False), "blocks.2")
    hybrid = HybridNet(
        features, head_layers(2, (8,), 2), image_size=32, backbone="efficientnet_lite0", layer="blocks.2"
    )
    codanet.save(hybrid, "hybrid.safetensors")
    picture = Image.effect_noise((40, 30), 80).convert("RGB")
    for suffix in ("png", "jpg", "gif", "webp", "bmp"):
        picture.save(folder / f"in.{suffix}")
    stills = [Image.effect_noise((24, 24), 80).convert("RGB") for _ in range(4)]
    stills[0].save(folder / "clip.gif", save_all=True, append_images=stills[1:], duration=80)
    with writing(folder / "clip.mp4", (32, 32), []) as film:
        for still in stills:
            film.write(still.resize((32, 32)), 0.1)
    for label in "ab":
        (folder / "pictures" / label).mkdir(parents=True)
        for number in range(20):
            Image.effect_noise((8, 8), 80).convert("RGB").save(folder / "pictures" / label / f"{number}.png")
    small = ["--model", "nano_coda", "--image-size", "8", "--epochs", "2", "--threads", "1"]
    assert main(["train", "pictures", "--output", "done", *small]) == 0
    words = ["--metrics", "accuracy,completeness", "--methods", "contributions", "--image-size", "8", "-o", "measured"]
    return main(["evaluate", "model.safetensors", "--data", "pictures", *words])


def built(folder: Path) -> Path:
    """`build` in a child: what a process has computed, a fork of it may not survive."""
    right = folder / "right"
    ending = forked(partial(build, right), folder)
    if ending.code:
        raise RuntimeError(f"the campaign's own files could not be made: {ending.err[-2000:]}")
    return right


def copied(right: Path, place: Path) -> None:
    """A folder like `right`, its pipe included."""
    shutil.copytree(right, place, symlinks=True, ignore=shutil.ignore_patterns("pipe"), dirs_exist_ok=True)
    os.mkfifo(place / "pipe")


def mutated(draw: random.Random, content: bytes) -> bytes:
    """Cut, flipped, repeated, or something else altogether."""
    content = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 20))):
        kind = draw.randrange(6)
        place = draw.randrange(len(content)) if content else 0
        if kind == 0:
            del content[place:]
        elif kind == 1 and content:
            content[place] ^= 1 << draw.randrange(8)
        elif kind == 2:
            content[place:place] = bytes(draw.randrange(256) for _ in range(draw.randrange(50)))
        elif kind == 3:
            content[place : place + 4] = b"\xff\xff\xff\x7f"
        elif kind == 4:
            content[: min(64, len(content))] = bytes(min(64, len(content)))
        else:
            content += content[: draw.randrange(1000)]
    return bytes(content)


def header(draw: random.Random, path: Path) -> None:
    """Weights whose header says something else."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, "pt") as file:
        tensors, words = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()["codanet"]  # noqa: SIM118
    said: Any = json.loads(words)
    odd: list[Any] = [
        None,
        0,
        -1,
        10**30,
        1e308,
        "x",
        [],
        {},
        [[[]]],
        True,
        "\x1b[2J",
        [10**9, 10**9],
        [7000, 7000],
        "é" * 1000,
    ]
    key = draw.choice([*said, *(["hybrid"] * 4 if "hybrid" in said else [])])
    if key == "hybrid" and draw.random() < 0.8:
        said["hybrid"][draw.choice([*said["hybrid"], "more"])] = draw.choice(odd)
        said["image_size"] = draw.choice([said["image_size"], [4000, 4000], [1, 1], [10**5, 100]])
    elif key == "layers" and draw.random() < 0.7:
        if draw.random() < 0.3:
            said["layers"] *= draw.choice((0, 2, 30_000))
        else:
            draw.choice(said["layers"])[draw.choice(("units", "rank", "kernel_size", "stride", "more"))] = draw.choice(
                odd
            )
    else:
        said[key] = draw.choice(odd)
    text = "[" * 10**5 if draw.random() < 0.05 else json.dumps(said)
    save_file(tensors, path, {"codanet": text})


def recipe(draw: random.Random) -> str:
    keys = [
        "epochs",
        "model",
        "data",
        "sweep",
        "base",
        "seed",
        "threads",
        "devices",
        "learning_rate",
        "about",
        "nonsense",
        "batch_size",
    ]
    values = [
        *NUMBERS,
        "[" * draw.choice((1, 50, 10**5)),
        "{a: 1}",
        "&a [1]",
        "*a",
        "!!python/object/apply:os.system [ls]",
        "{seed: []}",
        "{seed: [../x, -1]}",
        "null",
        "x.yaml",
        "mine",
        "~",
        "'" + "x" * 5000,
        "\x00",
        "0x7fffffffffffffffffff",
        "2026-01-01",
        "|\n  a",
    ]
    return "\n".join(f"{draw.choice(keys)}: {draw.choice(values)}" for _ in range(draw.randrange(1, 4)))


def data_folder(draw: random.Random, folder: Path) -> None:
    kind = draw.randrange(6)
    if kind == 0:
        shutil.rmtree(folder)
        folder.mkdir()
    elif kind == 1:
        shutil.rmtree(folder / "b")
    for path in sorted(folder.rglob("*.png")):
        if kind == 2:
            path.write_bytes(b"")
        elif kind == 3:
            path.write_bytes(mutated(draw, path.read_bytes()))
        elif kind == 4:
            path.rename(path.with_name(draw.choice(("x\x1b[2J.png", "é" * 100 + ".png", ".hidden.png", "a.txt"))))
        elif kind == 5:
            path.unlink()
            path.symlink_to("/dev/zero" if draw.random() < 0.5 else "nowhere")


def case(draw: random.Random, folder: Path) -> tuple[str, list[str]]:
    """One wrong thing in a folder of right ones, and the command that meets it."""
    kind = draw.choice(
        (*["arguments"] * 6, *["header", "recipe", "data", "picture", "film"] * 2, *["weights", "run"] * 3)
    )
    explain = ["explain", draw.choice(("model.safetensors", "hybrid.safetensors"))]
    if kind == "arguments":
        command = draw.choice([*OPTIONS, "explain", "train", "evaluate", "nonsense"])
        small = ["--output", "run", "--epochs", "1", "--accelerator", "cpu"]
        start = {
            "photographs": [*PHOTOGRAPHS, *small],
            "export": ["export", "model.safetensors", "-o", "why.onnx"],
            "page": ["page", "model.safetensors", "-o", "why.html"],
            "demo": ["demo", "model.safetensors", "--port", draw.choice(("0", "-1", "65536", "9" * 30))],
            "explain": [*explain, "in.png"],
            "evaluate": ["evaluate", "model.safetensors", "--data", "pictures", "--metrics", "accuracy"],
            "train": ["train", draw.choice(("pictures", "pictures", *WORDS))],
            "report": ["report", draw.choice(("pictures", *WORDS))],
            "completion": ["completion", draw.choice(WORDS)],
        }.get(command, [command])
        known = OPTIONS.get(command, {"": WORDS})
        if command == "train":
            start += ["--output", "run", "--batch-size", "2", "--accelerator", "cpu"]
        for option in draw.sample(list(known), min(len(known), draw.choice((1, 1, 2)))):
            start += [*filter(None, [option]), draw.choice(known[option])]
            start += [draw.choice(known[option])] * (option == "--size" and command == "export")
        return kind, start
    if kind in ("weights", "header"):
        names = ["model.safetensors", "hybrid.safetensors", *(["graph.onnx"] if kind == "weights" else [])]
        path = folder / draw.choice(names)
        header(draw, path) if kind == "header" else path.write_bytes(mutated(draw, path.read_bytes()))
        return kind, draw.choice(
            [
                ["explain", path.name, "in.png", "-o", "why.png"],
                ["explain", path.name, "in.png", "-o", "why.png"],
                ["export", path.name, "-o", "why.onnx"],
                ["evaluate", path.name, "--data", "pictures", "--metrics", "accuracy", "-o", "results"],
                ["train", "pictures", "--start", path.name, "--output", "run", "--model", "nano_coda", "--epochs", "1"],
            ]
        )
    if kind == "run":
        for path in draw.sample(sorted(p for p in folder.glob("[dm]*e*/**/*") if p.is_file()), draw.choice((1, 1, 3))):
            path.write_bytes(mutated(draw, path.read_bytes()))
        small = ["--model", "nano_coda", "--image-size", "8", "--epochs", draw.choice("23"), "--threads", "1"]
        words = ["--metrics", "accuracy,completeness", "--methods", "contributions", "--image-size", "8"]
        return kind, draw.choice(
            [
                ["report", draw.choice(("done", "measured")), "-o", "why.html"],
                ["train", "pictures", "--output", "done", *small],
                ["train", "pictures", "--output", "run", "--start", "done", *small],
                ["evaluate", "model.safetensors", "--data", "pictures", "-o", "measured", *words],
            ]
        )
    if kind == "recipe":
        (folder / "mine.yaml").write_text(recipe(draw) + "\nmodel: nonsense", encoding="utf-8", errors="replace")
        return kind, ["train", "mine.yaml", "--output", "run"]
    if kind == "data":
        data_folder(draw, folder / "pictures")
        words = ["--data", "pictures", "--metrics", "accuracy", "--image-size", "8", "-o", "results"]
        photographs = [*PHOTOGRAPHS, "--output", "run", "--epochs", "1"]
        page = ["page", "model.safetensors", "--examples", "pictures", "-o", "why.html"]
        return kind, draw.choice([["evaluate", "model.safetensors", *words], photographs, page])
    name = draw.choice(
        ("in.png", "in.jpg", "in.gif", "in.webp", "in.bmp") if kind == "picture" else ("clip.gif", "clip.mp4")
    )
    (folder / name).write_bytes(mutated(draw, (folder / name).read_bytes()))
    return kind, [*explain, name, "-o", "why.png" if kind == "picture" else draw.choice(("why.gif", "why.mp4"))]


def run(folder: Path, seed: int, cases: range, until: float) -> Part:
    from codanet.cli import main

    preload()
    right = built(folder)
    part, kinds, codes = Part("Wrong inputs", seed), Counter[str](), Counter[int]()
    for index in cases:
        if time.monotonic() > until:
            break
        place = folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        copied(right, place)
        kind, words = case(random.Random(f"{seed}-{index}"), place)
        before = {path.relative_to(place) for path in place.rglob("*")}
        work = cold(words) if index % COLD == 0 else partial(main, words)
        ending = forked(work, place)
        kinds[kind] += 1
        codes[ending.code] += 1
        problem = ending.wrong()
        if not problem and (left := leftovers(place)):
            problem = f"left behind: {left[:3]}"
        made = {str(p.relative_to(place)) for p in place.rglob("why*")} - set(map(str, before))
        if not problem and ending.code == 2 and made:
            problem = f"half done: {sorted(made)}"
        if not problem and "\x1b" in ending.out + ending.err:
            problem = "an escape sequence reached the terminal"
        part.count(problem, f"case {index} ({kind}): codanet {' '.join(word[:60] for word in words)!r}")
    part.facts["started anew, not forked"] = f"one in {COLD}"
    part.facts["kinds"] = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    part.facts["exit codes"] = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
    return part
