"""Runs that really train: what they leave behind, and that the same settings give the same weights."""

import csv
import functools
import json
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import codanet
import processes
from codanet import Architecture, Layer, register_model
from codanet.data import load_data
from codanet.data.split import held_out
from codanet.training import bfloat16, preparation, train
from codanet.training.bfloat16 import check_bfloat16, has_bfloat16
from codanet.training.loss import objective
from codanet.training.preparation import at_its_precision
from codanet.training.recipe import Recipe, load_recipe
from codanet.training.run_files import BEST, LAST
from codanet.training.schedule import side_at, temperature_at
from codanet.training.settings import Settings
from striped import SETTINGS, same, tensors


def command(*arguments: object) -> subprocess.CompletedProcess:
    """In an interpreter of its own, which Lightning starts again for every further device."""
    words = [sys.executable, "-m", "codanet", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=240)


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


def test_two_processes_give_the_weights_of_one(pictures, tmp_path):
    """The same global batch, split in two (DDP on gloo), gives the same gradients, so the weights of both stages."""
    path = tmp_path / "recipe.yaml"
    then = "then: {epochs: 1, learning_rate: 1e-3}"
    path.write_text(f"data: {pictures}\nepochs: 2\nprecision: 64-true\naccelerator: cpu\n{SETTINGS}\n{then}")
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


def test_sweep_and_precision(pictures, tmp_path):
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


def test_auto_is_bfloat16_where_a_processor_multiplies_in_it(tmp_path, monkeypatch):
    faster, broken, plain = tmp_path / "faster", tmp_path / "broken", tmp_path / "plain"
    faster.write_text("flags : avx2 avx512_bf16")
    broken.write_text("flags : avx2 avx512_bf16 amx_bf16")
    plain.write_text("flags : avx2")
    monkeypatch.setattr(bfloat16, "PRODUCT", f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})")
    assert [has_bfloat16(place) for place in (faster, broken, plain, tmp_path / "none")] == [True, False, False, False]
    for has, precision in ((True, "bf16-mixed"), (False, "32-true")):
        monkeypatch.setattr(preparation, "has_bfloat16", lambda has=has: has)
        for accelerator in ("cpu", "auto"):
            monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
            monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
            assert (
                at_its_precision(Settings(precision="auto", accelerator=accelerator), tmp_path).precision == precision
            )
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        for accelerator in ("gpu", "auto"):
            assert (
                at_its_precision(Settings(precision="auto", accelerator=accelerator), tmp_path).precision == "32-true"
            )
        assert at_its_precision(Settings(precision="64-true"), tmp_path).precision == "64-true"


def test_a_run_goes_on_at_the_precision_of_the_machine_that_began_it(pictures, tmp_path, monkeypatch):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"data: {pictures}\nepochs: 1\nprecision: auto\n{SETTINGS}")
    for has in (False, True):
        monkeypatch.setattr(preparation, "has_bfloat16", lambda has=has: has)
        result = train(path, tmp_path / "run", quiet=True, accelerator="cpu")
        assert result.settings.precision == "32-true"
        assert codanet.load(result.weights).provenance["settings"]["precision"] == "32-true"
    (tmp_path / "run" / "settings.json").write_text('{"precision": 3}')  # by hand: as if nothing were known
    assert at_its_precision(Settings(precision="auto", accelerator="cpu"), tmp_path / "run").precision == "bf16-mixed"


def test_held_out_images_are_looked_at_as_the_weights_will_be_used(pictures, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"data: {pictures}\nepochs: 1\nprecision: bf16-mixed\n{SETTINGS}")
    result = train(path, tmp_path / "run", quiet=True)
    with (tmp_path / "run" / "logs" / "1" / "metrics.csv").open() as file:
        told = [float(line["val_loss"]) for line in csv.DictReader(file) if line.get("val_loss")]
    model, held = codanet.load(result.weights), load_data(str(pictures)).val
    images, labels = held.__getitems__(list(range(len(held))))
    with torch.no_grad():
        loss = {}
        for dtype in (torch.float32, torch.bfloat16):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                loss[dtype] = objective(model, images.float() / 255, labels)[0].item()
    assert told == [pytest.approx(loss[torch.float32], rel=1e-6)]
    assert loss[torch.bfloat16] != pytest.approx(loss[torch.float32], rel=1e-5)


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
    monkeypatch.chdir(pictures.parent)
    for other in (
        {"seed": 1},
        {"holdout": 6},
        {"seed": 1, "data": pictures.name},
    ):  # learnt from before
        with pytest.raises(ValueError, match=r"was trained with seed 0 and holdout 0.* choose the same"):
            train(pictures, tmp_path / "other", quiet=True, start=str(second.folder), **settings, **other)
    with pytest.raises(ValueError, match="holds neither"):
        train(pictures, tmp_path / "fifth", quiet=True, start=str(tmp_path), **settings)
    with pytest.raises(ValueError, match="does not fit"):
        train(
            pictures, tmp_path / "sixth", quiet=True, start=str(second.weights), **settings | {"model": "s_coda_r1_8"}
        )


