"""Reports of runs by what they say: numbers that can be counted, maps that are there, nothing fetched, nothing run."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import codanet
import processes
from chromium import MISSING, chromium
from codanet._support.files import file_digest
from codanet.cli import main
from codanet.data.pictures import Pictures
from codanet.evaluation import Row
from codanet.report import report, sources
from codanet.report.findings import find, wilson
from codanet.report.sections import facts, figures, measurements, table
from reports import LOG, Page, coloured_pictures, harmless, model_of


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    return coloured_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CODANET_DATA", str(tmp_path / "cache"))


@pytest.fixture
def a_run(tmp_path, pictures) -> Path:
    folder = tmp_path / "a <b>run"
    model, data, settings = model_of(pictures)
    (folder / "maps").mkdir(parents=True)
    (folder / "logs" / "1").mkdir(parents=True)
    codanet.save(model, folder / "model.safetensors")
    (folder / "settings.json").write_text(json.dumps({**settings, "data_checksum": data.checksum}))
    (folder / "logs" / "1" / "metrics.csv").write_text(LOG)
    for epoch in (1, 2):
        Image.new("RGB", (30, 20), "white").save(folder / "maps" / f"epoch-{epoch:03d}.png")
    return folder


def test_a_run_becomes_a_page(a_run):
    path = report(a_run, quiet=True)
    assert path == a_run / "report.html"
    page = Page(path)
    harmless(page)
    assert "a <b>run: training run" in page.plain  # as words, not as a tag
    assert "96.67%" in page.plain  # 29 of 30
    assert "accuracy on 30 held-out images, 95% interval 83.3% to 99.4%" in page.plain
    for title in ("Sure and right", "Sure and wrong", "Confusion", "Training", "Maps as training went on"):
        assert title in page.plain
    # three right decisions with a map each, one wrong with two, calibration, curves, two pictures of maps
    assert page.tags.count("img") == 3 * 2 + 3 + 1 + 1 + 2
    cells = re.findall(r"<td class='(right|wrong)'[^>]*>(\d*)</td>", page.text)
    counts = np.array([int(count or 0) for _, count in cells]).reshape(3, 3)
    heads = re.findall(r"<th scope='(?:col|row)'>(?:<span>)?(\w+)", page.text)
    assert heads == ["blue", "green", "red", "found", "blue", "green", "red", "true"]
    assert counts.tolist() == [[10, 0, 0], [0, 10, 0], [1, 0, 9]]  # a red one was called blue
    assert [kind for kind, _ in cells] == ["right", *["wrong"] * 3] * 2 + ["right"]
    assert re.search(r"\b2 epochs\b", page.plain)
    assert file_digest(a_run / "model.safetensors", "sha256") in page.plain


def test_findings_are_counted_and_sorted(pictures):
    model, data, _ = model_of(pictures)
    steps = []
    found = find(model, Pictures(data.val), data.classes, steps.append)
    assert sum(steps) == 30
    assert found.number == 30
    assert found.accuracy == pytest.approx(29 / 30)
    assert {case.label for case in found.right} == {0, 1, 2}
    sure = [case.probability for case in found.right]
    assert sure == sorted(sure, reverse=True)
    (wrong,) = found.wrong
    assert (data.classes[wrong.label], data.classes[wrong.said]) == ("red", "blue")
    why = model.explain(wrong.image[None], [[wrong.said, wrong.label]])
    assert torch.allclose(torch.stack([wrong.said_map, wrong.label_map]), why.pixels[0])
    assert wrong.said_map.sum().item() + why.bias == pytest.approx(why.logits[0, wrong.said].item(), abs=1e-4)
    assert wrong.probability == pytest.approx(why.probabilities[0, wrong.said].item())


def test_wilson_interval():
    """As in Brown, Cai and DasGupta 2001: never outside [0, 1], and not of no width at the ends."""
    assert wilson(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-3))
    assert wilson(10, 10) == (pytest.approx(0.7225, abs=1e-3), 1.0)
    low, high = wilson(50, 100)
    assert (low + high) / 2 == pytest.approx(0.5)
    assert high - low == pytest.approx(0.192, abs=1e-3)


def test_many_classes_are_listed_by_what_is_confused(pictures, monkeypatch, a_run):
    monkeypatch.setattr("codanet.report.sections.MATRIX_CLASSES", 2)
    page = Page(report(a_run, quiet=True))
    assert "true class called images of that class red blue 1 10.0%" in page.plain


def test_without_its_images_it_says_so(a_run, pictures, tmp_path):
    settings = json.loads((a_run / "settings.json").read_text())
    (a_run / "settings.json").write_text(json.dumps({**settings, "data": str(tmp_path / "gone")}))
    page = Page(report(a_run, quiet=True))
    assert "are not on this machine: no confusion matrix" in page.plain
    assert "Sure and right" not in page.plain
    assert "50.00% accuracy on ? held-out images, as training measured it" in page.plain
    page = Page(report(a_run, tmp_path / "moved.html", root=pictures, quiet=True))
    assert "96.67%" in page.plain
    (a_run / "settings.json").write_text(json.dumps({**settings, "data_checksum": "other"}))
    assert "are not those that were used" in Page(report(a_run, quiet=True)).plain
    (a_run / "settings.json").write_text(json.dumps({**settings, "data": "cifar10"}))
    assert "The images of cifar10 are not on this machine" in Page(report(a_run, quiet=True)).plain


def test_images_in_the_home_of_a_user_are_found(pictures, monkeypatch):
    """As training found them, whose settings keep the words they were given: data: ~/pictures."""
    monkeypatch.setenv("HOME", str(pictures.parent))
    there = sources.images({"data": f"~/{pictures.name}"}, None)
    assert there.data is not None
    assert there.data.classes == ("blue", "green", "red")
    found = sources.images({"data": "mnist", "root": f"~/{pictures.name}"}, None)
    assert "cannot be read" in found.missing  # it was looked for there


def test_nothing_is_fetched_for_a_report(tmp_path, monkeypatch):
    """Not even if the images of the cache are damaged."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "cifar10.safetensors").write_bytes(b"garbage")
    monkeypatch.setattr(sources, "load_data", lambda *_, **__: pytest.fail("it would be fetched"))
    assert sources.images({"data": "cifar10"}, None).missing == "The images of cifar10 are not on this machine"


