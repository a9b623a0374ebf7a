"""Recipes: their numbers are the paper's, and every one of them builds and takes a step."""

import dataclasses
import itertools
import json

import pytest
import torch

from codanet.cli.train import main
from codanet.data import ImageData, MemorySplit
from codanet.models.zoo import create_model
from codanet.training.loss import objective
from codanet.training.module import Classification
from codanet.training.preparation import untrained
from codanet.training.recipe import Recipe, list_recipes, load_recipe, read_settings
from codanet.training.schedule import learning_rate_factor
from codanet.training.settings import Settings, changed
from networks import MANY, of_kind

CIFAR = {
    "data": "cifar10",
    "epochs": 200,
    "batch_size": 16,
    "learning_rate": 2.5e-4,
    "schedule": "halving",
    "halve_every": 60,
    "warmup_epochs": 0,
}
TINY = {
    "data": "tiny-imagenet",
    "model": "xl_coda",
    "epochs": 100,
    "batch_size": 128,
    "learning_rate": 2.5e-4,
    "schedule": "halving",
    "halve_every": 30,
    "temperature": 6400,
    "regularisation": 0,
    "rescale": "sq",
}
# paper, sec. 4.1, table 1 and C.1
PAPER = {
    "cifar10-s-sq-t": CIFAR | {"model": "s_coda", "rescale": "sq", "temperature": 1000, "regularisation": 0},
    "cifar10-s-l2-t": CIFAR | {"model": "s_coda", "rescale": "l2", "temperature": 1000, "regularisation": 0},
    "cifar10-s-sq-lambda": CIFAR | {"model": "s_coda", "rescale": "sq", "temperature": 64},
    "cifar10-s-l2-lambda": CIFAR | {"model": "s_coda", "rescale": "l2", "temperature": 64},
    "cifar10-m-sq-lambda": CIFAR | {"model": "m_coda", "temperature": 64, "augmentation": "randaugment"},
    "tiny-imagenet-xl": TINY | {"augmentation": "flip-crop"},
    "tiny-imagenet-xl-aug": TINY | {"augmentation": "randaugment"},
    "imagenet100-l": {
        "data": "imagenet100",
        "model": "l_coda",
        "epochs": 60,
        "batch_size": 64,
        "halve_every": 20,
        "warmup_epochs": 15,
        "warmup_from": 2.5e-4,
        "learning_rate": 1e-3,
        "temperature": 1e5,
        "augmentation": "imagenet",
    },
}


@pytest.mark.parametrize("name", PAPER)
def test_numbers_are_the_papers(name):
    settings = dataclasses.asdict(load_recipe(name).settings)
    assert {key: settings[key] for key in PAPER[name]} == PAPER[name]


def test_lambda_recipes_regularise_and_ablations_sweep():
    for name in list_recipes():
        if name.endswith("-lambda") and name.startswith("cifar10"):
            assert load_recipe(name).settings.regularisation > 0
    assert load_recipe("ablation-temperature").sweep == ("temperature", (10, 50, 100, 500, 1000, 5000))
    assert {0.01, 0.05} <= set(load_recipe("ablation-lambda").sweep[1])
    assert load_recipe("ablation-rank").sweep[1] == (
        "s_coda_r1_8",
        "s_coda_r1_4",
        "s_coda_r1_2",
        "s_coda",
        "s_coda_r9_2",
    )
    runs = load_recipe("ablation-temperature").runs()
    assert [folder for folder, _ in runs][:2] == ["temperature=10", "temperature=50"]
    assert runs[1][1].temperature == 50


TERMS = ("regularisation", "wrong_evidence", "wrong_contributions", "removal_error")
SHAPES = {
    "digits": (1, 8, 10),
    "cifar10": (3, 32, 10),
    "tiny-imagenet": (3, 64, 200),
    "imagenet100": (3, 256, 100),
    "photos": (3, 224, 4),
}


def shaped_like(settings: Settings) -> ImageData:
    """Two random images of the shape of the recipe's data."""
    channels, size, classes = SHAPES.get(settings.data, (3, settings.image_size, 4))
    images = torch.randint(0, 256, (2, channels, size, size), dtype=torch.uint8)
    split = MemorySplit(images, torch.tensor([0, classes - 1]))
    names = tuple(f"class {i}" for i in range(classes))
    return ImageData(settings.data, names, split, split, (size, size), channels, "none")


