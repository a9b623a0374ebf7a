"""Runs that are killed, interrupted, out of room or wrong from the start, and what is left of them."""

import re
import shutil
import signal
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import codanet
import processes
from codanet.data import DataError, load_data
from codanet.training import train
from codanet.training.callbacks import Divergence
from codanet.training.checkpoint import read_checkpoint
from codanet.training.module import Classification
from codanet.training.preparation import LAUNCHED, check
from codanet.training.run_files import LAST
from codanet.training.settings import Settings
from processes import COMMAND, Forked
from striped import RECIPE, same, tensors


def wait_for(path: Path, process: Forked) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_killed_and_resumed_run_ends_the_same(uninterrupted, recipe, tmp_path):
    """kill -9 at any moment after the first epoch; the run that goes on ends with the very same weights."""
    folder = tmp_path / "run"
    with Forked(COMMAND, "train", recipe, "--output", folder) as process:
        wait_for(folder / LAST, process)
        process.send_signal(signal.SIGKILL)
    assert not (folder / "model.safetensors").exists()
    epoch = torch.load(folder / LAST, weights_only=True)["epoch"]
    assert 0 <= epoch < 3
    result = processes.codanet("train", recipe, "--output", folder)
    assert result.returncode == 0, result.stderr
    assert f"epoch {epoch + 2}/4" in result.stderr
    assert f"epoch {epoch + 1}/4" not in result.stderr
    assert same(tensors(uninterrupted), tensors(folder))
    assert sorted(path.name for path in (folder / "logs").iterdir()) == ["1", "2"]  # no log was overwritten


@pytest.mark.parametrize("moment", ["half-written", "written"])
def test_killed_while_saving(moment, uninterrupted, recipe, tmp_path):
    """The second checkpoint is cut off by SIGKILL: the first one loads and the run goes on from it."""
    folder = tmp_path / "run"
    script = f"""
        import os, signal, torch
        import lightning.fabric.utilities.cloud_io as io
        from codanet.training import train
        import codanet.training.callbacks as run
        real, count = run.save_whole, 0
        def save(trainer, path):
            global count
            count += path.name == "last.ckpt"
            if count == 2:
                trainer.save_checkpoint(path.with_name("." + path.name + ".part"), weights_only=False)
                if {moment == "half-written"}:
                    os.truncate(path.with_name("." + path.name + ".part"), 5000)
                os.kill(os.getpid(), signal.SIGKILL)
            real(trainer, path)
        run.save_whole = save
        train({str(recipe)!r}, {str(folder)!r}, quiet=True)
    """
    killed = processes.run(textwrap.dedent(script))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert torch.load(folder / LAST, weights_only=True)["epoch"] == 0
    train(recipe, folder, quiet=True)
    assert same(tensors(uninterrupted), tensors(folder))
    assert not list(folder.glob(".*"))


def test_checkpoints_are_written_in_their_folder_alone(recipe, tmp_path):
    """Killed while one is written, a run leaves nothing in the system's temporary folder."""
    (tmp_path / "temporary").mkdir()
    killed_while_writing = (
        "import os, pathlib, signal, tempfile\n"
        "import codanet.training.run\n"
        "def cut(fd, replace=os.fsync):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "made = tempfile.mkstemp\n"
        "tempfile.mkstemp = lambda *words, **names: (made(*words, **names), cut(0))[0]\n"
        "os.fsync = cut\n"
    )
    words = ("train", recipe, "--output", tmp_path / "run", "--epochs", 2)
    result = processes.run(killed_while_writing + COMMAND, *words, env={"TMPDIR": str(tmp_path / "temporary")})
    assert result.returncode == -signal.SIGKILL
    assert not list((tmp_path / "temporary").iterdir())
    assert [path.name for path in (tmp_path / "run").glob(".*.part")] == [".best.ckpt.part"]
    assert processes.codanet(*words).returncode == 0
    assert not list((tmp_path / "run").glob(".*"))


