"""Runs that really train, are really killed, and really go on."""

import functools
import json
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import codanet
import processes
from codanet import Architecture, Layer, register_model
from codanet.data import DataError, load_data
from codanet.data.split import held_out
from codanet.training import bfloat16, train
from codanet.training.bfloat16 import check_bfloat16
from codanet.training.callbacks import Divergence
from codanet.training.checkpoint import read_checkpoint
from codanet.training.module import Classification
from codanet.training.run_files import BEST, LAST
from codanet.training.schedule import side_at, temperature_at
from codanet.training.settings import Settings
from processes import COMMAND, Forked

SETTINGS = "model: nano_coda\nimage_size: 12\ntemperature: 16\nbatch_size: 8\nlearning_rate: 1e-2\nthreads: 1\n"
SETTINGS += "maps_every: 3\n"
RECIPE = f"epochs: 4\naugmentation: flip-crop\n{SETTINGS}"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Three classes of 30 noisy 12x12 pictures, told apart by where they are bright; 72 of them to train on."""
    folder = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for label, name in enumerate(("top", "middle", "bottom")):
        (folder / name).mkdir()
        for number in range(30):
            picture = random.integers(0, 90, (12, 12, 3))
            picture[4 * label : 4 * label + 4] += 150
            Image.fromarray(picture.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def recipe(tmp_path, pictures) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"data: {pictures}\n{RECIPE}")
    return path


def command(*arguments: object) -> subprocess.CompletedProcess:
    """In an interpreter of its own, which Lightning starts again for every further device."""
    words = [sys.executable, "-m", "codanet", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=240)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, pictures) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    (folder / "recipe.yaml").write_text(f"data: {pictures}\n{RECIPE}")
    train(folder / "recipe.yaml", folder / "run", quiet=True)
    return folder / "run"


def test_what_a_run_leaves_behind(uninterrupted, pictures):
    model = codanet.load(uninterrupted / "model.safetensors")
    assert model.class_names == ("bottom", "middle", "top")
    assert model.image_size == (12, 12)
    facts = model.provenance
    assert facts["val_accuracy"] > 0.9
    assert facts["epochs"] == 4
    assert facts["seed"] == 0
    assert facts["settings"]["learning_rate"] == 1e-2
    assert len(facts["data_checksum"]) == 64
    assert facts["versions"]["torch"] == torch.__version__
    names = {path.name for path in uninterrupted.iterdir()}
    assert {LAST, BEST, "model.safetensors", "settings.json", "maps", "logs"} <= names
    assert sorted(path.name for path in (uninterrupted / "maps").iterdir()) == ["epoch-003.png", "epoch-004.png"]
    logs = {path.name for path in (uninterrupted / "logs" / "1").iterdir()}
    assert "metrics.csv" in logs
    assert any(name.startswith("events.out.tfevents") for name in logs)
    torch.load(uninterrupted / LAST, weights_only=True)
    image = codanet.read_image(next((pictures / "top").iterdir()), model)
    assert model.explain(image.unsqueeze(0)).class_name(int(model(image.unsqueeze(0)).argmax())) == "top"


def test_same_seed_same_weights_other_seed_other_weights(uninterrupted, recipe, tmp_path):
    state = torch.get_rng_state()
    train(recipe, tmp_path / "again", quiet=True)
    assert torch.equal(state, torch.get_rng_state())
    assert same(tensors(uninterrupted), tensors(tmp_path / "again"))
    train(recipe, tmp_path / "other", quiet=True, seed=1)
    assert not same(tensors(uninterrupted), tensors(tmp_path / "other"))


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
    monkeypatch.setattr(
        "codanet.training.preparation.shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})()
    )
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

    def poisoned(model, images, labels, *rest):
        loss, logits = objective.objective(model, images, labels, *rest)
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


def test_two_processes_give_the_weights_of_one(pictures, tmp_path):
    """The same global batch, split in two (DDP on gloo), gives the same gradients, so the same weights."""
    path = tmp_path / "recipe.yaml"
    path.write_text(f"data: {pictures}\nepochs: 2\nprecision: 64-true\naccelerator: cpu\n{SETTINGS}")
    done = command("train", path, "--output", tmp_path / "two", "--devices", 2, "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    alone = train(path, tmp_path / "one", quiet=True)
    one, two = tensors(tmp_path / "one"), tensors(tmp_path / "two")
    for key in one:
        assert torch.allclose(one[key], two[key], atol=1e-8), key
    assert json.loads(done.stdout.strip().splitlines()[-1])["accuracy"] == alone.accuracy > 0.5
    assert json.loads((tmp_path / "two" / "settings.json").read_text())["devices"] == 2


def test_accumulated_batches_give_the_weights_of_one(pictures, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"data: {pictures}\nepochs: 1\nprecision: 64-true\n{SETTINGS}")
    train(path, tmp_path / "one", quiet=True)
    train(path, tmp_path / "four", quiet=True, accumulate=4)
    one, four = tensors(tmp_path / "one"), tensors(tmp_path / "four")
    for key in one:
        assert torch.allclose(one[key], four[key], atol=1e-8), key


def test_digits_from_the_command_line(tmp_path):
    """The promise of the quickstart: 97% on the held-out digits."""
    result = processes.codanet("train", "digits", "--output", tmp_path, "--json")
    assert result.returncode == 0, result.stderr[-3000:]
    assert json.loads(result.stdout)["accuracy"] >= 0.97
    assert "epoch 12/12" in result.stderr
    assert (tmp_path / "maps" / "epoch-012.png").stat().st_size > 5000


def test_sweep_and_compile_and_precision(pictures, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"data: {pictures}\nepochs: 1\nsweep: {{temperature: [4, 64]}}\n{SETTINGS}")
    train(path, tmp_path / "runs", quiet=True)
    for value in (4, 64):
        assert codanet.load(tmp_path / "runs" / f"temperature={value}" / "model.safetensors").temperature == value
    result = train(path, tmp_path / "low", quiet=True, temperature=8, precision="bf16-mixed", regularisation=0.01)
    assert codanet.load(result.weights).temperature == 8


def test_a_processor_that_does_not_compute_in_bfloat16(pictures, tmp_path, monkeypatch):
    offers, plain = tmp_path / "offers", tmp_path / "plain"
    offers.write_text("flags : avx2 amx_bf16 amx_tile")
    plain.write_text("flags : avx2")
    monkeypatch.setattr(bfloat16, "PRODUCT", "1 + 1")
    check_bfloat16(offers)
    monkeypatch.setattr(bfloat16, "PRODUCT", f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})")
    check_bfloat16(plain)
    with pytest.raises(ValueError, match="a product in bfloat16 ends the process.*ONEDNN_MAX_CPU_ISA"):
        check_bfloat16(offers)


def test_compiled_runs_can_be_taken_up_without_compiling(pictures, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"data: {pictures}\nepochs: 2\n{SETTINGS.replace('nano_coda', 'pair')}")
    pair = Architecture((Layer(6, 2, stride=2), Layer(3, 2, 1)), image_size=12, temperature=16)

    def stop(*_):
        raise KeyboardInterrupt

    from codanet.training.callbacks import Lines

    with register_model("pair", pair), pytest.MonkeyPatch.context() as patch:  # every layer takes seconds to trace
        # traced as ever, but not handed to the C++ compiler, which would take minutes
        patch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
        patch.setattr(Lines, "on_train_epoch_end", stop)
        with pytest.raises(KeyboardInterrupt):
            train(path, tmp_path / "run", compile=True)
        patch.undo()
        assert torch.load(tmp_path / "run" / LAST, weights_only=True)["epoch"] == 0
        assert train(path, tmp_path / "run", quiet=True).epochs == 2


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


def test_an_accelerator_that_is_not_there(recipe, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match="1 x gpu cannot be used here"):
        train(recipe, tmp_path / "run", quiet=True, accelerator="gpu")


def test_growing_pictures_and_a_rising_temperature():
    settings = Settings(grow_from=16, grow_until=0.5, temperature_from=100.0)
    assert [side_at(settings, 32, share) for share in (0, 0.2, 0.26, 0.49, 0.5, 1)] == [16, 16, 24, 24, 32, 32]
    assert side_at(Settings(), 32, 0) == 32
    assert side_at(Settings(grow_from=40), 32, 0) == 32
    assert temperature_at(settings, 1000.0, 0) == pytest.approx(100)
    assert temperature_at(settings, 1000.0, 0.4) == pytest.approx(10**2.5)
    assert temperature_at(settings, 1000.0, 0.9) == pytest.approx(1000)
    assert temperature_at(Settings(), 1000.0, 0) == 1000
    for wrong in (
        {"mosaic": 1.5},
        {"erase": 2},
        {"grow_until": -1},
        {"grow_from": 0},
        {"temperature_from": 0},
        {"optimiser": "mun"},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Settings(**wrong)


@pytest.fixture
def trained_on(monkeypatch):
    """The batches that networks are given in training."""
    seen = []
    forward = codanet.CoDANet.forward

    def watched(self, images):
        if self.training:
            seen.append(images.detach().clone())
        return forward(self, images)

    monkeypatch.setattr(codanet.CoDANet, "forward", watched)
    return seen


def test_muon_growth_mosaics_and_rising_temperature_train(pictures, tmp_path, trained_on):
    changes = {"optimiser": "muon", "learning_rate": 0.05, "mosaic": 0.2, "temperature_from": 4.0}
    result = train(
        pictures, tmp_path / "run", quiet=True, model="nano_coda", image_size=24, batch_size=8, threads=1, grow_from=8,
        temperature=64.0, schedule="one-cycle", epochs=10, maps_every=10, **changes,
    )  # fmt: skip
    sides = [images.shape[2] // (2 if len(images) == 2 else 1) for images in trained_on]
    assert sorted(set(sides)) == [8, 16, 24]
    assert sides == sorted(sides)
    assert {len(images) for images in trained_on} == {2, 8}
    assert result.accuracy > 0.8


def test_erased_pixels_train_and_a_run_from_before_the_setting_goes_on(pictures, tmp_path, trained_on):
    settings = {"model": "nano_coda", "image_size": 12, "batch_size": 24, "threads": 1}
    train(pictures, tmp_path / "erased", quiet=True, epochs=1, erase=0.5, **settings)
    assert all(images.shape[1] == 6 for images in trained_on)
    assert 0.1 < torch.cat([(images == 0).all(1).float().mean((1, 2)) for images in trained_on]).mean() < 0.4

    train(pictures, tmp_path / "old", quiet=True, epochs=1, **settings)
    path = tmp_path / "old" / "settings.json"
    before = json.loads(path.read_text())
    del before["erase"]
    path.write_text(json.dumps(before))
    assert train(pictures, tmp_path / "old", quiet=True, epochs=1, **settings).epochs == 1
    with pytest.raises(ValueError, match=r"erase 0.0 instead of 0.5"):
        train(pictures, tmp_path / "old", quiet=True, epochs=1, erase=0.5, **settings)


def test_stages_add_up(pictures, tmp_path, monkeypatch):
    """A last stage from a finished run, from an unfinished one, and what its provenance says."""
    settings = {"model": "nano_coda", "image_size": 12, "temperature": 16.0, "batch_size": 24, "threads": 1}
    settings["maps_every"] = 3
    first = train(pictures, tmp_path / "first", quiet=True, epochs=2, **settings)
    last = {"schedule": "decay", "learning_rate": 1e-30, "epochs": 1}
    second = train(pictures, tmp_path / "second", quiet=True, start=str(first.folder), **last, **settings)
    told = codanet.load(second.weights).provenance
    assert told["epochs"] == 3
    assert [stage["epochs"] for stage in told["stages"]] == [2, 1]
    assert told["hours"] == pytest.approx(first.hours + second.hours, abs=2e-3)
    before, after = load_file(first.weights), load_file(second.weights)
    assert all(torch.equal(before[key], after[key]) for key in before)  # at that learning rate nothing moves
    (first.folder / "model.safetensors").unlink()  # as if it had been stopped
    third = train(pictures, tmp_path / "third", quiet=True, start=str(first.folder), **last, **settings)
    assert codanet.load(third.weights).provenance["epochs"] == 3
    assert all(torch.equal(before[key], value) for key, value in load_file(third.weights).items())
    monkeypatch.setenv("HOME", str(tmp_path))
    fourth = train(pictures, "~/fourth", quiet=True, start="~/second/model.safetensors", **last, **settings)
    assert fourth.folder == tmp_path / "fourth"
    assert codanet.load(fourth.weights).provenance["epochs"] == 4
    for other in ({"seed": 1}, {"holdout": 6}):  # what they hold out has been learnt from
        with pytest.raises(ValueError, match=r"was trained with seed 0 and holdout 0.* choose the same"):
            train(pictures, tmp_path / "other", quiet=True, start=str(second.folder), **settings, **other)
    with pytest.raises(ValueError, match="holds neither"):
        train(pictures, tmp_path / "fifth", quiet=True, start=str(tmp_path), **settings)
    with pytest.raises(ValueError, match="does not fit"):
        train(
            pictures, tmp_path / "sixth", quiet=True, start=str(second.weights), **settings | {"model": "s_coda_r1_8"}
        )


def test_held_out_training_images_take_the_place_of_the_test_images(tmp_path):
    result = train("digits", tmp_path, quiet=True, epochs=1, batch_size=128, holdout=200)
    provenance = codanet.load(result.weights).provenance
    assert provenance["val_held_out_of_training"] is True
    assert provenance["val_images"] == pytest.approx(200, abs=10)  # the same share of every class, rounded
    whole, part = load_data("digits"), held_out(load_data("digits"), 200, 0)
    assert len(part.train) + len(part.val) == len(whole.train)
    pixels = {bytes(image.numpy().tobytes()) for image in part.train.images}
    assert not any(image.numpy().tobytes() in pixels for image in part.val.images[:50])
    shares = part.val.labels.bincount() / whole.train.labels.bincount()
    assert float(shares.max() - shares.min()) < 0.01
    for number in (-1, len(whole.train)):
        with pytest.raises(ValueError, match="held out|negative"):
            train("digits", tmp_path / "other", quiet=True, holdout=number)
