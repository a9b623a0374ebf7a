"""Runs that meet each other, a small disk, flipped bits, or an end between two writes."""

import json
import random
import shutil
import signal
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import processes
from codanet.evaluation import evaluate
from codanet.training import train
from codanet.training.checkpoint import SETTINGS_KEY, Damaged, read_checkpoint
from codanet.training.run_files import BEST, LAST, MODEL
from processes import COMMAND, Forked

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"epochs": 2, "batch_size": 128, "threads": 1, "quiet": True}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train("digits", folder, **SMALL)
    return folder


def test_one_run_one_process(tmp_path):
    """Two at once in a folder: one of them is refused, and the other's run is its own."""
    words = ("train", "digits", "--epochs", 2, "--batch-size", 128, "--threads", 1)
    runs = [Forked(COMMAND, *words, "--output", tmp_path / "run", "--seed", seed) for seed in (0, 1)]
    errors = [run.communicate()[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 2], errors
    won = next(seed for seed, run in enumerate(runs) if run.returncode == 0)
    assert f"is in use by process {runs[won].pid}" in errors[1 - won] or "holds a run with seed" in errors[1 - won]
    for name in (LAST, BEST):
        assert read_checkpoint(tmp_path / "run" / name)[SETTINGS_KEY]["seed"] == won
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["seed"] == won


def test_a_checkpoint_knows_its_settings(finished, tmp_path):
    """Beside another run's settings it is not taken for that run's."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    described = json.loads((folder / "settings.json").read_text())
    (folder / "settings.json").write_text(json.dumps(described | {"seed": 1}))
    with pytest.raises(ValueError, match="holds a run with seed 0 instead of 1"):
        train("digits", folder, seed=1, **SMALL)
    assert train("digits", folder, **SMALL).epochs == 2


def test_what_is_not_the_runs_own_stays(tmp_path):
    """A folder of features of one's own, logs of earlier times, and an evaluation beside the run."""
    mine, log = tmp_path / "features" / "mine.csv", tmp_path / "logs" / "2" / "metrics.csv"
    for path in (mine, log):
        path.parent.mkdir(parents=True)
        path.write_text("kept")
    train("digits", tmp_path, **SMALL | {"epochs": 1})
    described = (tmp_path / "settings.json").read_text()
    asked = {"images": 2, "points": 3, "quiet": True}
    evaluate([str(tmp_path / MODEL)], "digits", ["grad"], ["removal-least"], tmp_path, **asked)
    assert (tmp_path / "settings.json").read_text() == described
    evaluate([str(tmp_path / MODEL)], "digits", ["grad"], ["removal-least"], tmp_path, **asked)
    assert mine.read_text() == log.read_text() == "kept"


def test_weights_without_the_checkpoint_they_came_from_are_not_written_over(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / LAST).unlink()
    before = {name: (folder / name).read_bytes() for name in (BEST, MODEL)}
    with pytest.raises(ValueError, match=r"holds model.safetensors without last.ckpt"):
        train("digits", folder, seed=1, **SMALL)
    assert {name: (folder / name).read_bytes() for name in (BEST, MODEL)} == before
    (folder / MODEL).unlink()
    with pytest.raises(ValueError, match=r"holds best.ckpt without last.ckpt"):  # of a second epoch, or somebody's
        train("digits", folder, **SMALL)
    assert (folder / BEST).read_bytes() == before[BEST]


@pytest.mark.parametrize("name", [LAST, BEST])
def test_killed_between_two_checkpoints(name, finished, tmp_path):
    """Killed as soon as one of the two is written: the run that goes on ends with the same best and the same last."""
    base = "from codanet.training import train\nimport codanet.training.callbacks as run\nimport os, signal\n"
    script = base + textwrap.dedent(f"""
        real, count = run.save_whole, 0
        def save(trainer, path):
            global count
            real(trainer, path)
            count += path.name == {name!r}
            if count == 2 and path.name == {name!r}:
                os.kill(os.getpid(), signal.SIGKILL)
        run.save_whole = save
        train("digits", {str(tmp_path / "run")!r}, quiet=True, epochs=2, batch_size=128, threads=1)
    """)
    killed = processes.run(script)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    train("digits", tmp_path / "run", **SMALL)
    for file in (LAST, BEST):
        one, other = (read_checkpoint(folder / file) for folder in (tmp_path / "run", finished))
        assert one["epoch"] == other["epoch"]
        assert all(torch.equal(one["state_dict"][key], other["state_dict"][key]) for key in one["state_dict"])


def test_own_checkpoints_count_as_room(finished, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    sizes = [(folder / name).stat().st_size for name in (LAST, BEST)]
    monkeypatch.setattr(
        "codanet.training.preparation.shutil.disk_usage",
        lambda path: SimpleNamespace(free=int(1.5 * max(sizes))),
    )
    assert train("digits", folder, **SMALL).epochs == 2
    with pytest.raises(ValueError, match="MiB free and the run needs"):
        train("digits", tmp_path / "other", **SMALL)


def test_flipped_bits(finished, tmp_path):
    """A checkpoint with one bit turned is refused, or it is the same: no flipped weight is trained on."""
    whole = (finished / LAST).read_bytes()
    expected = read_checkpoint(finished / LAST)["state_dict"]
    draw, refused = random.Random(0), 0
    for _ in range(60):
        place = draw.randrange(len(whole))
        damaged = bytearray(whole)
        damaged[place] ^= 1 << draw.randrange(8)
        path = tmp_path / LAST
        path.write_bytes(damaged)
        try:
            found = read_checkpoint(path)["state_dict"]
        except Damaged:
            refused += 1
        else:  # in the padding between two parts
            assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert refused > 40
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    (folder / LAST).write_bytes(damaged)
    with pytest.raises(ValueError, match="holds a run that cannot be read .*has changed since it was written"):
        train("digits", folder, **SMALL)
    (folder / MODEL).unlink()
    with pytest.raises(ValueError, match="has changed since it was written"):
        train("digits", tmp_path / "next", start=str(folder), **SMALL)


def test_what_an_earlier_end_left_is_removed(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    for name in (".last.ckpt.part", ".best.ckpt.part"):
        (folder / name).write_bytes(b"half")
    before = load_file(folder / MODEL)
    train("digits", folder, **SMALL)
    assert not list(folder.glob(".*"))
    assert all(torch.equal(value, before[key]) for key, value in load_file(folder / MODEL).items())
