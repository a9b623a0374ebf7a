"""Reports of models: on the images that their training held out, on test images, and on data of one's own."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

import codanet
from codanet.cli import main
from codanet.data import load_data
from codanet.data.split import held_out
from codanet.evaluation import evaluate
from codanet.evaluation.models import held_out_by
from codanet.models.peers import create_peer
from codanet.models.resnet import resnet20
from codanet.report import report
from codanet.report.model_page import name_of
from codanet.report.sources import images_of_model, kind, measured_model
from reports import Page, coloured_pictures, harmless, model_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return coloured_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def model_file(pictures, tmp_path):
    model, data, _ = model_of(pictures, hours=0.5, seed=0)
    model.provenance["data_checksum"] = data.checksum
    codanet.save(model, tmp_path / "colours.safetensors")
    return tmp_path / "colours.safetensors"


def test_a_model_becomes_a_page(model_file, pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(model_file), "--corrupted", "6"]) == 0
    assert capsys.readouterr().out.startswith("colours-report.html\n")
    page = Page(tmp_path / "colours-report.html")
    harmless(page)
    assert "colours: model" in page.plain
    assert f"96.67% accuracy on 30 images of {pictures.name}" in page.plain  # 29 of 30
    assert "0.5 hours" in page.plain
    for title in (
        "Sure and right",
        "Confusion",
        "Class by class",
        "Calibration",
        "On worse pictures",
        "Where this comes",
    ):
        assert title in page.plain
    assert "settings · epochs 2" in page.plain


def test_a_model_is_looked_at_on_what_its_training_held_out_unless_the_test_images_are_asked_for(digits):
    model = codanet.load(digits)
    model.provenance = {"data": "digits", "settings": {"data": "digits", "holdout": 100, "seed": 3}}
    data = load_data("digits", seed=3)  # its test images are drawn
    held = held_out(data, 100, 3).val
    for split, expected, words in (
        (None, held, "held out"),
        ("held-out", held, "held out"),
        ("test", data.val, "images of"),
    ):
        there = images_of_model("m", model, None, split, None)
        assert torch.equal(there.data.val.images, expected.images)
        assert words in there.what
    assert torch.equal(images_of_model("m", model, "digits", None, None).data.val.images, held.images)
    model.provenance["settings"]["holdout"] = 0
    with pytest.raises(ValueError, match="held nothing of these images out"):
        images_of_model("m", model, None, "held-out", None)


def test_a_model_on_data_of_ones_own(model_file, pictures, tmp_path):
    other = tmp_path / "mine"
    for name in ("red", "green", "blue"):
        (other / "val" / name).mkdir(parents=True)
        for number in (1, 2):
            (other / "val" / name / f"{number}.png").write_bytes(
                (pictures / "val" / name / f"{number}.png").read_bytes()
            )
    (other / "train").symlink_to(pictures / "train")
    page = Page(report(model_file, tmp_path / "why.html", data=other, corrupted=0, quiet=True))
    assert "100.00% accuracy on 6 images of mine" in page.plain


def test_other_pictures_in_a_folder_of_the_same_name(model_file, pictures, tmp_path):
    """And the folder of the training, once it has more pictures: their test images, not those that were held out."""
    other = shutil.copytree(pictures, tmp_path / pictures.name)
    shutil.copy(other / "train" / "red" / "0.png", other / "train" / "red" / "more.png")
    for number in (3, 4):
        (other / "val" / "red" / f"{number}.png").unlink()
    page = Page(report(model_file, tmp_path / "why.html", data=other, corrupted=0, quiet=True))
    assert f"100.00% accuracy on 28 images of {pictures.name}" in page.plain
    model = codanet.load(model_file)
    model.provenance["settings"]["holdout"] = 6
    assert torch.equal(images_of_model("m", model, other, None, None).data.val.images, load_data(other).val.images)
    with pytest.raises(ValueError, match="held nothing of these images out"):
        images_of_model("m", model, other, "held-out", None)


def test_a_folder_that_has_changed_since_is_drawn_from_anew(pictures, tmp_path):
    folder = shutil.copytree(pictures / "train", tmp_path / "all")
    model, data, _ = model_of(folder)
    model.provenance["data_checksum"] = data.checksum
    assert images_of_model("m", model, folder, None, None).what == "images of all"
    shutil.copy(folder / "red" / "0.png", folder / "red" / "more.png")
    there = images_of_model("m", model, folder, None, None)
    assert there.what == "images of all, some of which training may have had"


def test_the_pictures_of_the_training_are_known_by_any_name(model_file, pictures, tmp_path, monkeypatch):
    """As codanet evaluate knows them."""
    model = codanet.load(model_file)
    model.provenance["settings"]["holdout"] = 6
    held = held_out(load_data(pictures), 6, 0).val
    (tmp_path / "link").symlink_to(pictures)
    shutil.copytree(pictures, tmp_path / "moved")
    monkeypatch.chdir(pictures)
    for name in (".", tmp_path / "link", tmp_path / "moved", pictures):
        for split in (None, "held-out"):
            there = images_of_model("m", model, name, split, None)
            assert torch.equal(there.data.val.images, held.images)
            assert "held out" in there.what
        assert torch.equal(held_out_by({"m": model}, load_data(name)).val.images, held.images)
        test = images_of_model("m", model, name, "test", None).data.val
        assert torch.equal(test.images, load_data(pictures).val.images)


@pytest.mark.parametrize(
    ("data", "root", "words"),
    [
        ("cifar11", None, "unknown data set 'cifar11', and no such folder: did you mean 'cifar10'"),
        ("nowhere", None, "unknown data set 'nowhere'"),
        ("digits", None, "colours takes images of 3 channels and digits has 1"),
        ("cifar10", "nowhere", "'nowhere' does not exist"),
        ("pictures", "elsewhere", "is a folder, which takes neither root nor source"),
    ],
)
def test_data_that_cannot_be_what_was_meant_are_an_error(data, root, words, model_file, pictures, tmp_path):
    data = pictures if data == "pictures" else data
    with pytest.raises(ValueError, match=words):
        report(model_file, tmp_path / "out.html", data=data, root=root, quiet=True)
    assert not (tmp_path / "out.html").exists()


def test_images_that_are_not_here_are_not_fetched(model_file, tmp_path, monkeypatch):
    monkeypatch.setenv("CODANET_DATA", str(tmp_path / "cache"))
    page = Page(report(model_file, tmp_path / "out.html", data="CIFAR-10", quiet=True))
    assert "The images of cifar10 are not on this machine: no confusion matrix" in page.plain
    with pytest.raises(ValueError, match="resnet56:official may have to be fetched.* as in resnet56:FILE"):
        report("resnet56:official", tmp_path / "out.html", data="digits", quiet=True)


def test_weights_are_not_written_over(model_file, tmp_path):
    baseline = tmp_path / "w.safetensors"
    save_file(resnet20(num_classes=10).state_dict(), baseline)
    for source, weights in ((str(model_file), model_file), (f"resnet20:{baseline}", baseline)):
        before = weights.read_bytes()
        with pytest.raises(ValueError, match=f"{weights.name} is what is to be reported: give -o another name"):
            report(source, weights, corrupted=0, quiet=True)
        assert weights.read_bytes() == before


def test_a_folder_with_the_name_of_a_model_that_comes_with_the_package(tmp_path, monkeypatch):
    """Names go first; a run or an evaluation in it is what is meant nevertheless."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "cifar10"
    folder.mkdir()
    assert kind("cifar10") == "model"
    with pytest.raises(ValueError, match=r"cifar10 holds neither results\.json"):
        kind("./cifar10")
    (folder / "records.jsonl").touch()
    with pytest.raises(ValueError, match="holds an evaluation that has not ended"):
        kind("cifar10")
    (folder / "last.ckpt").touch()
    assert kind("cifar10") == "run"
    (folder / "results.json").touch()
    assert kind("cifar10") == "evaluation"


