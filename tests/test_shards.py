"""Explanations of many pictures as Parquet: what is in them, stopped and taken up again, shared out."""

import errno
import json
import os
import signal
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import codanet
from codanet._support.crew import Place
from codanet.cli import main
from codanet.models.hybrid import HybridNet, head_layers
from codanet.plot import shards
from codanet.plot.shards import explain_into
from processes import Forked

pq = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model's file and 25 pictures, one of them damaged."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("made")
    model = codanet.create_model("nano_coda", num_classes=3, class_names=("ant", "bee", "cat"))
    weights = codanet.save(model, folder / "model.safetensors")
    (folder / "pictures").mkdir()
    rng = np.random.default_rng(0)
    for number in range(25):
        pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / f"{number:02d}.png")
    (folder / "pictures" / "07.png").write_bytes(b"no picture")
    return weights, folder / "pictures"


def table(folder):
    return pd.read_parquet(folder).sort_values(["picture", "number"]).reset_index(drop=True)


def test_rows_are_what_the_model_says(made, tmp_path, capsys):
    weights, pictures = made
    words = ["explain", str(weights), str(pictures), "--parquet", "-o", str(tmp_path / "maps"), "--top", "2"]
    assert main(words) == 1  # a picture cannot be read
    answer = capsys.readouterr()
    assert "25 pictures, 49 rows in 1 files" in answer.out
    assert "1 of 25 pictures could not be read" in answer.err
    found, model = table(tmp_path / "maps"), codanet.load(weights)
    assert found["error"].notna().sum() == 1
    assert "07.png" in found.loc[found["error"].notna(), "path"].item()
    row = found[found["picture"] == 3].iloc[0]
    why = model.explain(codanet.read_image(row["path"], model)[None], row["class"])
    assert row["class"] == model.class_names[int(row["number"])]
    assert row["logit"] == pytest.approx(why.target_logits.item(), abs=1e-6)
    assert row["probability"] == pytest.approx(why.target_logits.sigmoid().item(), abs=1e-6)
    np.testing.assert_allclose(row["map"].astype(float), why.pixels.flatten().numpy(), rtol=1e-3, atol=1e-6)
    assert row["map"].astype(float).sum() + model.logit_bias == pytest.approx(row["logit"], abs=1e-2)
    manifest = json.loads((tmp_path / "maps" / "_manifest.json").read_text())
    assert (manifest["pictures"], manifest["rows"], manifest["failed"], manifest["complete"]) == (25, 49, 1, True)
    schema = pq.read_schema(tmp_path / "maps" / "maps-00000.parquet").metadata
    assert (schema[b"height"], schema[b"width"]) == (b"8", b"8")


def test_maps_as_pictures_or_none(made, tmp_path):
    weights, pictures = made
    model, paths = codanet.load(weights), sorted(pictures.iterdir())[:3]
    explain_into(model, paths, tmp_path / "png", targets=["bee"], maps="png", quiet=True)
    row = table(tmp_path / "png").iloc[0]
    assert Image.open(BytesIO(row["map"])).size == (8, 8)
    assert set(table(tmp_path / "png")["class"]) == {"bee"}
    explain_into(model, paths, tmp_path / "none", maps="none", quiet=True)
    assert "map" not in table(tmp_path / "none")


