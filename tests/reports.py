"""Pictures, a network and a log that a report can be made of, and the page as a browser sees it."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from codanet.data import load_data
from colours import colour_model

COLOURS = {"red": (230, 20, 20), "green": (20, 230, 20), "blue": (20, 20, 230)}


def coloured_pictures(folder: Path) -> Path:
    """Plain colours in three folders, 10 each; one blue picture lies among the red ones."""
    random = np.random.default_rng(0)
    for part in ("train", "val"):
        for name, colour in COLOURS.items():
            (folder / part / name).mkdir(parents=True)
            for number in range(10):
                wrong = name == "red" and number == 3
                shade = random.integers(0, 20, (16, 16, 3)) + np.array(COLOURS["blue"] if wrong else colour)
                Image.fromarray(shade.astype(np.uint8)).save(folder / part / name / f"{number}.png")
    return folder


def model_of(pictures: Path, **provenance):
    """Sees colours; its classes stand in the order of the folders."""
    data = load_data(pictures)
    model = colour_model(names=("red", "green", "blue"))
    order = [("red", "green", "blue").index(name) for name in data.classes]
    with torch.no_grad():
        model.dau_layers[0].A.copy_(model.dau_layers[0].A[:, order])
    model.class_names = data.classes
    settings = {"data": str(pictures), "seed": 0, "epochs": 2, "image_size": None, "root": None}
    model.provenance = {"settings": settings, "data": data.name, "val_accuracy": 0.5, "epochs": 2, **provenance}
    return model, data, settings


LOG = """epoch,loss_epoch,loss_step,step,train_accuracy,val_accuracy,val_loss
0,,0.5,19,,,
0,,,20,,0.5,0.75
0,0.625,,20,0.25,,
1,,,40,,0.875,0.25
1,0.375,,40,0.75,,
"""


class Page(HTMLParser):
    """What a browser would make of it: words, tags, what it would fetch, tables as lists."""

    def __init__(self, path: Path):
        super().__init__()
        self.text, self.tags, self.fetched, self.attributes = path.read_text(encoding="utf-8"), [], [], set()
        self.words: list[str] = []
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.fetched += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]

    def handle_data(self, data):
        self.words.append(data)

    @property
    def plain(self) -> str:
        return " ".join(" ".join(self.words).split())


def harmless(page: Page) -> None:
    assert not {"script", "iframe", "link", "object", "embed", "form"} & set(page.tags)
    assert all(address.startswith("data:image/png;base64,") for address in page.fetched)
    assert not any(name.startswith("on") for name in page.attributes)
    assert "default-src 'none'; img-src data:" in page.text
    assert not re.search(r"https?://", page.text.replace("http-equiv", ""))
