"""An evaluation from end to end: planted answers, stopped and taken up again, wrong input, the command line."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from codanet._support.crew import Place, crew_in
from codanet.attribution import Registered, settings_of
from codanet.cli import main
from codanet.data import ImageData, MemorySplit, load_data
from codanet.data.split import FolderSplit
from codanet.evaluation import evaluate, measurement
from codanet.evaluation.published import Published
from codanet.evaluation.records import LINES, Record, Records
from codanet.metrics import METRICS, Metric, Scores, predictions, register_metric
from codanet.models.hybrid import HybridNet, head_layers
from codanet.models.network import CoDANet, Layer
from colours import Colours
from colours import own_channel as own

pytestmark = pytest.mark.usefixtures("one_thread")

CLASSES, SIDE = 10, 8


def flat(model, images, targets):
    return images.new_ones(len(images), *images.shape[2:])


def planted(number=120, boxes=False):
    """Class c is a square of light in channel c."""
    labels = torch.arange(number) % CLASSES
    images = torch.zeros(number, CLASSES, SIDE, SIDE, dtype=torch.uint8)
    light = torch.randint(50, 256, (number, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    images[torch.arange(number), labels, 2:6, 2:6] = light
    box = torch.tensor([[2.0, 2, 5, 5]]).repeat(number, 1) if boxes else None
    split = MemorySplit(images, labels, box)
    return ImageData("planted", tuple("abcdefghij"), split, split, (SIDE, SIDE), CLASSES, "0" * 64)


def content(path):
    return np.asarray(Image.open(path).convert("L"), dtype=float)


def numbers(results):
    """Everything but times."""
    return {
        key: (scores.values.tolist(), scores.notes, {name: each.tolist() for name, each in scores.extras.items()})
        for key, scores in results.scores.items()
    }


ALL = ["accuracy", "localisation", "removal", "insertion", "deletion", "box", "completeness"]


def test_a_planted_answer(tmp_path):
    results = evaluate(
        {"colours": Colours()}, planted(boxes=True), {"own": own, "flat": flat}, ALL, tmp_path, grids=10, images=20
    )
    row = results.row("colours", "own", "localisation")
    assert (row.mean, row.low, row.high, row.n, row.units, row.failed) == (1, 1, 1, 90, 10, 0)
    assert results.row("colours", "flat", "localisation").mean == pytest.approx(1 / 9)
    assert results.row("colours", "", "accuracy").mean == 1
    assert results.row("colours", "", "accuracy").n == 120
    assert results.row("colours", "own", "box").mean == 1
    assert results.row("colours", "flat", "box").mean == pytest.approx(0.25)
    assert results.row("colours", "own", "completeness").mean < 1e-5
    # the least important three quarters are dark: removing a quarter of the pixels changes nothing
    curve = results.scores["colours", "own", "removal-least"].extras["curve"]
    assert torch.allclose(curve, curve[:, :1].expand_as(curve))
    most = results.scores["colours", "own", "removal-most"].extras["curve"]
    assert torch.allclose(most[:, -1], torch.tensor(0.1).double(), atol=1e-6)  # all light gone: ten equal logits
    assert results.row("colours", "own", "deletion").mean < results.row("colours", "flat", "deletion").mean
    assert all(row.seconds_per_map > 0 for row in results.rows if row.method)
    with pytest.raises(ValueError, match="it was not measured"):
        results.row("colours", "own", "sanity")
    table = (tmp_path / "table.md").read_text()
    assert "90 in 10 grids" in table
    assert "constant map: its pixels are ordered at random" in table
    assert "The boxes cover 0.250" in table
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["provenance"]["data"] == {"name": "planted", "checksum": "0" * 64, "images": 120}
    assert found["provenance"]["settings"]["seed"] == 0
    assert len(found["rows"]) == len(results.rows) == 15
    for name in ("localisation", "removal", "insertion"):
        assert content(tmp_path / f"{name}.png").std() > 5


class Stopping:
    """`own`, which counts its calls and fails at one of them."""

    def __init__(self, at=None):
        self.at, self.calls = at, 0

    def __call__(self, model, images, targets):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return own(model, images, targets)


def test_a_stopped_run_goes_on_where_it_stopped(tmp_path):
    def run(folder, method):
        return evaluate(
            {"colours": Colours()}, planted(), {"own": method}, ["localisation", "removal"], folder, grids=10, images=40
        )

    whole = Stopping()
    wanted = run(tmp_path / "whole", whole)
    assert whole.calls == 6
    for at in (1, 3, 4, 6):
        folder = tmp_path / str(at)
        first, second = Stopping(at), Stopping()
        with pytest.raises(KeyboardInterrupt):
            run(folder, first)
        with (folder / LINES).open("ab") as file:
            file.write(b'{"model": "colours", "val')  # killed while writing
        found = run(folder, second)
        assert numbers(found) == numbers(wanted)
        assert first.calls - 1 + second.calls == whole.calls  # nothing is computed twice
    third = Stopping()
    assert numbers(run(folder, third)) == numbers(wanted)
    assert third.calls == 0
    assert [row.mean for row in found.rows] == [row.mean for row in wanted.rows]
    assert [row.low for row in found.rows] == [row.low for row in wanted.rows]


def test_more_may_be_added_but_other_settings_are_refused(tmp_path):
    data, model = planted(), Colours()
    counted = Stopping()
    evaluate({"colours": model}, data, {"own": counted}, ["removal-least"], tmp_path, images=20)
    calls = counted.calls
    more = evaluate(
        {"colours": model, "again": Colours()},
        data,
        {"own": counted, "flat": flat},
        ["removal-least", "accuracy"],
        tmp_path,
        images=20,
    )
    assert counted.calls == 2 * calls  # only for the other model
    assert len(more.rows) == 6
    with pytest.raises(ValueError, match="holds an evaluation with seed 0 instead of 3, images 20 instead of 30"):
        evaluate({"colours": model}, data, {"own": own}, ["removal-least"], tmp_path, images=30, seed=3)
    with pytest.raises(ValueError, match="another model 'colours'"):
        evaluate({"colours": nn.Sequential(model)}, data, {"own": own}, ["removal-least"], tmp_path, images=20)
    lines = (tmp_path / LINES).read_text().splitlines(keepends=True)
    (tmp_path / LINES).write_text("nonsense\n" + "".join(lines))
    with pytest.raises(ValueError, match=r"line 1 of .* is damaged"):
        evaluate({"colours": model}, data, {"own": own}, ["removal-least"], tmp_path, images=20)
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"settings.json is damaged"):
        evaluate({"colours": model}, data, {"own": own}, ["removal-least"], tmp_path, images=20)


def test_what_stands_under_the_name_of_a_function_is_said(tmp_path):
    """Whether a function is the one that was measured before cannot be known; of a registered method it can."""
    grad = Registered(settings_of("grad"))
    asked = {"metrics": ["deletion"], "images": 16, "quiet": True}

    def remarks(methods):
        return evaluate({"m": Colours()}, planted(), methods, output=tmp_path, **asked).remarks

    assert remarks({"mine": own, "grad": grad, "ixg": grad}) == ()
    again = remarks({"mine": flat, "grad": grad, "ixg": grad})
    assert [words.split(" is known by its name alone")[0] for words in again] == ["mine", "ixg"]
    assert len(remarks({"mine": flat, "other": flat})) == 1


def test_failed_samples_are_in_the_table(tmp_path):
    def broken(model, images, targets):
        maps = own(model, images, targets).clone()
        maps[0, 0, 0] = torch.nan
        return maps

    results = evaluate(
        {"m": Colours()}, planted(), {"broken": broken}, ["removal", "localisation", "completeness"], tmp_path,
        grids=4, images=40,
    )  # fmt: skip
    assert results.row("m", "broken", "removal-least").failed == 3  # the first of every chunk
    assert results.row("m", "broken", "localisation").failed == 1
    assert "3 of 40: the map has values that are not finite" in (tmp_path / "table.md").read_text()
    assert not np.isnan(results.row("m", "broken", "removal-least").mean)

    def hopeless(model, images, targets):
        return own(model, images, targets) * torch.nan

    results = evaluate(
        {"m": Colours()}, planted(), {"no": hopeless}, ["removal", "localisation"], tmp_path / "b", grids=4, images=8
    )
    assert results.row("m", "no", "localisation").failed == 36
    assert json.loads((tmp_path / "b" / "results.json").read_text())["rows"][1]["mean"] is None
    assert "none – none" in results.markdown()


def test_a_sanity_check_that_cannot_be_made_is_left_out(tmp_path):
    results = evaluate(
        {"m": Colours()}, planted(), {"own": own}, ["deletion", "sanity"], tmp_path, images=8, quiet=True
    )
    assert [row.metric for row in results.rows] == ["deletion"]
    assert "no layer of this Colours can be re-initialised" in results.remarks[0]


def test_a_metric_of_ones_own_is_one_entry(tmp_path):
    """Registered, it is measured, resumed, tabled and ranked like any other."""

    def share_of_pixels(given):
        values = (given.maps > 0).double().mean((1, 2))
        return Scores("area", values, ("",) * len(values), {"seed": torch.full_like(values, given.seed)})

    def mean_light(given):
        images, _, _ = given.pictures.read(given.indices)
        return Scores("light", images.double().mean((1, 2, 3)), ("",) * len(images))

    try:
        register_metric(
            Metric("area", "Area", False, "share of the pixels that speak for the class", "maps", share_of_pixels)
        )
        register_metric(Metric("light", "Light", True, "mean of the image", "predictions", mean_light, n=None))
        results = evaluate(
            {"m": Colours()}, planted(), {"own": own, "flat": flat}, ["area", "light"], tmp_path, images=20, seed=5
        )
        assert results.row("m", "own", "area").mean == pytest.approx(0.25)  # 4x4 of 8x8
        assert results.row("m", "flat", "area").mean == 1
        assert results.scores["m", "own", "area"].extras["seed"].tolist() == [5] * 20
        assert results.row("m", "", "light").n == 120
        table = (tmp_path / "table.md").read_text()
        assert "| Area ↓ | m | own * |" in table
        assert "Area: share of the pixels that speak for the class." in table
        counted = Stopping()
        again = evaluate({"m": Colours()}, planted(), {"own": counted}, ["area"], tmp_path, images=20, seed=5)
        assert counted.calls == 0
        assert again.row("m", "own", "area") == results.row("m", "own", "area")
    finally:
        METRICS.pop("area", None)
        METRICS.pop("light", None)


def test_a_metric_of_ones_own_may_take_all_grids_and_call_its_scores_anything(tmp_path):
    def cells(given):
        return Scores("another name", torch.ones(4 * len(given.grids)).double(), ("",) * 4 * len(given.grids), unit=4)

    def light(given):
        return Scores("yet another", torch.ones(len(given.indices)).double(), ("",) * len(given.indices))

    try:
        register_metric(Metric("cells", "Cells", True, "one for every cell", "grids", cells, unit="grids", n=None))
        register_metric(Metric("light", "Light", True, "one for every image", "predictions", light, n=None))
        asked = {"metrics": ["cells", "light"], "output": tmp_path, "grid_size": 2, "quiet": True}
        results = evaluate({"m": Colours()}, planted(), {"own": own}, **asked)
        assert (results.row("m", "own", "cells").units, results.remarks) == (30, ())  # of 120 images
        assert results.row("m", "", "light").n == 120
    finally:
        METRICS.pop("cells", None)
        METRICS.pop("light", None)


def test_every_metric_on_grids_has_as_many_as_it_usually_has(tmp_path, monkeypatch):
    """Whichever is named first, and whichever is added to the folder later."""
    monkeypatch.setitem(METRICS, "localisation", replace(METRICS["localisation"], n_elsewhere=7))
    monkeypatch.setitem(METRICS, "difull", replace(METRICS["difull"], n_elsewhere=2))
    model, data = CoDANet([Layer(CLASSES, 2)], image_channels=CLASSES, temperature=0.1).eval(), planted()
    sure = {0: list(range(0, 120, 10)), 1: list(range(1, 120, 10))}
    monkeypatch.setattr(measurement, "confident_images", lambda scores: sure)
    for metrics in (["difull"], ["difull", "localisation"], ["localisation"]):
        results = evaluate({"m": model}, data, ["contributions"], metrics, tmp_path, grid_size=1, quiet=True)
        units = {row.metric: row.units for row in results.rows if row.method}
        assert units == {name: {"difull": 2, "localisation": 7}[name] for name in metrics}


def other(**changes):
    return {"output": "out", "grids": 4, "images": 8, "metrics": ["accuracy"], "methods": {"own": own}, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": ["localization"]}, "unknown metric 'localization': did you mean 'localisation'"),
        ({"methods": ["gradkam"]}, "unknown method 'gradkam': did you mean 'gradcam'"),
        ({"split": "tset"}, "unknown split 'tset': did you mean 'test'"),
        ({"images": 0}, "images is 0: it must be a whole number, 1 or more"),
        ({"images": 2.5}, "images is 2.5: it must be a whole number, 1 or more"),
        ({"grids": True}, "grids is True: it must be a whole number, 1 or more"),
        ({"points": 1}, "points is 1: it must be a whole number, 2 or more"),
        ({"seed": 1.5}, "seed is 1.5: it must be a whole number, 0 or more"),
        ({"seed": 2**70}, "seed is .*: it must be a whole number, at most"),
        ({"metrics": ["removal"], "images": 500}, "500 images are asked for and there are 120"),
        ({"metrics": ["localisation"], "grids": 14}, "14 grids of 3x3 need 126 .* enough for 13 grids"),
        ({"metrics": ["localisation"], "grid_size": 4}, "there are 120 such images of 10 classes"),
        ({"metrics": ["box"]}, "have no boxes"),
        (
            {"methods": ["contributions"], "metrics": ["removal"]},
            "nothing is left to measure: CoDA cannot be used on m",
        ),
        ({"reference": "none.json"}, "none.json is not a file of published figures"),
    ],
)
def test_wrong_requests(changes, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=words):
        evaluate({"m": Colours()}, planted(), quiet=True, **other(**changes))


def test_defaults_take_what_there_is_and_say_so(tmp_path):
    results = evaluate({"m": Colours()}, planted(), {"own": own}, None, tmp_path)
    assert results.row("m", "own", "localisation").units == 13
    assert results.row("m", "own", "removal-least").n == 120
    assert any("enough for 13 grids of 3x3 instead of 250" in remark for remark in results.remarks)
    assert any("120 images are measured instead of 1024" in remark for remark in results.remarks)


def test_images_of_another_size_or_content_are_no_continuation(digits, tmp_path):
    def run(data):
        return evaluate([str(digits)], data, ["contributions"], ["removal"], tmp_path / "out", images=20, quiet=True)

    data = load_data("digits")
    run(data)
    changed = data.val.images.clone()
    changed[-1, 0, 3, 3] += 1
    with pytest.raises(ValueError, match="holds an evaluation with split_digest"):
        run(replace(data, val=MemorySplit(changed, data.val.labels)))
    with pytest.raises(ValueError, match=r"image_size \[8, 8\] instead of \[16, 16\]"):
        run(load_data("digits", size=16))


def test_files_that_changed_are_another_split(tmp_path):
    for name in "ab":
        Image.new("RGB", (8, 8), "red").save(tmp_path / f"{name}.png")
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    split = FolderSplit(paths, torch.tensor([0, 1]), 8)
    before = split.digest()
    assert before == FolderSplit(paths, torch.tensor([0, 1]), 8).digest()
    assert before != FolderSplit(paths, torch.tensor([1, 1]), 8).digest()
    os.utime(paths[1], ns=(1, 1))
    assert before != split.digest()


def test_completeness_in_image_space_is_relative_to_black(digits, tmp_path):
    methods = ["intgrad:steps=60", "intgrad:steps=60:space=image"]
    results = evaluate([str(digits)], "digits", methods, ["completeness"], tmp_path / "out", images=10, quiet=True)
    assert all(scores.mean < 1e-3 for scores in results.scores.values())


def test_a_chunk_of_damaged_files_stops_nothing(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(measurement, "PREDICTIONS", 4)
    monkeypatch.setattr(predictions, "IMAGES_AT_ONCE", 2)
    data, paths = load_data("digits"), []
    for number in range(10):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(data.val.images[number, 0].numpy()).save(paths[-1])
    for path in paths[4:8]:
        path.write_bytes(path.read_bytes()[:20])

    def run(chosen, output):
        split = FolderSplit(chosen, data.val.labels[: len(chosen)], 8, channels=1)
        return evaluate([str(digits)], replace(data, val=split), ["grad"], ["accuracy"], output, quiet=True)

    with pytest.warns(UserWarning, match="left out"):
        results = run(paths, tmp_path / "out")
    (row,) = results.rows
    assert row.n == 6
    assert "4 of 10 images cannot be read" in " ".join(results.remarks)
    with pytest.warns(UserWarning, match="left out"), pytest.raises(ValueError, match="can be read: ask for fewer"):
        run(paths[4:8] * 2, tmp_path / "none")


def test_command_line(digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    reference = {
        "localisation": {
            "T=4": {
                "CoDA": {"mean": 0.625, "q25": 0.5, "median": 0.6, "q75": 0.7},
                "IxG": {"mean": 0.25, "q25": 0.1, "median": 0.2, "q75": 0.4},
            }
        },
        "pixel_removal": {"T=4": {"CoDA": {"curve": [0.9, 0.8, 0.7]}}},
    }
    (tmp_path / "published.json").write_text(json.dumps(reference))
    words = ["evaluate", str(digits), "--data", "digits", "--methods", "contributions,grad,ixg:space=image"]
    words += ["--metrics", "accuracy,localisation,removal,sanity,completeness", "--grids", "5", "--images", "20"]
    words += ["--reference", "published.json"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "Localisation" in out
    assert "evaluations/digits" in out
    folder = tmp_path / "evaluations" / "digits"
    for name in ("localisation", "removal", "sanity"):
        picture = content(folder / f"{name}.png")
        assert picture.std() > 5
        assert min(picture.shape) > 300
    assert len(list(folder.glob("sanity-*-contributions.png"))) == 1
    found = json.loads((folder / "results.json").read_text())
    (model,) = found["provenance"]["models"].values()
    assert model["file"] == str(digits)
    assert len(model["sha256"]) == 64
    assert found["provenance"]["command"].startswith("codanet evaluate ")
    rows = {(row["method"], row["metric"]): row for row in found["rows"]}
    assert rows["", "accuracy"]["n"] == 359
    assert rows["", "accuracy"]["mean"] > 0.6
    assert rows["contributions", "completeness"]["mean"] < 1e-5
    assert rows["contributions", "localisation"]["n"] == 45
    assert rows["contributions", "localisation"]["mean"] > rows["grad", "localisation"]["mean"]
    assert rows["contributions", "localisation"]["published"] == 0.625
    assert rows["grad", "localisation"]["published"] is None
    assert rows["ixg:space=image", "localisation"]["published"] == 0.25
    assert "| 0.6250 |" in (folder / "table.md").read_text()
    assert len(rows["grad", "removal-least"]["curve"]) == 17
    before = (folder / LINES).read_bytes()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == found["rows"]
    assert (folder / LINES).read_bytes() == before  # nothing was measured again


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["evaluate"], "required"),
        (["evaluate", "m.safetensors"], "--data"),
        (["evaluate", "m.safetensors", "--data", "digits"], "m.safetensors"),
        (["evaluate", "m.safetensors", "--data", "digits", "--metric", "box"], "unknown option '--metric'"),
        (["evaluate", "m.safetensors", "--data", "digits", "--grids", "0"], "'0' is not above 0"),
        (["evaluate", "m.safetensors", "--data", "digits", "--methods", "grat"], "did you mean 'grad'"),
    ],
)
def test_mistakes_on_the_command_line(words, answer, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert answer in err
    assert "Traceback" not in err


def test_sure_images_keep_their_order_on_disk(tmp_path):
    """Log-odds that differ by their last bit, of probabilities that are all 1.0 in float32 and some in float64."""
    odds = torch.tensor([20.0, np.nextafter(20.0, 21), 40.0, np.nextafter(40.0, 41), 17.5], dtype=torch.float64)
    assert len(set(odds.sigmoid().float().tolist())) == 1
    number = torch.arange(5)
    scores = predictions.Predictions(number, torch.zeros(5).long(), torch.zeros(5, 2).double(), odds).scores()
    with crew_in(tmp_path, "the test", Place()) as crew:
        Records(crew, {"models": {}}).add([Record("m", "", 0, scores)])
        read = Records(crew, {"models": {}}).scores(("m", "", "accuracy"))
    assert torch.equal(read.extras["log_odds"], odds)
    assert predictions.confident_images(read) == {0: [3, 2, 1, 0, 4]}


@pytest.mark.parametrize(
    "changes",
    [{"mean": "high"}, {"mean": None}, {"q75": "0.6"}, {"q25": [0.1, 0.2]}, {"median": float("nan")}, {"curve": 0.5}],
)
def test_published_figures_that_cannot_be_drawn_are_refused_before_any_work(changes, tmp_path):
    path, entry = tmp_path / "published.json", {"mean": 0.5, "q25": 0.4, "median": 0.5, "q75": 0.6, "curve": [1, 0.9]}
    for given in (entry, {**entry, **changes}):
        path.write_text(json.dumps({kind: {"T=4": {"CoDA": given}} for kind in ("localisation", "pixel_removal")}))
        if given is entry:
            assert Published.read(path).figures["localisation"]["T=4"]["CoDA"] == entry
    with pytest.raises(ValueError, match="published.json is not a file of published figures"):
        Published.read(path)


def test_published_figures_stand_beside_the_methods_that_they_are_of():
    entry = {"mean": 0.5, "q25": 0.4, "median": 0.5, "q75": 0.6}
    published = Published(
        {"localisation": {"T=4": {"Occ5": entry, "Occ9": {**entry, "mean": 0.75}, "GCam": entry}}, "pixel_removal": {}}
    )
    model = CoDANet([Layer(3, 2)], image_size=8, temperature=4)
    means = {
        name: published.mean("localisation", model, name)
        for name in ("occlusion5:window=4:space=image", "occlusion9:window=8", "occlusion5", "occlusion9:space=image")
    }
    assert list(means.values())[:2] == [0.5, 0.75]
    hybrid = HybridNet(nn.Conv2d(3, 8, 3, stride=2, padding=1), head_layers(3, (4,), 2), image_size=16, temperature=4)
    assert np.isnan(published.mean("localisation", hybrid, "occlusion9:window=8"))  # which was not published
    assert all(np.isnan(list(means.values())[2:]))
    for name, mean in (("gradcam", 0.5), ("gradcam:interpolation=nearest", 0.5), ("gradcam:layer=layers.0", np.nan)):
        assert published.mean("localisation", model, name) == pytest.approx(mean, nan_ok=True)