def test_what_is_there_is_not_made_again_and_other_settings_are_refused(made, tmp_path, monkeypatch):
    weights, pictures = made
    model, paths = codanet.load(weights), sorted(pictures.iterdir())
    whole = explain_into(model, paths, tmp_path / "whole", shard=4, quiet=True)
    assert (whole.shards, whole.rows) == (7, 25)
    stopped, write, calls = tmp_path / "stopped", shards._write, []

    def until(path, *given):
        calls.append(path.name)
        if len(calls) == 4:
            raise KeyboardInterrupt
        if len(calls) == 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, *given)

    monkeypatch.setattr(shards, "_write", until)
    with pytest.raises(KeyboardInterrupt):
        explain_into(model, paths, stopped, shard=4, quiet=True)
    assert not (stopped / "_manifest.json").exists()
    with pytest.raises(ValueError, match="No space left on device.*run the same command again"):
        explain_into(model, paths, stopped, shard=4, quiet=True)
    explain_into(model, paths, stopped, shard=4, quiet=True)
    assert len(calls) == 9  # seven shards, two of them begun twice
    assert table(stopped).drop(columns="map").equals(table(tmp_path / "whole").drop(columns="map"))
    with pytest.raises(ValueError, match="holds explanations with maps 'float16' instead of 'png'"):
        explain_into(model, paths, stopped, shard=4, maps="png", quiet=True)
    with pytest.raises(ValueError, match="pictures 25 instead of 24"):
        explain_into(model, paths[1:], stopped, shard=4, quiet=True)
    (stopped / "maps-00002.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="maps-00002.parquet is damaged"):
        explain_into(model, paths, stopped, shard=4, quiet=True)


def test_shards_that_do_not_say_what_they_are(made, tmp_path):
    weights, pictures = made
    model, paths = codanet.load(weights), sorted(pictures.iterdir())[:3]
    explain_into(model, paths, tmp_path, targets=["bee"], quiet=True)
    (tmp_path / "_settings.json").unlink()
    with pytest.raises(ValueError, match="holds maps-.*.parquet without _settings.json"):
        explain_into(model, paths, tmp_path, targets=["ant"], quiet=True)
    assert set(table(tmp_path)["class"]) == {"bee"}


def test_a_shard_with_damaged_pages_is_named(made, tmp_path):
    weights, pictures = made
    model, paths = codanet.load(weights), sorted(pictures.iterdir())[:3]
    explain_into(model, paths, tmp_path, quiet=True)
    path = tmp_path / "maps-00000.parquet"
    group = pq.ParquetFile(path).metadata.row_group(0)
    place = {group.column(i).path_in_schema: group.column(i).data_page_offset for i in range(group.num_columns)}
    content = bytearray(path.read_bytes())
    content[place["error"] : place["error"] + 16] = b"\xff" * 16
    path.write_bytes(content)
    with pytest.raises(ValueError, match="maps-00000.parquet is damaged or gone"):
        explain_into(model, paths, tmp_path, quiet=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"top": 0}, "top is 0: it must be a whole number, 1 or more"),
        ({"top": 4}, "top is 4: it must be a whole number, at most 3"),
        ({"shard": 0}, "shard is 0: it must be a whole number, 1 or more"),
        ({"targets": ["cow"]}, "unknown class 'cow'"),
    ],
)
def test_settings_are_checked_before_a_folder_is_made(made, options, words, tmp_path):
    weights, pictures = made
    with pytest.raises(ValueError, match=words):
        explain_into(codanet.load(weights), [pictures / "01.png"], tmp_path / "maps", quiet=True, **options)
    assert not (tmp_path / "maps").exists()


def test_the_first_process_tells_how_far_all_of_them_are(made, tmp_path, monkeypatch, capsys):
    """Without a terminal, a line for every tenth: what another has written meanwhile is counted at once."""
    weights, pictures = made
    model, paths = codanet.load(weights), sorted(pictures.iterdir())
    whole = explain_into(model, paths, tmp_path / "whole", shard=2, quiet=True)
    write, written = shards._write, []

    def and_another(path, *rest):
        write(path, *rest)
        written.append(path)
        if len(written) == 2:  # another process brings half of them
            for number in range(4, 10):
                (tmp_path / "whole" / f"maps-{number:05d}.parquet").rename(path.parent / f"maps-{number:05d}.parquet")

    monkeypatch.setattr(shards, "_write", and_another)
    capsys.readouterr()
    assert explain_into(model, paths, tmp_path / "own", shard=2).rows == whole.rows
    lines = [line for line in capsys.readouterr().err.splitlines() if "explaining" in line]
    assert lines == [f"codanet: explaining: {number} of 25 pictures" for number in (16, 18, 20, 24)]
    assert len(written) == 7