def test_a_page_is_called_after_the_folder_of_its_model(model_file, tmp_path, monkeypatch):
    (tmp_path / "small" / "notes").mkdir(parents=True)
    model_file.rename(tmp_path / "small" / "model.safetensors")
    monkeypatch.chdir(tmp_path / "small" / "notes")
    assert report("../model.safetensors", corrupted=0, quiet=True).name == "small-report.html"
    assert name_of("/model.safetensors") == "model"


def test_a_network_without_maps_gets_a_card(tmp_path):
    torch.manual_seed(0)
    save_file(resnet20(num_classes=10).state_dict(), tmp_path / "w.safetensors")
    entry = {"file": f"resnet20:{tmp_path / 'w.safetensors'}"}
    model, why = measured_model(entry, tmp_path)
    assert model is not None
    assert not why
    assert (
        measured_model({"file": "resnet20:official"}, tmp_path)[1]
        == "the official weights are not fetched for a report"
    )
    with pytest.raises(ValueError, match=r"resnet20 does not say what it was trained on: give .* --data"):
        report(entry["file"], tmp_path / "out.html", quiet=True)


@pytest.mark.parametrize("name", ["senn", "bcos_resnet20"])
def test_a_peer_that_explains_itself_shows_its_maps(name, tmp_path):
    torch.manual_seed(0)
    data = load_data("digits", size=16)
    facts = {"provenance": {"data": "digits", "settings": {"data": "digits", "image_size": 16}}}
    peer = create_peer(name, image_channels=1, image_size=16, class_names=data.classes, **facts)
    codanet.save(peer, tmp_path / "peer.safetensors")
    page = Page(report(tmp_path / "peer.safetensors", tmp_path / "out.html", corrupted=0, quiet=True))
    assert page.tags.count("img") >= 3 * 8  # of its mistakes, if nothing else
    assert "Where its maps lie" in page.plain
    assert "no maps of its own" not in page.plain


