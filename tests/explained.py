"""A small model, pictures for it, and `codanet explain` of them."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from codanet import CoDANet, save
from codanet.cli import main
from codanet.models.network import Layer

NAMES = ("cat", "dog", "frog", "ship", "7")
SIDE, FACTOR = 16, 15  # pixels of the model's image, and dots for each on a card
LEFT, RIGHT, TOP = 16, 16 + 240 + 14, 16 + 26


def small_model() -> CoDANet:
    torch.manual_seed(3)
    return CoDANet([Layer(8, 2), Layer(5, 2, stride=2)], image_size=SIDE, class_names=NAMES, temperature=0.1).eval()


def furnish(folder: Path, model: CoDANet) -> None:
    """With the model and three pictures."""
    save(model, folder / "model.safetensors")
    for index, name in enumerate(("a", "b", "c")):
        noise(index).save(folder / f"{name}.png")


def noise(seed, size=(SIDE, SIDE)):
    values = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), np.uint8)
    return Image.fromarray(values)


def run(capsys, *words):
    code = main(["explain", "model.safetensors", *map(str, words)])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


def centres(path, left):
    """The middle dot of every pixel of a panel of a card."""
    dots = np.asarray(Image.open(path).convert("RGB"))
    step = slice(FACTOR // 2, 240, FACTOR)
    return dots[TOP : TOP + 240, left : left + 240][step, step]
