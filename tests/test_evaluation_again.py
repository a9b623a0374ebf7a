"""Evaluations that were stopped, are asked for more, or find other images than before."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from codanet._support.crew import Place, crew_in
from codanet.attribution import Registered, settings_of
from codanet.data import MemorySplit, load_data
from codanet.data.split import FolderSplit
from codanet.evaluation import evaluate, measurement
from codanet.evaluation.records import LINES, Record, Records
from codanet.metrics import predictions
from colours import Colours
from colours import own_channel as own
from evaluations import Stopping, flat, numbers, planted

pytestmark = pytest.mark.usefixtures("one_thread")


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
    for words in ("{", "[1]", '{"models": [1]}'):
        (tmp_path / "evaluation.json").write_text(words)
        with pytest.raises(ValueError, match=r"evaluation.json is damaged"):
            evaluate({"colours": model}, data, {"own": own}, ["removal-least"], tmp_path, images=20)
    (tmp_path / "evaluation.json").unlink()
    with pytest.raises(ValueError, match="holds records.jsonl without evaluation.json"):
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
