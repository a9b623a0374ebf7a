"""The models of an evaluation: their names and digests, and the images that each is shown."""

import copy
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import codanet
from codanet._support.files import file_digest
from codanet.data import load_data
from codanet.data.pictures import Pictures
from codanet.data.split import held_out
from codanet.evaluation import evaluate, load_models
from codanet.evaluation.models import held_out_by, model_digest, read_data
from codanet.metrics import contributions, removal
from codanet.models.labels import short_name
from codanet.models.network import CoDANet, Layer
from codanet.models.resnet import resnet20
from codanet.models.weight_files import SHIPPED
from codanet.report.sources import images_of_evaluation
from codanet.training import train
from evaluations import numbers, other

pytestmark = pytest.mark.usefixtures("one_thread")


def test_models_that_do_not_fit_the_data(tmp_path):
    data = load_data("digits")
    layers = [Layer(4, 2), Layer(10, 2)]
    for model, words in (
        (CoDANet(layers), "m takes images of 3 channels and digits has 1"),
        (CoDANet([Layer(7, 2)], image_channels=1), "m has 7 classes and digits has 10"),
        (CoDANet(layers, image_channels=1, class_names=tuple("1023456789")), "class 0 of m is '1' and of digits '0'"),
        (CoDANet(layers, image_channels=1, image_size=16), "read them at that size with --image-size 16"),
        (resnet20(), "m cannot take images|must be"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), "m has 4 classes and digits has 10"),
        (nn.Linear(5, 10), "m cannot take images"),
    ):
        with pytest.raises(ValueError, match=words):
            evaluate({"m": model}, data, **other(output=tmp_path))


def test_names_of_models(tmp_path):
    names = ["runs/a/model.safetensors", "runs/b/model.safetensors", "other.safetensors", "resnet56:w.safetensors"]
    assert [short_name(name, names) for name in names] == ["a", "b", "other", "resnet56"]
    names = ["x/a/model.safetensors", "y/a/model.safetensors", "resnet20:a.st", "resnet20:b.st"]
    assert [short_name(name, names) for name in names] == ["x/a", "y/a", "resnet20:a", "resnet20:b"]
    above = Path.cwd().parent.name  # two dots are no name
    assert short_name("../model.safetensors", ["../model.safetensors", "model.safetensors"]) == above
    for given, words in (
        ([], "no model was given"),
        (["a.safetensors", "a.safetensors"], "a.safetensors was given twice"),
        (["resnet65:official"], "unknown kind of model 'resnet65'.*did you mean 'resnet56'"),
        (["nothing.safetensors"], "nothing.safetensors"),
    ):
        with pytest.raises(ValueError, match=words):
            load_models(given)


def test_the_baseline_may_lie_in_the_home_of_a_user(tmp_path, monkeypatch):
    """No shell makes a path of a tilde after a colon."""
    monkeypatch.setenv("HOME", str(tmp_path))
    save_file(resnet20().state_dict(), tmp_path / "w.safetensors")
    models, files = load_models(["resnet20:~/w.safetensors"])
    assert list(models) == ["resnet20"]
    assert "sha256" in files["resnet20"]
    (tmp_path / "cifar10").write_bytes(b"of another kind")
    monkeypatch.chdir(tmp_path)
    shipped = SHIPPED / "cifar10.safetensors"
    assert load_models(["cifar10"])[1]["cifar10"]["sha256"] == file_digest(shipped, "sha256")


def test_choices_look_at_what_training_held_out(tmp_path, digits):
    result = train("digits", tmp_path / "run", epochs=1, holdout=200, quiet=True)
    asked = {"metrics": ["accuracy"], "methods": ["contributions"], "split": "held-out", "quiet": True}
    results = evaluate([str(result.weights)], "digits", output=tmp_path / "out", **asked)
    (row,) = results.rows
    data = load_data("digits")
    held = held_out(data, 200, 0).val
    assert row.mean == pytest.approx(result.accuracy, abs=1e-6)
    assert row.n == len(held)
    assert results.provenance["settings"]["split"] == "held-out"
    assert results.provenance["settings"]["split_digest"] == held.digest() != data.val.digest()
    own, other_number, other_images = (codanet.load(result.weights) for _ in range(3))
    other_images.provenance["data_checksum"] = "0" * 64
    assert images_of_evaluation(own, results.provenance, None).data.val.digest() == held.digest()
    other_number.provenance["settings"]["holdout"] = 100
    for models, words in (
        ({"a": codanet.load(digits)}, "a does not say that its training held images of digits out"),
        ({"b": other_images}, "the images of digits are not those that b was trained on"),
        ({"own": own, "b": resnet20()}, "b does not say that its training held"),
        ({"own": own, "b": other_number}, "held out other images each .own 200 by seed 0, b 100 by seed 0."),
    ):
        with pytest.raises(ValueError, match=words):
            evaluate(models, "digits", output=tmp_path / "none", **asked)


