"""An evaluation from end to end: planted answers, stopped and taken up again, wrong input, the command line."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from codanet.cli import main
from codanet.cli.evaluate import _print
from codanet.evaluation import Results, Row, evaluate, measurement
from codanet.evaluation.records import LINES
from codanet.metrics import METRICS, Metric, Scores, register_metric
from codanet.models.network import CoDANet, Layer
from colours import Colours
from colours import own_channel as own
from evaluations import CLASSES, Stopping, content, flat, other, planted

pytestmark = pytest.mark.usefixtures("one_thread")


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
    behind = results.row("colours", "flat", "localisation")
    assert (behind.from_best, behind.from_best_low, behind.from_best_high) == pytest.approx((-8 / 9,) * 3)
    assert math.isnan(results.row("colours", "own", "localisation").from_best)  # it is the best
    assert results.row("colours", "flat", "deletion").from_best > 0  # lower is better there
    with pytest.raises(ValueError, match="it was not measured"):
        results.row("colours", "own", "sanity")
    table = (tmp_path / "table.md").read_text()
    assert "90 in 10 grids" in table
    assert "| -0.889 (-0.889 – -0.889) |" in table
    assert "from best: the difference from the best method's mean over the same samples" in table
    assert "constant map: its pixels are ordered at random" in table
    assert "The boxes cover 0.250" in table
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["provenance"]["data"] == {"name": "planted", "checksum": "0" * 64, "images": 120}
    assert found["provenance"]["settings"]["seed"] == 0
    assert len(found["rows"]) == len(results.rows) == 15
    for name in ("localisation", "removal", "insertion"):
        assert content(tmp_path / f"{name}.png").std() > 5


def test_a_narrow_terminal_cuts_no_number(monkeypatch, tmp_path, capsys):
    best = Row("localisation", "m", "contributions", 0.9312, 0.925, 0.937, 2250, 250, seconds_per_map=0.00213)
    other = replace(best, method="gradcam", mean=0.5312, from_best=-0.4, from_best_low=-0.411, from_best_high=-0.389)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")  # of 80 columns
    _print(Results(tmp_path, (best, other), {}, {}))
    lines = capsys.readouterr().out
    assert "…" not in lines
    assert {"0.9312", "0.5312", "0.925", "2.13", "-0.400", "-0.389)"} <= set(lines.split())


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


def test_completeness_in_image_space_is_relative_to_black(digits, tmp_path):
    methods = ["intgrad:steps=60", "intgrad:steps=60:space=image"]
    results = evaluate([str(digits)], "digits", methods, ["completeness"], tmp_path / "out", images=10, quiet=True)
    assert all(scores.mean < 1e-3 for scores in results.scores.values())


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
