"""Reports by what they say: numbers that can be counted, maps that are there, nothing fetched, nothing run."""

import json
import re
from html.parser import HTMLParser
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
from codanet.data import load_data
from codanet.data.pictures import Pictures
from codanet.evaluation import Row, evaluate
from codanet.evaluation.models import model_digest
from codanet.models.network import Layer
from codanet.report import _images_of, _model, report, sources
from codanet.report.beside import beside, four, shares, strongest, usual
from codanet.report.findings import find, wilson
from codanet.report.sections import facts, figures, measurements, table
from colours import colour_model

COLOURS = {"red": (230, 20, 20), "green": (20, 230, 20), "blue": (20, 20, 230)}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Plain colours in three folders, 10 each; one blue picture lies among the red ones."""
    folder = tmp_path_factory.mktemp("pictures")
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


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CODANET_DATA", str(tmp_path / "cache"))


def test_images_in_the_home_of_a_user_are_found(pictures, monkeypatch):
    """As training found them, whose settings keep the words they were given: data: ~/pictures."""
    monkeypatch.setenv("HOME", str(pictures.parent))
    there = sources.images({"data": f"~/{pictures.name}"}, None)
    assert there.data is not None
    assert there.data.classes == ("blue", "green", "red")
    found = sources.images({"data": "mnist", "root": f"~/{pictures.name}"}, None)
    assert "cannot be read" in found.missing  # it was looked for there


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


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory, pictures) -> Path:
    folder = tmp_path_factory.mktemp("evaluation")
    model, _, _ = model_of(pictures)
    codanet.save(model, folder / "colours.safetensors")
    evaluate(
        [str(folder / "colours.safetensors")],
        pictures,
        ["contributions", "ixg"],
        ["accuracy", "localisation", "completeness"],
        folder / "results",
        grids=2,
        grid_size=1,
        images=6,
        quiet=True,
    )
    return folder / "results"


def test_an_evaluation_becomes_a_page(evaluation, tmp_path):
    page = Page(report(evaluation, tmp_path / "why.html", quiet=True))
    harmless(page)
    assert "evaluation" in page.plain
    assert "Accuracy ↑ colours 0.9667" in page.plain
    assert "CoDA" in page.plain
    assert "IxG" in page.plain
    assert "Completeness error ↓" in page.plain
    assert "share of the split's images that are classified correctly" in page.plain
    assert "Sure and wrong of colours" in page.plain
    assert "Plots" in page.plain
    assert "digest" in page.plain


def test_an_evaluation_is_reported_at_the_size_that_it_was_made_at(pictures, tmp_path):
    model, _, _ = model_of(pictures)
    evaluate({"colours": model}, pictures, ["contributions"], ["accuracy"], tmp_path, image_size=24, quiet=True)
    provenance = json.loads((tmp_path / "results.json").read_text())["provenance"]
    data = _images_of(model, provenance, None).data
    assert data is not None
    assert data.image_size == (24, 24)


def test_an_evaluation_on_another_set_does_not_look_for_it_where_the_training_was(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("CODANET_DATA", str(tmp_path / "cache"))
    model, _, settings = model_of(pictures)
    model.provenance["settings"] = {**settings, "data": "mnist", "root": str(tmp_path)}
    there = _images_of(model, {"data": {"name": "cifar10", "checksum": "x"}}, None)
    assert there.missing == "The images of cifar10 are not on this machine"


def test_what_an_evaluation_has_lost(evaluation, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    results = json.loads((evaluation / "results.json").read_text())
    results["provenance"]["models"] = {
        "gone": {"file": "nowhere.safetensors", "digest": "x"},
        "memory": {"digest": "x"},
        "other": {**results["provenance"]["models"]["colours"], "digest": "x"},
    }
    results["rows"][0]["model"] = "<script>alert(1)</script>"
    results["remarks"] = ["<img src=x onerror=alert(1)>"]
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "localisation.png").write_bytes(b"<svg onload=alert(1)>")
    page = Page(report(folder, quiet=True))
    harmless(page)
    assert "gone: its weights are not on this machine" in page.plain
    assert "memory: it was not read from a file" in page.plain
    assert "other: its weights have changed since" in page.plain
    assert "Localisation is no PNG and is left out" in page.plain
    assert "<script>alert(1)</script>" in page.plain


def test_a_shipped_model_is_found_by_its_name(tmp_path):
    digest = model_digest(codanet.load("cifar10"))
    assert _model({"file": "cifar10", "digest": digest}, tmp_path)[0] is not None
    assert _model({"file": "cifar10", "digest": "0" * 64}, tmp_path) == (None, "its weights have changed since")


def test_the_best_is_marked_where_there_is_one():
    """The sanity check is passed or failed: the lowest correlation of several is no prize."""
    rows = [
        Row("localisation", "m", "contributions", 0.9),
        Row("localisation", "m", "grad", 0.4),
        Row("sanity", "m", "contributions", 0.1, higher_is_better=False),
        Row("sanity", "m", "grad", 0.3, higher_is_better=False),
        Row("accuracy", "m", "", 0.9),
    ]
    assert re.findall(r"<td class='word'>([^<]*★)</td>", measurements(rows)) == ["CoDA ★"]
    one = [Row("localisation", "m", "contributions", 0.9), Row("localisation", "other", "contributions", 0.8)]
    assert "★" not in measurements(one)
    equal = [Row("difull", "m", name, mean) for name, mean in (("contributions", 1.0), ("ixg", 1.0), ("gradcam", 0.9))]
    assert re.findall(r"<td class='word'>([^<]*★)</td>", measurements(equal)) == ["CoDA ★", "IxG ★"]


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
    with pytest.raises(ValueError, match="is a file"):
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


FOUR = {"black": (15, 15, 15), "blue": (15, 15, 225), "green": (15, 225, 15), "red": (225, 15, 15)}


@pytest.fixture(scope="module")
def four_colours(tmp_path_factory):
    """Pictures of four plain colours, and a network whose every class has its positive pixels in its own quarter."""
    folder = tmp_path_factory.mktemp("four") / "pictures"
    for part in ("train", "val"):
        for name, colour in FOUR.items():
            (folder / part / name).mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (16, 16), tuple(each + number for each in colour)).save(
                    folder / part / name / f"{number}.png"
                )
    model = codanet.CoDANet([Layer(4, 1, kernel_size=1)], image_size=16, temperature=20.0, class_names=tuple(FOUR))
    unlike = torch.tensor([-1.0, -1.0, -1.0, 0.3, 0.3, 0.3])
    weights = torch.tensor([[-0.6, -0.6, 1, 0, 0, 0], [-0.6, 1, -0.6, 0, 0, 0], [1, -0.6, -0.6, 0, 0, 0]])
    with torch.no_grad():
        model.dau_layers[0].B.zero_()
        model.dau_layers[0].A.zero_()
        model.dau_layers[0].A[-1] = torch.cat([unlike[None], weights])
    data = load_data(folder)
    model.provenance = {"settings": {"data": str(folder), "seed": 0}, "data": data.name}
    return model.eval(), data, folder


def test_maps_beside_those_of_other_methods(four_colours):
    model, data, _ = four_colours
    found = find(model, Pictures(data.val), data.classes)
    html = beside(model, found, {"ixg": 0.75, "rise:masks=20": 0.5})
    assert re.findall(r"<b>(\w+)</b> <small>([\w ]+), image \d+", html) == [
        (data.classes[case.said], place)
        for case, place in zip(found.right, ("upper left", "upper right", "lower left", "lower right"), strict=True)
    ]
    alts = re.findall(r"<img src='data:image/png;base64,[^']+' alt='([^']+)'>", html)
    assert alts[0::4] == ["the image"] * 4
    assert alts[1::4] == ["contributions 100%"] * 4
    assert alts[2::4] == ["IxG 100%"] * 4  # for a network with constant weights both are the same
    assert all(re.fullmatch(r"RISE:masks=20 \d+%", alt) for alt in alts[3::4])
    assert "IxG 0.750, RISE:masks=20 0.500" in html


def test_without_a_measurement_two_usual_methods(four_colours):
    model, data, _ = four_colours
    html = beside(model, find(model, Pictures(data.val), data.classes), {})
    assert "localisation was measured here: two well-known" in html
    assert [len(re.findall(f"alt='{name} [0-9]+%'", html)) for name in ("contributions", "GradCAM", "Occ9")] == [4] * 3
    assert usual((64, 64)) == ["gradcam", "occlusion9"]
    assert usual((128, 128)) == ["gradcam", "occlusion9:stride=4"]
    assert usual((448, 448)) == ["gradcam", "occlusion9:stride=9"]


def test_methods_that_fail_are_said(four_colours):
    model, data, _ = four_colours
    found = find(model, Pictures(data.val), data.classes)
    html = beside(model, found, {"occlusion9:window=<b>99": 0.9, "rise:masks=[": 0.8})
    assert html.count("is left out") == 2
    assert "<b>99" not in html
    assert "<img" not in html
    html = beside(model, found, {"occlusion9:window=99": 0.9, "ixg": 0.8})
    assert "Occ9:window=99 is left out: a window of 99 does not fit" in html
    assert html.count("<img") == 4 * 3


def test_no_multi_image_of_three_classes(pictures):
    model, data, _ = model_of(pictures)
    found = find(model, Pictures(data.val), data.classes)
    assert len(found.right) == 3
    assert four(found) == four(None) == []
    assert beside(model, found, {"ixg": 0.5}) == beside(model, None, {}) == ""


def test_no_multi_image_of_another_network(four_colours):
    model, data, _ = four_colours
    found = find(model, Pictures(data.val), data.classes)
    assert len(four(found)) == 4
    assert beside(torch.nn.Flatten(), found, {}) == ""


def test_the_strongest_methods_were_measured():
    means = {"contributions": 0.9, "ixg": 0.2, "occlusion9:stride=4": 0.6, "gradcam": 0.4, "mine": 0.8, "rise": None}
    rows = [{"metric": "localisation", "model": "a", "method": name, "mean": mean} for name, mean in means.items()]
    rows += [
        {"metric": "localisation", "model": "b", "method": "grad", "mean": 0.95},
        {"metric": "removal", "model": "a", "method": "lime", "mean": 0.95},
        {"metric": "localisation", "model": "a", "method": "deeplift", "mean": float("nan")},
    ]
    assert list(strongest(rows, "a").items()) == [("occlusion9:stride=4", 0.6), ("gradcam", 0.4)]
    assert strongest(rows, "b") == {"grad": 0.95}
    assert strongest(rows, "c") == strongest([{}], "a") == {}


def test_shares_of_any_map():
    maps = torch.zeros(4, 6, 8)
    maps[0, :3, :4] = 1  # all of it in the right quarter
    maps[1] = 2.5  # evenly spread
    maps[2] = -1  # nothing positive
    maps[3, 0, 0] = torch.nan
    assert shares(maps) == ["100%", "25%", "0%", "none"]
    assert shares(torch.zeros(4, 6, 8)) == ["0%"] * 4


def test_an_evaluation_chooses_what_stands_beside(four_colours, tmp_path):
    model, _, folder = four_colours
    codanet.save(model, tmp_path / "colours.safetensors")
    chosen = ["contributions", "grad", "ixg", "random"]
    file, results = str(tmp_path / "colours.safetensors"), tmp_path / "results"
    evaluate([file], folder, chosen, ["localisation"], results, grids=2, grid_size=2, quiet=True)
    measured = json.loads((results / "results.json").read_text())
    for means in ({"grad": 0.1, "ixg": 0.2, "random": 0.3}, {"grad": 0.6, "ixg": 0.5, "random": 0.3}):
        for row in measured["rows"]:
            row["mean"] = means.get(row["method"], row["mean"])
        (results / "results.json").write_text(json.dumps(measured))
        page = Page(report(results, quiet=True))
        harmless(page)
        assert "Beside other methods on colours" in page.plain
        best = sorted(means, key=means.get)[-2:]
        shown = {"grad": "Grad", "ixg": "IxG", "random": "Random"}
        for name, title in shown.items():
            assert len(re.findall(f"alt='{title} [0-9]+%'", page.text)) == (4 if name in best else 0)


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
