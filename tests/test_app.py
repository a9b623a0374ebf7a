"""The web page without a browser: what it computes, what it says to bad files, what the server refuses."""

import asyncio
import base64
import csv
import io
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import zlib
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

import codanet
from codanet import CoDANet
from codanet.app import answers, session, start, views
from codanet.app.gate import HEADERS, Gate
from codanet.app.reading import cell, read, share
from codanet.app.session import Gallery, Session
from codanet.data import ImageData, MemorySplit, load_data
from codanet.data.examples import PHOTOGRAPHS, examples
from codanet.data.tiling import tiled_square
from codanet.models.network import Layer
from colours import colour_model, halves


def random_model(classes: int = 5, names: tuple[str, ...] | None = None) -> CoDANet:
    return CoDANet([Layer(8, 2), Layer(classes, 2, stride=2)], image_size=16, class_names=names).eval()


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def given(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.fixture
def gallery() -> Gallery:
    model = colour_model()
    shades = {name: Image.new("RGB", (40, 40), name) for name in ("red", "lime", "blue", "white")}
    pictures = tuple(
        session.seen_by(f"example-{i}", n, s, {"colours": model}) for i, (n, s) in enumerate(shades.items())
    )
    return Gallery({"colours": model}, {"colours": pictures})


@pytest.fixture
def opened(gallery) -> Session:
    return session.take_upload(gallery, Session("colours"), given(encoded(halves(16))), "halves.png")


@pytest.mark.parametrize("box", [None, (0, 0, 16, 16), (3, 5, 9, 6), (15, 15, 16, 16)])
@pytest.mark.parametrize("versus", [None, 3])
def test_parts_add_up_to_the_logit(box, versus):
    reading = read(random_model(), torch.rand(3, 16, 16))
    parts = reading.parts(box, 1, versus)
    wanted = reading.logits[1] - (0 if versus is None else reading.logits[versus])
    assert parts.logit == pytest.approx(wanted.item())
    assert parts.inside + parts.outside + parts.bias == pytest.approx(parts.logit, abs=1e-4)
    assert parts.error < 1e-4
    if box == (3, 5, 9, 6):
        assert parts.inside == pytest.approx(reading.map(1, versus)[5, 3:9].sum().item(), abs=1e-5)


def test_classes_in_chunks_are_the_same(monkeypatch):
    model, image = random_model(), torch.rand(3, 16, 16)
    whole = read(model, image)
    monkeypatch.setattr("codanet.app.reading.CLASSES_AT_ONCE", 2)
    parts = read(model, image)
    assert torch.allclose(whole.pixels, parts.pixels, atol=1e-6)
    assert torch.equal(whole.logits, parts.logits)
    assert torch.allclose(whole.pixels, model.explain(image[None], "all").pixels[0], atol=1e-6)


def test_a_box_on_the_red_half(opened):
    """Each class counts its own channel: +2g a pixel of its colour, -g one of another."""
    reading = opened.read
    left = reading.parts((0, 0, 8, 16), 0)
    right = reading.parts((8, 0, 16, 16), 0)
    assert left.inside == pytest.approx(right.outside)
    assert left.inside == pytest.approx(-2 * left.outside, rel=1e-5)
    assert reading.parts((0, 0, 8, 16), 0, 2).inside == pytest.approx(1.5 * left.inside, rel=1e-5)
    assert reading.ranked()[-1] == 1


@pytest.mark.parametrize(
    ("box", "clipped"),
    [
        ([9, 8, 2, 3], (2, 3, 9, 8)),
        ([-5, -5, 99, 99], (0, 0, 16, 16)),
        ([4, 4, 4, 4], (4, 4, 5, 5)),
        ([16, 16, 16, 16], (15, 15, 16, 16)),
    ],
)
def test_boxes_are_brought_inside(box, clipped, opened):
    assert session.choose_box(opened, box).box == clipped


@pytest.mark.parametrize("box", ["all", [1, 2, 3], [1, 2, 3, float("nan")], [1, 2, 3, "4"], {"path": "x"}])
def test_bad_boxes(box, opened):
    with pytest.raises(ValueError, match="box"):
        session.choose_box(opened, box)


@pytest.mark.parametrize("number", [-1, 3, True, 1.5, "0", None, {}])
def test_bad_classes(number, opened):
    with pytest.raises(ValueError, match="no class of this model"):
        session.choose_class(opened, number)


def test_class_and_its_opposite(opened):
    chosen = session.choose_versus(session.choose_class(opened, 2), 0)
    assert (chosen.target, chosen.versus) == (2, 0)
    assert session.choose_versus(chosen, -1).versus is None
    assert session.choose_versus(chosen, 2).versus is None  # not against itself
    assert session.choose_class(chosen, 0).versus is None


EXIF = Image.Exif()
EXIF[0x0112] = 6
SOURCES = {
    "png": encoded(halves()),
    "jpeg": encoded(halves(), "JPEG"),
    "webp": encoded(halves(), "WEBP"),
    "bmp": encoded(halves(), "BMP"),
    "animated gif": encoded(halves(), "GIF", save_all=True, append_images=[halves(160, "lime")]),
    "palette": encoded(halves().quantize(8)),
    "cmyk": encoded(halves().convert("CMYK"), "JPEG"),
    "transparent": encoded(halves().convert("RGBA")),
    "16 bits": encoded(Image.fromarray((np.arange(256 * 40).reshape(40, 256) * 6).astype(np.uint16))),
    "turned": encoded(halves(), "JPEG", exif=EXIF),
    "1x1": encoded(Image.new("RGB", (1, 1), "red")),
    "20000 wide": encoded(Image.new("RGB", (20000, 60), "blue")),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_picture_is_what_read_image_makes_of_it(kind, gallery):
    found = session.take_upload(gallery, Session("colours"), given(SOURCES[kind]), kind)
    wanted = codanet.read_image(SOURCES[kind], gallery.models["colours"])
    assert torch.allclose(found.read.image, wanted, atol=1.5 / 255)
    assert found.shown == ("upload-1",)
    assert found.photo.startswith("data:image/")
    if kind == "turned":  # red is above blue, not left of it
        assert found.read.image[0, :6].mean() > 0.9 > 0.1 > found.read.image[0, 10:].mean()


def bomb() -> bytes:
    """A PNG header that promises 60000 x 60000 pixels."""
    content = bytearray(encoded(Image.new("L", (2, 2))))
    content[16:24] = (60000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


BAD = {
    "empty": (b"", "That file is empty"),
    "truncated": (encoded(halves(), "JPEG")[:700], "damaged or cut short"),
    "text": (b"hello, I am a picture", "not a picture that can be read"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture that can be read"),
    "html": (b"<!doctype html><script>alert(1)</script>", "not a picture that can be read"),
    "bomb": (bomb(), "at most 50 million"),
    "tiff": (encoded(halves(), "TIFF"), "not a picture that can be read"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_files(kind, gallery, opened):
    content, words = BAD[kind]
    with pytest.raises(ValueError, match=words) as said:
        session.take_upload(gallery, opened, given(content), "x.png")
    assert "bytes given" not in str(said.value)
    assert "/" not in str(said.value)  # no path of the server


@pytest.mark.parametrize("content", [None, 7, {"path": "/etc/passwd"}, "no base64!", "data:image/png;base64,AAAA"])
def test_what_is_no_file(content, gallery):
    with pytest.raises(ValueError, match="picture|damaged"):
        session.take_upload(gallery, Session("colours"), content, "x")


def test_large_files(gallery, monkeypatch):
    monkeypatch.setattr(session, "MOST_BYTES", 2**20)
    with pytest.raises(ValueError, match="larger than the 1 MiB"):
        session.take_upload(gallery, Session("colours"), "A" * (2**21))


def test_only_the_last_uploads_are_kept(gallery):
    now = Session("colours")
    for number in range(session.MOST_UPLOADS + 3):
        now = session.take_upload(gallery, now, given(encoded(halves(20 + number))), f"{number}")
    assert len(now.uploads) == session.MOST_UPLOADS
    assert now.uploads[0].title == str(session.MOST_UPLOADS + 2)
    with pytest.raises(ValueError, match="no longer here"):
        session.open_picture(gallery, now, "upload-1")


def test_another_model_keeps_the_visitors_picture(gallery, opened):
    other = random_model()
    examples_of = {"other": (session.seen_by("example-0", "red", halves(), {"other": other}),)}
    both = Gallery({**gallery.models, "other": other}, {**gallery.pictures, **examples_of})
    upload = session.take_upload(both, Session("colours"), given(encoded(halves())), "mine")
    assert session.open_model(both, upload, "other").shown == ("upload-1",)
    assert len(session.open_model(both, upload, "other").read.logits) == 5
    example = session.open_picture(both, upload, "example-1")
    assert session.open_model(both, example, "other").shown == ("upload-1",)  # the first of what there is
    with pytest.raises(ValueError, match="not on this page"):
        session.open_model(both, upload, "../secret")


def test_multi_image_finds_each_class(gallery):
    keys = ["example-2", "example-0", "example-1", "example-3"]  # blue, red, green, white
    now = Session("colours")
    for key in keys:
        now = session.toggle_mixed(gallery, now, key)
    assert now.mixed == tuple(keys)
    assert session.toggle_mixed(gallery, now, "example-0").mixed == ("example-2", "example-1", "example-3")
    now = session.mix(gallery, now, 2)
    assert now.cells == 2
    assert now.read.size == (32, 32)
    finds = session.finds(gallery, now)
    assert [target for target, _, _ in finds[:3]] == [2, 0, 1]
    assert [round(part, 6) for _, _, part in finds[:3]] == [1.0, 1.0, 1.0]
    shown = answers.found_classes(gallery, now)
    assert shown.count("100% inside") == 3
    assert "Evenly spread it would be 25%" in shown
    with pytest.raises(ValueError, match="3 x 3 needs 9 pictures and there are 4"):
        session.mix(gallery, now, 3)
    with pytest.raises(ValueError, match="not offered"):
        session.mix(gallery, now, 40)


def test_cells_and_shares():
    images = [torch.full((3, 4, 6), float(i)) for i in range(9)]
    whole = tiled_square(images)
    assert whole.shape == (3, 12, 18)
    assert whole[0, 5, 13] == 5
    with pytest.raises(ValueError, match="no square"):
        tiled_square(images[:5])
    reading = read(random_model(), torch.rand(3, 32, 32))
    assert cell(reading, 2, 3) == (16, 16, 32, 32)
    maps = torch.full((1, 32, 32), -1.0)
    maps[0, :16, 16:] = 3
    maps[0, 20, 2] = 3 * 256  # as much as that whole quarter
    planted = replace(reading, pixels=maps)
    assert [share(planted, 0, cell(planted, 2, index)) for index in range(4)] == [0, 0.5, 0.5, 0]
    assert share(replace(reading, pixels=-maps.abs()), 0, cell(reading, 2, 0)) == 0  # nothing speaks for it


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


def test_examples():
    digits = CoDANet(
        [Layer(10, 1, kernel_size=1)], image_channels=1, image_size=8, class_names=tuple("0123456789")
    ).eval()
    assert list(examples(digits)) == list("0123456789")
    photographs = examples(random_model())
    assert list(photographs) == list(PHOTOGRAPHS)
    assert all(photograph.mode == "RGB" for photograph in photographs.values())
    images = torch.zeros(6, 3, 16, 16, dtype=torch.uint8)
    split = MemorySplit(images, torch.tensor([0, 1, 2, 3, 4, 4]))
    data = ImageData("mine", tuple("abcde"), split, split, (16, 16), 3, "")
    assert list(examples(random_model(), data)) == list("abcde")
    assert list(examples(digits, load_data("digits"))) == list("0123456789")
    assert list(examples(colour_model(), data)) == list(PHOTOGRAPHS)  # of another number of classes


def asked(method: str, path: str, body: bytes = b"", length: str | None = None) -> tuple[int, dict[str, str]]:
    """What the gate answers, or 200 if it lets the request pass and its body is read."""
    sent = []

    async def application(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    parts = [body[i : i + 100] for i in range(0, len(body), 100)] or [b""]

    async def receive():
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message):
        sent.append(message)

    headers = [(b"content-length", length.encode())] if length is not None else []
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    asyncio.run(Gate(application, most_bytes=1000)(scope, receive, send))
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("HEAD", "/", 200),
        ("GET", "/assets/index-1.js", 200),
        ("GET", "/gradio_api/heartbeat/abc", 200),
        ("POST", "/gradio_api/queue/join", 200),
        ("POST", "/gradio_api/upload", 404),
        ("GET", "/gradio_api/file=/etc/passwd", 404),
        ("GET", "/gradio_api/file=http://example.com/a.png", 404),
        ("GET", "/file=/etc/passwd", 404),
        ("GET", "/gradio_api/proxy=http://example.com", 404),
        ("GET", "/assets/../../secret", 404),
        ("POST", "/gradio_api/process_recording", 404),
        ("POST", "/gradio_api/run/predict", 404),
        ("POST", "/gradio_api/component_server", 404),
        ("GET", "/gradio_api/deep_link", 404),
        ("GET", "/monitoring/summary", 404),
        ("DELETE", "/", 404),
    ],
)
def test_gate(method, path, status):
    found, headers = asked(method, path)
    assert found == status
    assert set(HEADERS) <= set(headers)


def test_gate_limits_bodies():
    join = "/gradio_api/queue/join"
    assert asked("POST", join, b"x" * 1000, "1000")[0] == 200
    assert asked("POST", join, b"", "1001")[0] == 413
    assert asked("POST", join, b"", "many")[0] == 413
    assert asked("POST", join, b"x" * 1001)[0] == 413  # without a length, counted as it comes


@pytest.mark.parametrize(
    ("models", "options", "words"),
    [
        ({}, {}, "no model was given"),
        ({"six": CoDANet([Layer(2, 1)], image_channels=6)}, {}, "6 channels"),
        ({"m": colour_model()}, {"port": 99999}, "between 1 and 65535"),
    ],
)
def test_what_cannot_be_served(models, options, words):
    with pytest.raises(ValueError, match=words):
        start(models, **options)


def test_without_gradio(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ValueError, match="pip install 'codanet\\[demo\\]'"):
        start({"m": colour_model()})


@pytest.fixture(scope="module")
def served():
    page = start({"colours": colour_model()})
    yield page
    page.close(verbose=False)


def fetched(page, path: str, body: object = None) -> tuple[int, str]:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(page.local_url.rstrip("/") + path, content, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read(4000).decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def joined(page, function: str, data: list, event: object = None) -> str:
    """The end of an event, as the server streams it."""
    number = next(i for i, each in page.fns.items() if each.name == function)
    body = {"data": data, "event_data": event, "fn_index": number, "session_hash": "tester", "trigger_id": None}
    status, _ = fetched(page, "/gradio_api/queue/join", body)
    assert status == 200
    address = page.local_url.rstrip("/") + "/gradio_api/queue/data?session_hash=tester"
    with urllib.request.urlopen(address, timeout=60) as stream:
        for line in stream:
            if b"process_completed" in line:
                return line.decode()
    raise AssertionError("the event did not end")


def test_the_server_takes_no_path_and_no_address(served):
    assert served.local_url.startswith("http://127.0.0.1:")
    assert fetched(served, "/")[0] == 200
    for path in ("/gradio_api/file=/etc/passwd", "/gradio_api/upload", "/gradio_api/info", "/gradio_api/deep_link"):
        assert fetched(served, path)[0] == 404
    meta = {"_type": "gradio.FileData"}
    for path in ("/etc/passwd", "http://example.com/a.png", "../secret"):
        file = {"path": path, "url": path, "meta": meta}
        for value in (file, [file], [[file]]):
            assert "not something this page takes" in joined(served, "on_why", [None, value])
        assert '"success":false' in joined(served, "on_upload", [None], {"content": file})
    assert '"success":false' in joined(served, "on_tile", [None], "no mapping")
    assert '"success":true' in joined(served, "on_why", [None, 1])
    assert fetched(served, "/")[0] == 200


def test_a_fault_of_ours_is_not_told(served, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("secret detail of /home/someone")

    monkeypatch.setattr(session, "choose_class", broken)
    told = joined(served, "on_why", [None, 1])
    assert "secret" not in told
    assert "fault of its own" in told


def test_a_port_that_is_taken(served):
    with pytest.raises(ValueError, match="choose another --port"):
        start({"m": colour_model()}, port=served.server_port)


def test_the_command(tmp_path):
    """Served until Ctrl-C, then gone without a traceback."""
    codanet.save(colour_model(), tmp_path / "colours.safetensors")
    words = [sys.executable, "-m", "codanet", "demo", "colours.safetensors"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert address, line + process.stderr.read()
            with urllib.request.urlopen(address[0], timeout=30) as answer:
                assert b"codanet" in answer.read()
        finally:
            process.send_signal(signal.SIGINT)
            try:
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()  # else leaving the block would wait for a server that did not hear
    assert process.returncode == 0
    assert "Ended." in out
    assert "Traceback" not in err
    assert not list(tmp_path.glob(".gradio*"))