def test_a_recipe_may_have_a_second_stage_which_changes_reach_as_well(tmp_path):
    place = tmp_path / "two.yaml"
    place.write_text("base: digits\nepochs: 5\nthen: {epochs: 2, schedule: decay}\n")
    recipe = load_recipe(place)
    (first, before), (second, after) = recipe.stages(tmp_path)
    assert (before.epochs, before.start, after.epochs, after.schedule) == (5, None, 2, "decay")
    assert (second, after.start) == (tmp_path, first.name)  # wherever the run is moved
    assert first.parent == tmp_path
    assert [settings.epochs for _, settings in recipe.with_changes({"epochs": 1}).stages(tmp_path)] == [1, 1]
    both = recipe.with_changes({"seed": 3, "holdout": 60, "start": "runs/other"}).stages(tmp_path)
    assert [(s.seed, s.holdout, s.start) for _, s in both] == [(3, 60, "runs/other"), (3, 60, first.name)]
    assert len(recipe.with_changes({"model": "resnet20", "schedule": "constant"}).stages(tmp_path)) == 1  # a peer
    place.write_text("then: {epoch: 2}\n")
    with pytest.raises(ValueError, match="unknown setting 'epoch' in then of 'two'.*did you mean 'epochs'"):
        load_recipe(place)
    place.write_text("then: {epochs: 0}\n")
    with pytest.raises(ValueError, match="epochs is 0"):
        load_recipe(place)
    place.write_text("base: ablation-temperature\nthen: {epochs: 2}\n")
    with pytest.raises(ValueError, match="has both sweep and then"):
        load_recipe(place)
    place.write_text("model: resnet20\nthen: {epochs: 2}\n")
    with pytest.raises(ValueError, match="resnet20 is a peer of CoDA-Nets, which .* no weights: leave then out"):
        load_recipe(place)


@pytest.mark.parametrize(
    ("then", "words"),
    [
        ({"start": "runs/other"}, "sets start to 'runs/other', but a second stage starts from the weights of the"),
        ({"model": "s_coda"}, "sets model to 's_coda', but a second stage trains the network of the first"),
        ({"backbone": "resnet56"}, "trains the network of the first"),
        ({"layer": "blocks.10"}, "trains the network of the first"),
        ({"head": "16/4/3"}, "trains the network of the first"),
        ({"encoding": "signed"}, "trains the network of the first"),
        ({"rescale": "l2"}, "sets rescale to 'l2', but a second stage trains the network of the first"),
        ({"data": "mnist"}, "learns from the same images as the first"),
        ({"root": "elsewhere"}, "learns from the same images as the first"),
        ({"source": "npm"}, "learns from the same images as the first"),
        ({"seed": 1}, "sets seed to 1, but .* holds out the same images as the first: leave seed out, or give it"),
        ({"epochs": 2, "holdout": 6000}, "sets holdout to 6000, but a second stage holds out the same images"),
        ({"devices": 2}, "runs in the processes of the first"),
        ({"nodes": 2}, "runs in the processes of the first"),
    ],
)
def test_what_a_second_stage_cannot_change_is_refused_before_the_first(then, words, tmp_path):
    place = tmp_path / "two.yaml"
    place.write_text(json.dumps({"base": "digits", "then": then}))
    with pytest.raises(ValueError, match=f"then of 'two' .*{words}"):
        load_recipe(place)
    with pytest.raises(ValueError, match=f"then of 'mine' .*{words}"):
        Recipe("mine", Settings(), then=then)


@pytest.mark.parametrize("name", list_recipes())
def test_every_stage_of_every_recipe_takes_a_step(name, tmp_path):
    recipe = load_recipe(name)
    assert recipe.about
    for _, settings in recipe.runs()[:1] if recipe.sweep else recipe.stages(tmp_path):
        data = shaped_like(settings)
        built = untrained(settings, data)
        module = Classification(built, data, settings)
        model = built
        if any(layer.rank > MANY for layer in built.architecture):
            options = {name: getattr(settings, name) for name in ("rescale", "temperature", "recompute")}
            model = of_kind(settings.model, len(data.classes), image_channels=data.channels, **options)
        before = model.layers[0].A.detach().clone()
        optimiser = torch.optim.Adam(model.parameters(), settings.learning_rate)
        images, labels = data.train.__getitems__([0, 1])
        pictures = module.augmentation(images.float() / 255, torch.Generator().manual_seed(0))
        assert tuple(pictures.shape[2:]) == built.image_size
        terms = {term: getattr(settings, term) for term in TERMS}
        # a corner is enough for every stride, and one position costs as much as another
        loss, logits = objective(model, pictures[:, :, :24, :24], labels, **terms)
        loss.backward()
        optimiser.step()
        assert logits.shape == (2, len(data.classes))
        assert loss.isfinite()
        assert not torch.equal(before, model.layers[0].A)
        fitted = module.fitting(images.float() / 255, torch.Generator())
        assert tuple(fitted.shape[2:]) == built.image_size