def test_an_evaluation_says_how_its_models_were_trained(model_file, pictures, tmp_path):
    evaluate([str(model_file)], pictures, ["contributions"], ["accuracy"], tmp_path / "out", quiet=True)
    page = Page(report(tmp_path / "out", corrupted=0, quiet=True))
    assert "How colours was trained" in page.plain
    assert "hours 0.5" in page.plain


@pytest.mark.parametrize(("split", "number", "right"), [("train", 30, 29), ("test", 28, 27)])
def test_a_report_shows_the_images_that_were_measured(split, number, right, pictures, tmp_path):
    folder = shutil.copytree(pictures, tmp_path / "pictures")
    for name in ("blue", "green"):
        (folder / "val" / name / "0.png").unlink()
    model, _, _ = model_of(folder)
    weights = codanet.save(model, tmp_path / "colours.safetensors")
    evaluate([str(weights)], folder, ["contributions"], ["accuracy"], tmp_path / "out", split=split, quiet=True)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["rows"][0]["mean"] == pytest.approx(right / number)
    page = Page(report(tmp_path / "out", corrupted=0, quiet=True))
    assert "Expected calibration error" in page.plain
    assert f"over {number} decisions" in page.plain


def test_the_stages_of_a_training_are_facts_of_their_own(model_file, tmp_path):
    model = codanet.load(model_file)
    model.provenance["stages"] = [{"epochs": 24, "settings": {"seed": 0}}, {"epochs": 1, "settings": {"seed": 1}}]
    codanet.save(model, model_file)
    page = Page(report(model_file, tmp_path / "out.html", corrupted=0, quiet=True))
    assert "stages 1 · epochs 24" in page.plain
    assert "stages 2 · settings · seed 1" in page.plain


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"split": "tset"}, "unknown split 'tset': did you mean 'test'"),
        ({"split": "train"}, "unknown split 'train'"),
        ({"corrupted": -1}, "corrupted"),
    ],
)
def test_wrong_requests(arguments, words, model_file):
    with pytest.raises(ValueError, match=words):
        report(model_file, **arguments)


def test_a_folder_has_images_of_its_own(model_file, pictures, tmp_path):
    evaluate([str(model_file)], pictures, ["contributions"], ["accuracy"], tmp_path / "out", quiet=True)
    with pytest.raises(ValueError, match="leave data and split out, or give a model"):
        report(tmp_path / "out", data="digits")