def test_an_unfinished_run(a_run):
    (a_run / "model.safetensors").rename(a_run / "last.ckpt")
    page = Page(report(a_run, quiet=True))
    assert "The training has not ended: 2 of 2 epochs are logged" in page.plain
    assert page.tags.count("img") == 1


def test_logs_of_a_resumed_run(a_run):
    (a_run / "logs" / "2").mkdir()
    more = LOG.splitlines()[0] + "\n1,,,40,,0.9375,0.125\n2,,,60,,1.0,0.0625\nhalf a li"
    (a_run / "logs" / "2" / "metrics.csv").write_text(more)
    found = sources.epochs(a_run)
    assert [line["epoch"] for line in found] == [1, 2, 3]
    assert [line["val_accuracy"] for line in found] == [0.5, 0.9375, 1.0]
    assert found[1]["train_accuracy"] == 0.75


def test_logs_of_a_run_of_two_stages(a_run):
    alone = sources.epochs(a_run)
    assert sources.with_first_stage(a_run, alone) == alone
    shutil.copytree(a_run / "logs", a_run / "stage-1" / "logs")
    both = sources.with_first_stage(a_run, alone)
    assert [line["epoch"] for line in both] == [1, 2, 3, 4]
    assert [line["val_accuracy"] for line in both] == 2 * [line["val_accuracy"] for line in alone]


