"""What the page says and gives away: files, comparisons, and names that stay words."""

import base64
import csv
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

from codanet.app import answers, session, views
from codanet.app.session import Gallery, Session
from colours import colour_model, halves


def test_files_to_take_away(gallery, opened):
    now = session.choose_box(session.choose_versus(opened, 2), [0, 0, 8, 16])
    saved = answers.numbers_file(gallery, now)
    numbers = json.loads(content(saved))
    assert saved["name"] == "why-red.json"
    assert numbers["box"] == [0, 0, 8, 16]
    assert numbers["shown"]["rather_than"] == "blue"
    assert np.sum(numbers["shown"]["contributions"]) == pytest.approx(numbers["shown"]["logit"], abs=1e-4)
    for entry in numbers["classes"]:
        assert entry["inside"] + entry["outside"] + numbers["bias"] == pytest.approx(entry["logit"], abs=1e-4)

    rows = list(csv.DictReader(io.StringIO(content(answers.table_file(now)).decode("utf-8-sig"))))
    assert {row["class"] for row in rows} == {"red", "green", "blue"}
    for row in rows:
        parts = (float(row[name]) for name in ("inside box", "outside box", "bias"))
        assert sum(parts) == pytest.approx(float(row["logit"]), abs=1e-4)

    whole = list(csv.DictReader(io.StringIO(opened.read.table(None))))
    assert float(whole[0]["all pixels"]) + float(whole[0]["bias"]) == pytest.approx(float(whole[0]["logit"]), abs=1e-4)

    picture = Image.open(io.BytesIO(content(answers.picture_file(now, 0.5))))
    assert picture.format == "PNG"
    assert picture.width > 3 * answers.CARD_SIDE
    red, blue = picture.getpixel((60, 200)), picture.getpixel((460, 200))
    assert red[0] > 200 > 60 > red[2]
    assert blue[2] > 200 > 60 > blue[0]
    map_left, map_right = picture.getpixel((picture.width - 460, 200)), picture.getpixel((picture.width - 60, 200))
    assert map_left[0] > map_left[2]  # for red
    assert map_right[2] > map_right[0]  # against it


def content(file: dict) -> bytes:
    return base64.b64decode(file["uri"].partition(",")[2])


def test_no_path_of_the_server_is_told(gallery, opened):
    model = gallery.models["colours"]
    model.provenance = {"data": "/home/someone/pictures", "seed": 3, "settings": {"root": "/home/someone"}}
    for told in (content(answers.numbers_file(gallery, opened)).decode(), answers.about(gallery, opened)):
        assert "someone" not in told
        assert "pictures" in told


def test_accuracy_is_told_with_the_images_it_was_measured_on(gallery, opened):
    model = gallery.models["colours"]
    model.provenance = {"val_accuracy": 0.5, "val_images": 10}
    assert "50.00% of 10 validation pictures" in answers.about(gallery, opened)
    assert "test pictures" not in answers.about(gallery, opened)
    model.provenance |= {"test_accuracy": 0.25, "test_images": 20}
    assert "25.00% of 20 test pictures" in answers.about(gallery, opened)


class Tags(HTMLParser):
    def __init__(self, html: str):
        super().__init__()
        self.names, self.attributes, self.sources = set(), set(), set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.sources |= {value for name, value in attrs if name == "src"}


EVIL = ('<script>alert("1")</script>', "'\"><img src=x onerror=alert(1)>", "=1+1")


def test_names_stay_words():
    model = colour_model(names=EVIL)
    photo = session.seen_by("upload-1", EVIL[0], halves(), {"m": model})
    gallery = Gallery({"m": model}, {"m": (photo,)})
    now = session.choose_box(session.choose_versus(session.open_model(gallery, Session("m"), "m"), 1), [0, 0, 3, 3])
    reading = now.read
    shown = [
        views.viewer(reading, now.photo, 0, 1, now.box, 1),
        views.bars(reading, 0, 1),
        views.region(reading, 0, 1, now.box),
        *answers.tile_views(gallery, now),
        views.panels([views.Panel(EVIL[0], EVIL[1], now.photo, about=EVIL[1])], [EVIL[0]]),
        answers.about(gallery, now),
    ]
    for html in shown:
        tags = Tags(html)
        assert tags.names <= {
            "div",
            "img",
            "i",
            "span",
            "p",
            "strong",
            "button",
            "b",
            "table",
            "thead",
            "tbody",
            "tr",
        } | {*("th", "td", "sup", "input", "figure", "figcaption")}
        assert not any(name.startswith("on") for name in tags.attributes)
        assert "x" not in tags.sources
    assert "'=1+1," in reading.table(None)  # no formula for a spreadsheet
    assert re.fullmatch(r"why-[\w-]+\.csv", answers.table_file(now)["name"])


def test_cover_is_red_for_and_blue_against():
    values = torch.tensor([[1.0, -1.0, 0.0, 0.25]])
    colours = views.cover(values, 1.0)
    assert tuple(colours[0, 0]) == (178, 24, 43, 255)
    assert tuple(colours[0, 1]) == (33, 102, 172, 255)
    assert colours[0, 2, 3] == 0
    assert colours[0, 3, 3] == round(255 * 0.25**0.75)


def test_comparison_streams_and_times(gallery, opened):
    pages = list(answers.compared(gallery, opened, ["ixg", "contributions"]))
    assert len(pages) == 3
    assert pages[0].count("computing") == 2
    assert "computing" not in pages[-1]
    assert pages[-1].index("CoDA") < pages[-1].index("IxG")  # in the registry's order
    assert len(re.findall(r"\d+ ms|\d\.\d s", pages[-1])) == 2
    with pytest.raises(ValueError, match="no method is chosen"):
        list(answers.compared(gallery, opened, ["nothing"]))