TWO = """
data: {data}
model: nano_coda
image_size: 12
temperature: 16
batch_size: 24
threads: 1
maps_every: 9
epochs: 2
then: {{epochs: 2, learning_rate: 1e-3, schedule: decay, wrong_contributions: 0.1,
  removal_error: 0.05, remove_least: 0.5}}
"""


def test_a_recipe_of_two_stages_in_one_go_and_in_pieces(pictures, tmp_path):
    """One command trains both, wherever it was stopped, and leaves the weights that two commands leave."""
    (tmp_path / "two.yaml").write_text(TWO.format(data=pictures))
    recipe = load_recipe(tmp_path / "two.yaml")
    whole = train(recipe, tmp_path / "whole", quiet=True)
    assert whole.weights == tmp_path / "whole" / "model.safetensors"
    told = codanet.load(whole.weights).provenance
    assert [stage["epochs"] for stage in told["stages"]] == [2, 2]
    assert (whole.epochs, whole.hours) == (4, told["hours"])
    (_, before), (_, after) = recipe.stages(tmp_path / "apart")
    one = train(Recipe("two", before), tmp_path / "apart" / "stage-1", quiet=True)
    two = train(Recipe("two", after), tmp_path / "apart", quiet=True)
    expected, apart = load_file(whole.weights), load_file(two.weights)
    assert all(torch.equal(expected[key], apart[key]) for key in expected)
    start = load_file(one.weights)
    assert not all(torch.equal(expected[key], start[key]) for key in expected)

    assert train(recipe, tmp_path / "seeded", quiet=True, seed=1, epochs=1).settings.seed == 1  # in both stages

    resumed = tmp_path / "elsewhere"
    shutil.copytree(one.folder, resumed / "stage-1")  # killed between the stages, and moved
    again = load_file(train(recipe, resumed, quiet=True).weights)
    assert all(torch.equal(expected[key], again[key]) for key in expected)
    shutil.rmtree(resumed / "stage-1")  # the second stage needs the first no longer
    again = load_file(train(recipe, resumed, quiet=True).weights)
    assert all(torch.equal(expected[key], again[key]) for key in expected)
    assert not (resumed / "stage-1").exists()


@pytest.mark.parametrize("term", ["wrong_evidence", "wrong_contributions", "removal_error", "regularisation"])
def test_every_term_of_the_loss_is_learnt_from(term, pictures, tmp_path):
    settings = {"epochs": 1, "model": "nano_coda", "image_size": 12, "temperature": 1, "threads": 1, "batch_size": 24}
    plain = load_file(train(pictures, tmp_path / "plain", quiet=True, **settings).weights)
    other = load_file(train(pictures, tmp_path / "other", quiet=True, **settings, **{term: 1.0}).weights)
    assert not all(torch.equal(plain[key], other[key]) for key in plain)


def test_every_term_of_the_loss_has_its_own_weight(pictures, tmp_path, monkeypatch):
    weights = {"wrong_evidence": 0.1, "wrong_contributions": 0.2, "removal_error": 0.3, "regularisation": 0.4}
    given = []

    def watched(model, images, labels, **more):
        if model.training:
            given.append({name: more[name] for name in weights})
        return objective(model, images, labels, **more)

    monkeypatch.setattr("codanet.training.module.objective", watched)
    settings = {"epochs": 1, "model": "nano_coda", "image_size": 12, "threads": 1, "batch_size": 24}
    train(pictures, tmp_path / "run", quiet=True, **settings, **weights)
    assert given == [weights] * 3


def test_what_was_learnt_from_is_not_held_out_of_a_folder_that_has_grown(pictures, tmp_path):
    """With one picture more another fifth is drawn, by the same seed."""
    place = shutil.copytree(pictures, tmp_path / "pictures")
    settings = {"quiet": True, "epochs": 1, "model": "nano_coda", "image_size": 12, "threads": 1, "batch_size": 24}
    first = train(place, tmp_path / "first", **settings)
    shutil.copy(place / "top" / "0.png", place / "top" / "another.png")
    for finished in (True, False):
        if not finished:
            first.weights.unlink()
        with pytest.raises(ValueError, match=r"are not those that .*first was trained on.* into a folder val"):
            train(place, tmp_path / "second", start=str(first.folder), **settings)


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
