"""Pictures that a small network learns to tell apart in seconds, and the settings by which it does."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

SETTINGS = "model: nano_coda\nimage_size: 12\ntemperature: 16\nbatch_size: 8\nlearning_rate: 1e-2\nthreads: 1\n"
SETTINGS += "maps_every: 3\n"
RECIPE = f"epochs: 4\naugmentation: flip-crop\n{SETTINGS}"


def paint(folder: Path) -> Path:
    """Three classes of 30 noisy 12x12 pictures, told apart by where they are bright; 72 of them to train on."""
    random = np.random.default_rng(0)
    for label, name in enumerate(("top", "middle", "bottom")):
        (folder / name).mkdir()
        for number in range(30):
            picture = random.integers(0, 90, (12, 12, 3))
            picture[4 * label : 4 * label + 4] += 150
            Image.fromarray(picture.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