def test_interrupt_from_the_keyboard(recipe, tmp_path):
    folder = tmp_path / "run"
    with Forked(COMMAND, "train", recipe, "--output", folder, "--epochs", 2000) as process:
        wait_for(folder / LAST, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "goes on from the last complete epoch" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("where", ["on_train_batch_start", "on_train_batch_end", "on_validation_end", "on_train_end"])
def test_interrupt_that_something_swallows(recipe, tmp_path, where):
    """As a destructor, a callback of C++ or another's `except:` does: the run ends between two batches all the same."""
    swallowing = (
        "import os, signal, time\n"
        "import codanet.training.trainer\n"
        "class Swallowing(codanet.training.trainer.Checkpoints):\n"
        "    pressed = False\n"
        f"    def {where}(self, *_):\n"
        "        if Swallowing.pressed:\n"
        "            return\n"
        "        Swallowing.pressed = True\n"
        "        try:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "            time.sleep(0.01)\n"
        "        except BaseException:\n"
        "            pass\n"
        "codanet.training.trainer.Checkpoints = Swallowing\n"
    )
    words = ("train", recipe, "--output", tmp_path / "run", "--epochs", 2)
    result = processes.run(swallowing + COMMAND, *words)
    assert result.returncode == 130
    assert "goes on from the last complete epoch" in result.stderr
    assert "Traceback" not in result.stderr
    assert processes.codanet(*words).returncode == 0


def test_finished_run_is_not_run_again(uninterrupted, recipe, tmp_path):
    before = (uninterrupted / LAST).stat().st_mtime
    result = train(recipe, uninterrupted, quiet=True)
    assert (uninterrupted / LAST).stat().st_mtime == before
    assert result.accuracy == codanet.load(result.weights).provenance["val_accuracy"]
    with pytest.raises(ValueError, match="holds a run with learning_rate 0.01 instead of 0.1"):
        train(recipe, uninterrupted, quiet=True, learning_rate=0.1)


def test_other_pictures_are_not_taken_for_the_same_run(recipe, pictures, tmp_path):
    copy = tmp_path / "pictures"
    shutil.copytree(pictures, copy)
    train(recipe, tmp_path / "run", quiet=True, data=str(copy), epochs=1)
    (copy / "top" / "0.png").unlink()
    with pytest.raises(ValueError, match="holds a run with data_checksum"):
        train(recipe, tmp_path / "run", quiet=True, data=str(copy), epochs=1)


def test_full_disk(recipe, tmp_path):
    """A limit on file size makes every larger write fail, as a full disk does; the epoch before stays."""
    small_files = (
        "import resource, signal\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    )
    result = processes.run(small_files + COMMAND, "train", recipe, "--output", tmp_path / "run")
    assert result.returncode == 2
    assert "a checkpoint could not be written" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list((tmp_path / "run").glob(".*"))


def test_too_little_room_and_unwritable_folders_are_said_before_training(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("codanet.training.preparation.shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ValueError, match="MiB free and the run needs"):
        train(recipe, tmp_path / "run", quiet=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="cannot be written to"):
        train(recipe, tmp_path / "file" / "run", quiet=True)
    with pytest.raises(ValueError, match="cannot be written to"):
        train(recipe, "/proc/codanet", quiet=True)


def test_loss_that_is_not_a_number(recipe, tmp_path, monkeypatch):
    from codanet.training import loss as objective
    from codanet.training import module as classification

    def poisoned(model, images, labels, *rest, **terms):
        loss, logits = objective.objective(model, images, labels, *rest, **terms)
        return (loss * float("nan") if model.training and counter.pop() == 0 else loss), logits

    counter = list(range(12))  # an epoch has 9 batches: the 12th is in the second
    monkeypatch.setattr(classification, "objective", poisoned)
    with pytest.raises(Divergence, match=r"nan at step 11 \(epoch 2\)"):
        train(recipe, tmp_path / "run", quiet=True)
    kept = torch.load(tmp_path / "run" / LAST, weights_only=True)
    assert kept["epoch"] == 0
    assert all(value.isfinite().all() for value in kept["state_dict"].values())
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_real_divergence(recipe, tmp_path):
    result = processes.codanet("train", recipe, "--output", tmp_path / "run", "--learning-rate", "3e37")
    assert result.returncode == 2
    assert re.search(r"the loss became (nan|inf) at step \d+|weights are not finite", result.stderr)
    assert "Traceback" not in result.stderr


@pytest.fixture(scope="module")
def of_one_epoch(tmp_path_factory, pictures) -> Path:
    folder = tmp_path_factory.mktemp("one-epoch")
    (folder / "recipe.yaml").write_text(f"data: {pictures}\n{RECIPE}")
    train(folder / "recipe.yaml", folder / "run", quiet=True, epochs=1)
    return folder / "run"


@pytest.mark.parametrize("damage", ["empty", "cut", "settings", "no settings"])
def test_damaged_runs_are_refused_in_words(damage, of_one_epoch, recipe, tmp_path):
    shutil.copytree(of_one_epoch, tmp_path / "run")
    last, described = tmp_path / "run" / LAST, tmp_path / "run" / "settings.json"
    if damage == "empty":
        last.write_bytes(b"")
    elif damage == "cut":
        last.write_bytes(last.read_bytes()[:5000])
    elif damage == "settings":
        described.write_text("{")
    else:
        described.unlink()
    with pytest.raises(ValueError, match="holds a run that cannot be read"):
        train(recipe, tmp_path / "run", quiet=True, epochs=1)


def test_what_is_wrong_is_said_before_data_are_fetched(recipe, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("codanet.training.preparation.load_data", lambda *_, **__: pytest.fail("data were fetched"))
    for changes, words in (
        ({"model": "s_codda"}, "did you mean 's_coda'"),
        ({"augmentation": "flips"}, "did you mean 'flip-crop'"),
        ({"rescale": "l3"}, "unknown rescale"),
        ({"temperature": -1}, "temperature is -1"),
    ):
        with pytest.raises(ValueError, match=words):
            train(recipe, tmp_path / "run", quiet=True, **changes)
    with pytest.raises(ValueError, match="lies inside the pictures"):
        train(recipe, pictures / "runs", quiet=True)
    monkeypatch.setenv("HOME", str(pictures.parent))  # a ~ in what Python is told is the user's folder, too
    with pytest.raises(ValueError, match="lies inside the pictures"):
        train(recipe, f"~/{pictures.name}/runs", quiet=True, data=f"~/{pictures.name}")


def test_a_run_may_lie_in_a_folder_called_like_its_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits" / "run").mkdir(parents=True)  # as after the first of two runs
    check(Settings(data="digits"), Path("digits") / "run")


def test_a_damaged_picture_alone_in_its_batch_is_left_out(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("codanet.data.folder.MEMORY_BYTES", 0)
    for name, label in ((name, label) for name in ("train", "val") for label in ("top", "bottom")):
        for number in range(4):
            (tmp_path / name / label).mkdir(parents=True, exist_ok=True)
            shutil.copy(pictures / label / f"{number}.png", tmp_path / name / label)
    damaged = tmp_path / "train" / "top" / "2.png"
    damaged.write_bytes(damaged.read_bytes()[:-200])
    changes = {"model": "nano_coda", "batch_size": 1, "epochs": 1, "workers": 0, "threads": 1, "image_size": 12}
    with pytest.warns(UserWarning, match=r"left out: .*2\.png") as said:
        result = train(tmp_path, tmp_path.with_name("damaged"), quiet=True, **changes)
    assert not any("returned `None`" in str(warning.message) for warning in said)
    assert sorted(result.recall) == ["bottom", "top"]
    assert read_checkpoint(result.folder / LAST)["global_step"] == 8

    module = Classification(codanet.load(result.weights), load_data(tmp_path), Settings())
    nothing = torch.empty(0, 3, 12, 12, dtype=torch.uint8), torch.empty(0, dtype=torch.long)
    module.validation_step(nothing, 0)
    assert module.counts.tolist() == [0, 0, 0]
    with pytest.raises(DataError, match="no picture to validate with"):
        module.on_validation_epoch_end()
    module.trainer = SimpleNamespace(world_size=2)
    with pytest.raises(DataError, match="no readable picture in its batch"):
        module.training_step(nothing, 0)


def test_nodes_that_nobody_started_are_not_waited_for(recipe, tmp_path, monkeypatch):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="2 nodes were asked for, but nothing has started this process as one of"):
        train(recipe, tmp_path / "run", nodes=2, batch_size=8)


def test_an_accelerator_that_is_not_there(recipe, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match=r"1 x gpu cannot be used here \([^.]*\): choose another accelerator"):
        train(recipe, tmp_path / "run", quiet=True, accelerator="gpu")