def test_a_second_process_does_what_the_first_has_left(made, tmp_path):
    """Killed while it works, by a signal that nothing can catch."""
    weights, pictures = made
    model, paths = codanet.load(weights), sorted(pictures.iterdir())
    code = (
        "import sys, time; from pathlib import Path; import codanet; from codanet.plot import shards\n"
        "from codanet._support.crew import Place\n"
        "write = shards._write\n"
        "def slow(path, *given):\n"
        "    write(path, *given); print(path.name, flush=True); time.sleep(0.5)\n"
        "shards._write = slow\n"
        "paths = sorted(Path(sys.argv[2]).iterdir())\n"
        "shards.explain_into(codanet.load(sys.argv[1]), paths, Path(sys.argv[3]), shard=2, place=Place(1, 2))"
    )
    other = Forked(code, weights, pictures, tmp_path)
    assert other.first_line() == "maps-00001.parquet\n"  # every second from its rank on
    time.sleep(0.2)
    other.send_signal(signal.SIGKILL)
    other.communicate()
    found = explain_into(model, paths, tmp_path, shard=2, place=Place(0, 2), quiet=True)
    assert (found.shards, found.rows, found.complete) == (13, 25, True)
    assert table(tmp_path)["picture"].tolist() == list(range(25))
    assert not list(tmp_path.glob(".codanet-*.part"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "--parquet was given without --output"),
        (["-o", "maps.png"], "is not a folder"),
        (["-o", "maps", "--layers"], "leave out --layers"),
        (["-o", "maps", "--maps", "float8"], "float8"),
        (["-o", "maps", "--style", "map"], "leave out --style"),
        (["-o", "maps", "--palette", "red-blue"], "leave out --style, --palette"),
        (["-o", "maps", "--end", "3"], "leave out --style, --palette, --scale, --start and --end"),
    ],
)
def test_mistakes_are_told(made, more, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["explain", str(made[0]), str(made[1]), "--parquet", *more]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--workers", "2"], ["--maps", "png"]])
def test_what_only_a_table_has(made, more, capsys):
    assert main(["explain", str(made[0]), str(made[1]), *more]) == 2
    assert "without --parquet" in capsys.readouterr().err


@pytest.mark.parametrize("maps", ["float16", "png"])
def test_a_hybrid_has_maps_as_large_as_what_it_sees(maps, tmp_path):
    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    backbone = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
    model = HybridNet(backbone, head_layers(3, (4,), 2), image_size=16).eval()
    explain_into(model, [tmp_path / "a.png"], tmp_path / "maps", maps=maps, quiet=True)
    value = table(tmp_path / "maps")["map"][0]
    if maps == "png":
        assert Image.open(BytesIO(value)).size == (16, 16)
    else:
        why = model.explain(codanet.read_image(tmp_path / "a.png", model)[None])
        assert np.array_equal(np.asarray(value), why.pixels.half().flatten().numpy())


def test_an_exported_model_fills_a_table(made, tmp_path):
    pytest.importorskip("onnxruntime")
    assert main(["export", str(made[0]), "-o", str(tmp_path / "m.onnx")]) == 0
    picture = str(made[1] / "01.png")
    assert main(["explain", str(tmp_path / "m.onnx"), picture, "--parquet", "-o", str(tmp_path / "maps")]) == 0
    assert table(tmp_path / "maps")["class"][0] in ("ant", "bee", "cat")


def test_names_that_are_no_utf8(made, tmp_path, capsys):
    """Python reads their other bytes as surrogates, which a table of UTF-8 cannot hold."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    content = (made[1] / "01.png").read_bytes()
    for name, bytes_ in ((b"caf\xe9.png", content), (b"bad\xff.png", b"no picture"), ("ünï.png".encode(), content)):
        Path(os.fsdecode(os.fsencode(pictures) + b"/" + name)).write_bytes(bytes_)
    assert main(["explain", str(made[0]), str(pictures), "--parquet", "-o", str(tmp_path / "maps")]) == 1
    found = table(tmp_path / "maps")
    assert [Path(path).name for path in found["path"]] == [r"bad\udcff.png", r"caf\udce9.png", "ünï.png"]
    assert r"bad\udcff.png" in found["error"][0]