def test_schedules():
    halving = load_recipe("cifar10-s-sq-t").settings
    assert [learning_rate_factor(halving, e, 0) for e in (0, 59, 60, 120, 180)] == [1, 1, 0.5, 0.25, 0.125]
    imagenet = load_recipe("imagenet100-l").settings
    rates = [1e-3 * learning_rate_factor(imagenet, e, 0) for e in range(16)]
    assert rates[0] == pytest.approx(2.5e-4)
    assert rates[15] == pytest.approx(1e-3)
    assert all(a < b for a, b in itertools.pairwise(rates))
    assert 1e-3 * learning_rate_factor(imagenet, 20, 0) == pytest.approx(5e-4)
    cycle = Settings(schedule="one-cycle")
    values = [learning_rate_factor(cycle, 0, progress) for progress in (0.0, 0.1, 0.2, 0.6, 1.0)]
    assert values == pytest.approx([0, 0.5, 1, 0.5, 0])


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"epoch": 3}, "unknown setting 'epoch'.*did you mean 'epochs'"),
        ({"epochs": "many"}, "epochs is 'many': it must be a whole number"),
        ({"epochs": 2.5}, "epochs is 2.5"),
        ({"epochs": True}, "epochs is True"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"learning_rate": 0}, "learning_rate is 0"),
        ({"schedule": "onecycle"}, "did you mean 'one-cycle'"),
        ({"batch_size": 30, "accumulate": 4}, "take a multiple of 4"),
        ({"compile": "yes"}, "unknown compile 'yes'"),
        ({"regularisation": -1}, "must not be negative"),
        ({"wrong_evidence": -1}, "must not be negative"),
        ({"wrong_contributions": -1}, "must not be negative"),
        ({"removal_error": -1}, "must not be negative"),
        ({"removal_error": 0.1, "mosaic": 0.5}, "removal_error and mosaic were both given"),
        ({"remove_least": 1.5}, "it is a share, from 0 to 1"),
        ({"remove_least": 0.5, "mosaic": 0.5}, "remove_least and mosaic were both given"),
        ({"wrong_contributions": 0.1, "mosaic": 0.5}, "wrong_contributions and mosaic were both given"),
        ({"epochs": None}, "epochs is None"),
        ({"epochs": float("inf")}, "epochs is inf"),
        ({"threads": 0}, "threads is 0"),
        (
            {"regularisation": 0.1, "mosaic": 0.5},
            "regularisation and mosaic .* needs one class per image",
        ),
        ({"mosaic": 1, "batch_size": 30}, "30 images at a time .* take a batch_size that is a multiple of 4"),
        ({"mosaic": 1, "batch_size": 8, "accumulate": 4}, "2 images at a time .* a multiple of 16"),
        ({"backbone": "resnet56", "rescale": "l2"}, "rescale is 'l2', which the layers on a backbone cannot be told"),
        ({"backbone": "resnet56", "recompute": True}, "recompute is True, which the layers on a backbone"),
        ({"backbone": "resnet56", "model": "s_coda"}, "model is 's_coda', but on a backbone .* head: leave it out"),
        ({"head": "16/4/3"}, "head is '16/4/3', but there is no backbone: give backbone as well"),
        ({"encoding": "signed"}, "encoding is 'signed', but there is no backbone"),
        ({"views": 2}, "views is 2, but there is no backbone"),
        ({"seed": 2**63}, "seed is 9223372036854775808"),
        ({"image_size": 0}, "image_size is 0: it is a side in pixels, 1 or more, or left out"),
    ],
)
def test_bad_settings(entries, words):
    with pytest.raises(ValueError, match=words):
        changed(Settings(), entries)