def test_what_training_held_out_is_known_by_its_checksum(digits):
    """A folder may have been renamed since, and another have its name."""
    data, model = load_data("digits", seed=3), codanet.load(digits)
    model.provenance = {"data": "before", "data_checksum": data.checksum, "settings": {"holdout": 100, "seed": 3}}
    assert held_out_by({"m": model}, data).val.digest() == held_out(data, 100, 3).val.digest()
    for told, words in (
        ({"data": "digits", "data_checksum": "0" * 64}, "the images of digits are not those that m was trained on"),
        ({"data": "before", "data_checksum": "0" * 64}, "m does not say that its training held images of digits out"),
        ({"data": "before", "data_checksum": None}, "m does not say that its training held images of digits out"),
    ):
        model.provenance |= told
        with pytest.raises(ValueError, match=words):
            held_out_by({"m": model}, data)
    model.provenance |= {"data": "digits"}  # of before checksums were kept
    assert held_out_by({"m": model}, data).val.digest() == held_out(data, 100, 3).val.digest()


def test_a_models_digest_changes_with_every_number():
    torch.manual_seed(0)
    model = CoDANet([Layer(10, 2)], image_channels=1)
    before = model_digest(model)
    assert model_digest(model) == before
    model.temperature = 3.0
    changed = model_digest(model)
    with torch.no_grad():
        model.dau_layers[0].A.view(-1)[3] += 1
    assert len({before, changed, model_digest(model)}) == 3


def test_a_compiled_coda_net_is_a_coda_net(digits, tmp_path):
    model = codanet.load(digits)
    found = []
    for number, each in enumerate((model, torch.compile(model, backend="eager"))):
        output, measured = tmp_path / str(number), ["removal", "completeness"]
        found.append(evaluate({"net": each}, "digits", ["contributions"], measured, output, images=10, quiet=True))
    assert numbers(found[0]) == numbers(found[1])
    images, labels, _ = Pictures(load_data("digits").val).read(range(4))
    compiled = removal(torch.compile(model, backend="eager"), images, labels, contributions)
    close = removal(model, images, labels, contributions).values
    torch.testing.assert_close(compiled.values, close, rtol=1e-5, atol=1e-6)


def test_a_header_may_say_anything_of_its_training(digits, tmp_path):
    """What is no size is no size: the images are read at their own, and the numbers are those of the same weights."""
    wanted = evaluate([str(digits)], "digits", ["grad"], ["accuracy"], tmp_path / "plain", quiet=True)
    for number, settings in enumerate((None, [], {"image_size": [3]}, {"image_size": -1})):
        path = codanet.save(codanet.load(digits), tmp_path / f"{number}.safetensors", {"settings": settings})
        results = evaluate([str(path)], "digits", ["grad"], ["accuracy"], tmp_path / str(number), quiet=True)
        assert results.provenance["settings"]["image_size"] == [8, 8]
        assert torch.equal(next(iter(results.scores.values())).values, next(iter(wanted.scores.values())).values)
    path = codanet.save(codanet.load(digits), tmp_path / "sized.safetensors", {"settings": {"image_size": 8}})
    results = evaluate([str(path)], "digits", ["grad"], ["accuracy"], tmp_path / "sized", quiet=True)
    assert results.rows[0].mean == wanted.rows[0].mean > 0.5


def test_models_of_two_seeds_share_a_set_that_comes_in_two_parts(digits, tmp_path):
    """Where a seed draws the held-out part, one of them was trained on what the other was not."""
    weights = [
        str(codanet.save(codanet.load(digits), tmp_path / f"{seed}.safetensors", {"settings": {"seed": seed}}))
        for seed in (0, 1)
    ]
    with pytest.raises(ValueError, match="trained with seeds 0, 1, so that one may have seen what another has not"):
        evaluate(weights, "digits", ["grad"], ["accuracy"], tmp_path / "drawn", quiet=True)
    for part in ("train", "val"):
        for label in range(10):
            (tmp_path / "parts" / part / str(label)).mkdir(parents=True)
            Image.new("RGB", (8, 8), (25 * label, 0, 0)).save(tmp_path / "parts" / part / str(label) / "a.png")
    model = CoDANet([Layer(10, 2)], image_size=8, class_names=tuple("0123456789"))
    models = {str(seed): replace_provenance(model, seed) for seed in (0, 1)}
    results = evaluate(models, tmp_path / "parts", ["grad"], ["accuracy"], tmp_path / "fixed", quiet=True)
    assert [row.n for row in results.rows] == [10, 10]


def replace_provenance(model, seed):
    trained = copy.deepcopy(model)
    trained.provenance = {"settings": {"seed": seed}}
    return trained


def test_pictures_are_read_at_the_size_of_the_model_and_not_cut_out(tmp_path):
    """Red around a blue centre: what a small model is shown is the whole picture, made small."""
    for label in ("a", "b"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(5):
            picture = Image.new("RGB", (64, 64), "red")
            picture.paste("blue", (28, 28, 36, 36))
            picture.save(tmp_path / "pictures" / label / f"{number}.png")
    small, window = (CoDANet([Layer(2, 2)], image_size=8, class_names=("a", "b")) for _ in range(2))
    data = read_data({"small": small}, tmp_path / "pictures", None, None, "auto")
    assert data.image_size == (8, 8)
    assert data.val[0][0][0, 0, 0] > 200
    both = {"small": small, "any": CoDANet([Layer(2, 2)], class_names=("a", "b"))}
    assert read_data(both, tmp_path / "pictures", None, None, "auto").image_size == (8, 8)
    window.provenance = {"settings": {"augmentation": "imagenet"}}  # trained on windows of larger pictures
    assert read_data({"window": window}, tmp_path / "pictures", None, None, "auto").image_size == (64, 64)
