"""Reports of evaluations."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

import codanet
from codanet.evaluation import Row, evaluate
from codanet.evaluation.models import model_digest
from codanet.evaluation.table import cells
from codanet.report import report
from codanet.report.sections import measurements, metric_words
from codanet.report.sources import images_of_evaluation, measured_model
from reports import Page, coloured_pictures, harmless, model_of


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CODANET_DATA", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    return coloured_pictures(tmp_path_factory.mktemp("pictures"))


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
    data = images_of_evaluation(model, provenance, None).data
    assert data is not None
    assert data.image_size == (24, 24)


def test_an_evaluation_on_another_set_does_not_look_for_it_where_the_training_was(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("CODANET_DATA", str(tmp_path / "cache"))
    model, _, settings = model_of(pictures)
    model.provenance["settings"] = {**settings, "data": "mnist", "root": str(tmp_path)}
    there = images_of_evaluation(model, {"data": {"name": "cifar10", "checksum": "x"}}, None)
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
    assert measured_model({"file": "cifar10", "digest": digest}, tmp_path)[0] is not None
    assert measured_model({"file": "cifar10", "digest": "0" * 64}, tmp_path) == (None, "its weights have changed since")


def test_numbers_beyond_all_floats_are_left_empty():
    row = Row.of({"metric": "localisation", "mean": 10**400, "low": 1, "high": True, "n": 3})
    assert (row.low, row.n) == (1.0, 3)
    assert math.isnan(row.mean)
    assert math.isnan(row.high)


def test_differences_from_the_best_are_shown_and_explained():
    """Small ones as well, as their means are."""
    best = Row("completeness", "m", "contributions", 1e-5, higher_is_better=False)
    other = replace(best, method="ixg", mean=4.5e-5, from_best=3.5e-5, from_best_low=-2e-5, from_best_high=0.05)
    assert [line[-1] for line in cells([best, other])] == ["", "+3.5e-05 (-2.0e-05 – +0.050)"]
    told = metric_words([best, other], [])
    assert "if 0 lies in the interval, these samples do not tell the two apart" in told
    assert "Where less is better (↓), a positive difference is a worse mean" in told
    assert "from best" not in metric_words([best], [])
    assert "ms/map: time per map" in metric_words([replace(best, seconds_per_map=0.1)], [])
    assert "published: the mean" in metric_words([replace(best, published=0.1)], [])


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