def test_tables_take_anything():
    assert "none" in measurements([Row.of({"metric": "new", "mean": None, "method": "mine", "n": "x", "notes": 3})])
    assert "&lt;b&gt;" in table(("<b>",), [("<i>",)])
    assert "&lt;i&gt;" in figures([("<i>", "x")])
    assert "a · b" in facts({"a": {"b": [1, 2]}, "none": None})


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({}, "holds neither results.json"),
        ({"results.json": "[]"}, "holds no mapping"),
        ({"results.json": "{"}, "cannot be read"),
        ({"results.json": "{}"}, "no rows of measurements"),
        ({"records.jsonl": ""}, "has not ended"),
        ({"T=10/settings.json": "{}"}, "holds several runs: give one of them"),
        ({"model.safetensors": "no weights"}, "cannot be read as safetensors"),
    ],
)
def test_folders_that_are_none(made, words, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, content in made.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    with pytest.raises(ValueError, match=words):
        report(folder, quiet=True)
    assert not (folder / "report.html").exists()


def test_paths_that_are_none(tmp_path, a_run):
    with pytest.raises(ValueError, match="does not exist"):
        report(tmp_path / "nothing")
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        report(a_run / "settings.json")
    with pytest.raises(ValueError, match="is a folder: give the name of a file"):
        report(a_run, tmp_path, quiet=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        report(a_run, tmp_path / "file" / "report.html", quiet=True)


def test_the_last_map_of_a_thousand_epochs_is_the_last(a_run):
    for epoch in (999, 1000):
        Image.new("RGB", (30, 20), "white").save(a_run / "maps" / f"epoch-{epoch:03d}.png")
    shown = re.findall(r"After (epoch \d+)", report(a_run, corrupted=0, quiet=True).read_text(encoding="utf-8"))
    assert list(dict.fromkeys(shown)) == ["epoch 001", "epoch 999", "epoch 1000"]


def test_what_a_report_is_made_of_is_not_written_over(a_run):
    weights = (a_run / "model.safetensors").read_bytes()
    for name in ("model.safetensors", "settings.json"):
        with pytest.raises(ValueError, match=f"{name} is what is to be reported: give -o another name"):
            report(a_run, a_run / name, corrupted=0, quiet=True)
    assert (a_run / "model.safetensors").read_bytes() == weights
    assert report(a_run, a_run / "report.html", corrupted=0, quiet=True) == report(a_run, corrupted=0, quiet=True)


def test_the_command(a_run, tmp_path, capsys):
    assert main(["report", str(a_run), "-o", str(tmp_path / "r.html")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(tmp_path / "r.html")
    assert len(lines) == 4  # and three sentences on what to look at
    assert (tmp_path / "r.html").is_file()
    assert main(["report", str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["report", str(a_run), "--outptu", "x"]) == 2
    assert "did you mean '--output'" in capsys.readouterr().err


def test_gradio_is_not_needed(a_run, tmp_path):
    code = "import sys; from codanet.report import report; report(sys.argv[1], sys.argv[2], quiet=True); "
    code += "assert 'gradio' not in sys.modules"
    done = processes.run(code, a_run, tmp_path / "r.html")
    assert done.returncode == 0, done.stderr


@pytest.mark.browser
def test_in_a_browser(a_run, tmp_path):
    """All pictures show, nothing is asked of the network, and a phone's width is enough."""
    if chromium() is None:
        pytest.fail(MISSING)
    from playwright.sync_api import sync_playwright

    path = report(a_run, tmp_path / "report.html", quiet=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        for width in (1200, 390):
            page = browser.new_page(viewport={"width": width, "height": 900})
            asked = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto(path.as_uri())
            assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert [url for url in asked if not url.startswith(("data:", "file:"))] == []
        browser.close()


def test_images_of_a_set_are_as_large_as_a_backbone_took_them():
    assert sources.images({"data": "digits", "backbone": "resnet56"}, None).data.image_size == (32, 32)
    assert sources.images({"data": "digits", "backbone": "resnet56", "image_size": 16}, None).data.image_size == (
        16,
        16,
    )


@pytest.mark.parametrize(
    "claim", [{"backbone": []}, {"backbone": "no_such"}, {"seed": 2**70}, {"seed": -1}, {"seed": "1"}]
)
def test_settings_that_make_no_sense_are_passed_over(claim, pictures):
    plain = sources.images({"data": str(pictures)}, None).data
    assert sources.images({"data": str(pictures), **claim}, None).data.val.labels.tolist() == plain.val.labels.tolist()
