"""What `codanet explain` is given: bad and unusual pictures, odd names, and one sentence for what cannot be."""

import io
import json
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from codanet._support.pictures import picture_paths
from codanet.cli import main
from explained import LEFT, centres, furnish, noise, run, small_model


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture
def folder(tmp_path, monkeypatch, model):
    """A folder to be in."""
    furnish(tmp_path, model)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def bomb(width, height):
    """A PNG whose header promises more pixels than its few bytes hold."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


BAD = {
    "empty.png": (b"", "is empty (0 bytes)"),
    "cut.jpg": (encoded(noise(0, (200, 200)), "JPEG")[:2000], "damaged or cut short"),
    "text.png": (b"just words", "not a picture that can be read"),
    "bomb.png": (bomb(60000, 60000), "at most 50 million are decoded"),
    "drawing.svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture that can be read"),
    "page.html": (b"<html><body>hello</body></html>", "not a picture that can be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_picture(folder, capsys, name):
    content, words = BAD[name]
    (folder / name).write_bytes(content)
    code, out, err = run(capsys, name)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 2  # what the pictures are fitted to, and one sentence
    assert not (folder / "why.png").exists()


def test_the_unreadable_among_many_do_not_stop_the_rest(folder, capsys):
    for name, (content, _) in BAD.items():
        (folder / name).write_bytes(content)
    code, out, err = run(capsys, "a.png", *BAD, "c.png", "-o", "pages", "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert [record["image"] for record in records] == ["a.png", *BAD, "c.png"]  # in the order given
    assert all(BAD[record["image"]][1] in record["error"] for record in records[1:-1])
    assert sorted(path.name for path in (folder / "pages").iterdir()) == ["a-why.png", "c-why.png"]
    assert "6 of 8 pictures could not be read" in err
    code, out, _ = run(capsys, "a.png", "text.png", "c.png", "-o", "page.png")
    assert code == 1
    assert len(out.splitlines()) == 2


def unusual():
    square = Image.new("RGB", (32, 32), (0, 0, 255))
    square.paste((255, 0, 0), (0, 0, 32, 16))  # red above blue
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned by a quarter
    deep = Image.fromarray(np.full((32, 32), 257 * 100, np.uint16))
    return {
        "palette.png": (square.quantize(8), None),
        "cmyk.jpg": (square.convert("CMYK"), None),
        "deep.png": (deep, {}),
        "turned.jpg": (square.rotate(90), {"exif": turned}),
        "dot.png": (Image.new("RGB", (1, 1), (9, 9, 9)), {}),
        "wide.png": (Image.new("RGB", (20000, 10), (9, 200, 9)), {}),
    }


@pytest.mark.parametrize("name", unusual())
def test_unusual_pictures(folder, capsys, name):
    image, options = unusual()[name]
    image.save(name, quality=100, **(options or {}))
    assert run(capsys, name, "-o", "pages")[0] == 0
    seen = centres(f"pages/{name.partition('.')[0]}-why.png", LEFT).astype(int)
    first, last = seen[4, 8], seen[-4, 8]
    expected = {"deep.png": (100, 100, 100), "dot.png": (9, 9, 9), "wide.png": (9, 200, 9)}
    if name in expected:
        assert np.abs(seen - expected[name]).max() <= 1
    else:
        assert first[0] > 150 > first[2]  # red is above, also where EXIF says that it must be turned there
        assert last[2] > 150 > last[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing.png",), "'nothing.png' does not exist"),
        (("*.webp",), "nothing matches '*.webp'"),
        (("hollow",), "has no pictures in it"),
        (("a.png", "--target", "cta"), "unknown class 'cta': did you mean 'cat'?"),
        (("a.png", "--target", "12"), "target 12 is out of range"),
        (("a.png", "--target", "all"), "unknown class 'all': choose one of cat, dog"),
        (("a.png", "--target", "cat", "--top", "2"), "both given"),
        (("a.png", "--top", "0"), "'0' is not above 0"),
        (("a.png", "--top", "6"), "from 1 to the model's 5 classes"),
        (("a.png", "--style", "photo"), "invalid choice: 'photo'"),
        (("a.png", "--pallete", "x"), "unknown option '--pallete': did you mean '--palette'?"),
        (("a.png", "-o", "a.png"), "is what is to be explained"),
        (("a.png", "-o", "model.safetensors"), "write one of .png, .svg, .pdf, .gif, .mp4, or a folder"),
        (("a.png", "-o", "a.png/why.png"), "cannot be written to"),
        (("a.png", "-o", "plain"), "plain is a file"),
        (("a.png", "-o", "why.gif"), "not a moving picture"),
        ((), "required: PICTURE"),
    ],
)
def test_mistakes(folder, capsys, words, said):
    (folder / "hollow").mkdir()
    (folder / "plain").write_text("kept")
    before = sorted(path.name for path in folder.iterdir())
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.splitlines()[-1].startswith("codanet: ")
    assert sorted(path.name for path in folder.iterdir()) == before


def test_no_model(folder, capsys):
    assert main(["explain", "none.safetensors", "a.png"]) == 2
    assert main(["explain", "a.png", "b.png"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 2


def test_pictures_of_the_same_name(folder, capsys):
    (folder / "more").mkdir()
    noise(9).save("more/a.jpg")
    assert run(capsys, "a.png", "more/a.jpg", "-o", "pages")[0] == 0
    assert sorted(path.name for path in (folder / "pages").iterdir()) == ["a-2-why.png", "a-why.png"]


def test_names_that_are_no_utf8(folder, capsys):
    """Their other bytes, which Python reads as surrogates, are written out on a page, and nothing falls over them."""
    odd = os.fsdecode(b"caf\xe9.png")
    noise(4).save(odd)
    for output in ("why.png", "why.svg", "why.pdf", "pages"):
        code, out, _ = run(capsys, "a.png", odd, "-o", output)
        assert code == 0
        assert r"caf\udce9.png" in out
    assert "caf" in (folder / "why.svg").read_text(encoding="utf-8")


def test_paths(folder):
    (folder / "deep" / "er").mkdir(parents=True)
    noise(1).save("deep/er/d.png")
    (folder / "deep" / "notes.txt").write_text("no picture")
    (folder / "deep" / ".hidden.png").write_text("")
    found = picture_paths(["[bc].png", "a.png", "deep", "b.png"])
    assert [str(path) for path in found] == ["b.png", "c.png", "a.png", "deep/er/d.png"]  # each once
    noise(2).save("[x].png")
    assert [str(path) for path in picture_paths(["[x].png"])] == ["[x].png"]  # a file before a pattern
    assert len(picture_paths(["**/*.png"])) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a.png", "--start", "1"), "--start and --end are for a film"),
        (("a.png", "b.png", "--end", "2", "-o", "pages"), "--start and --end are for a film"),
        (("a.png", "--layers", "--compare", "ixg"), "--layers fills a page: leave out --compare"),
        (("a.png", "--layers", "--scale", "2"), "--layers fills a page: leave out --compare, --style and --scale"),
        (("a.png", "--layers", "--top", "3"), "--layers shows where one class comes from: leave out --top"),
        (("a.png", "--layers", "--target", "cat", "--target", "dog", "-o", "pages"), "and further --target"),
    ],
)
def test_nothing_that_is_asked_for_is_left_out_in_silence(folder, capsys, words, said):
    code, _, err = run(capsys, *words)
    assert code == 2
    assert said in err