def test_recipe_files(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("base: cifar10-cpu\nepochs: 3\nlearning_rate: 1e-3\n")
    recipe = load_recipe(file)
    assert (recipe.name, recipe.settings.epochs, recipe.settings.learning_rate) == ("mine", 3, 1e-3)
    assert recipe.settings.model == load_recipe("cifar10-cpu").settings.model
    file.write_text("epochz: 3\n")
    with pytest.raises(ValueError, match="did you mean 'epochs'"):
        load_recipe(file)
    file.write_text("- a\n- b\n")
    with pytest.raises(ValueError, match="must be a mapping"):
        read_settings(file)
    file.write_text("a: [1, 2\n")
    with pytest.raises(ValueError, match="is not YAML"):
        read_settings(file)
    file.write_text("sweep: {temperature: 10}\n")
    with pytest.raises(ValueError, match="list of values"):
        load_recipe(file)
    file.write_text("sweep: {about: [1]}\n")
    with pytest.raises(ValueError, match="unknown setting 'about'"):
        load_recipe(file)
    file.write_text("sweep: {learning_rate: [1e-3, 2e-3]}\n")
    assert [settings.learning_rate for _, settings in load_recipe(file).runs()] == [1e-3, 2e-3]
    file.write_text("base: cifar10-cpu\nmodel: resnet20\nsweep: {model: [s_coda_r1_8, resnet20]}\n")
    peer = load_recipe(file)
    assert (peer.settings.optimiser, peer.settings.temperature, peer.settings.wrong_evidence) == ("adam", None, 0)
    assert [settings.optimiser for _, settings in dataclasses.replace(peer, settings=recipe.settings).runs()] == [
        "muon",
        "adam",
    ]
    file.write_text(f"base: {file}\n")
    with pytest.raises(ValueError, match="is its own base"):
        load_recipe(file)
    file.write_text("base: [1]\n")
    with pytest.raises(ValueError, match="a recipe was given as"):
        load_recipe(file)
    with pytest.raises(ValueError, match="is not a file"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match="did you mean 'digits'"):
        load_recipe("digit")
    assert load_recipe(tmp_path).settings.data == str(tmp_path)


def test_a_sweep_comes_with_its_base_unless_its_setting_has_a_value(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("base: ablation-temperature\nepochs: 3\n")
    assert load_recipe(file).sweep == load_recipe("ablation-temperature").sweep
    assert {settings.epochs for _, settings in load_recipe(file).runs()} == {3}
    file.write_text("base: ablation-temperature\ntemperature: 50\n")
    assert [settings.temperature for _, settings in load_recipe(file).runs()] == [50]
    file.write_text("base: ablation-temperature\nsweep: {seed: [0, 1]}\n")
    assert [settings.seed for _, settings in load_recipe(file).runs()] == [0, 1]


def test_a_file_of_settings_may_lie_in_the_users_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.yaml").write_text("epochs: 3\n")
    given = {}
    monkeypatch.setattr("codanet.training.train_all", lambda recipe, output, **changes: given.update(changes) or [])
    assert main(["digits", "--config=~/mine.yaml"]) == 0  # which no shell expands
    assert given == {"epochs": 3}


@pytest.mark.parametrize("seed", [2**53 + 1, 2**63 - 1])
def test_whole_numbers_stay_what_they_are(seed):
    assert changed(Settings(), {"seed": seed}).seed == seed
    assert changed(Settings(), {"seed": str(seed)}).seed == seed
    assert changed(Settings(), {"epochs": "1e3"}).epochs == 1000


def test_a_base_is_a_recipe_whatever_lies_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("base: photos\nepochs: 3\n")
    expected = load_recipe("mine.yaml")
    (tmp_path / "photos").mkdir()
    assert load_recipe("mine.yaml") == expected
    assert load_recipe("photos").settings.data == str(tmp_path / "photos")


@pytest.mark.parametrize(
    ("setting", "word", "value"),
    [
        ("augmentation", "none", "none"),
        ("grow-from", "none", None),
        ("temperature", "null", None),
        ("finetune", "no", False),
    ],
)
def test_none_is_a_word_where_a_setting_cannot_be_left_out(setting, word, value, monkeypatch):
    given = {}
    monkeypatch.setattr("codanet.training.train_all", lambda recipe, output, **changes: given.update(changes) or [])
    assert main(["digits", f"--{setting}", word]) == 0
    assert given == {setting.replace("-", "_"): value}


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--recompute", "digits"], True),
        (["digits", "--recompute"], True),
        (["--recompute", "no", "digits"], False),
        (["--recompute=no", "digits"], False),
    ],
)
def test_a_switch_leaves_the_recipe_behind_it_alone(words, value, monkeypatch):
    given = {}
    monkeypatch.setattr("codanet.training.train_all", lambda recipe, output, **changes: given.update(changes) or [])
    assert main(words) == 0
    assert given == {"recompute": value}


def test_models_of_recipes_exist():
    for name in list_recipes():
        for _, settings in load_recipe(name).runs():
            with torch.device("meta"):
                create_model(settings.model, rescale=settings.rescale, temperature=settings.temperature)
