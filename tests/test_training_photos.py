"""From a folder of photographs to an explained classifier on a backbone; a small one stands for the real one."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import codanet
import processes
from codanet import cli
from codanet.data.features import FeatureCache
from codanet.data.image import to_tensor
from codanet.data.photographs import load_photographs
from codanet.data.views import Views
from codanet.evaluation import evaluate
from codanet.models.backbones import BACKBONES, Backbone
from codanet.models.hybrid import HybridNet
from codanet.report import report
from codanet.training import photos, train
from codanet.training import run as run_module
from codanet.training.callbacks import Checkpoints
from codanet.training.preparation import images_of
from codanet.training.settings import Settings

pytestmark = pytest.mark.usefixtures("one_thread")
COLOURS = {"blue": (30, 60, 220), "red": (220, 40, 30)}


class Little(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, images):
        return self.pooled(self.blocks(images))


def parted(part):
    blocks = part.network.blocks
    return blocks[:2], blocks[2:], "blocks.1"


@pytest.fixture(autouse=True, scope="module")
def little():
    def build(trained):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return Little()

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BACKBONES, "little", Backbone(build, "blocks.2", 32, parted))
        yield


def photograph(path, colour, seed=0, size=(60, 45)):
    noise = np.random.default_rng(seed).normal(0, 25, (size[1], size[0], 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("photographs") / "pictures"
    for number, (name, colour) in enumerate(COLOURS.items()):
        for index in range(12):
            photograph(place / name / f"{index}.png", colour, 100 * number + index)
    return place


def trained(folder, output, **changes):
    changes = {"backbone": "little", "head": "6/3/3", "views": 2, "epochs": 2, "batch_size": 8, **changes}
    return train(folder, output, **changes)


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return trained(folder, tmp_path_factory.mktemp("runs") / "run", epochs=6, quiet=True)


def test_one_command_from_a_folder_to_an_explained_classifier(run, folder, capsys):
    assert run.accuracy == 1.0
    assert run.recall == {"blue": 1.0, "red": 1.0}
    assert not (run.folder / "features").exists()
    model = codanet.load(run.weights)
    assert isinstance(model, HybridNet)
    assert model.image_size == (32, 43 // 32 * 32)  # the usual ratio, in steps of 32
    why = model.explain(codanet.read_image(folder / "red" / "0.png", model)[None])
    assert why.class_name(int(why.targets[0])) == "red"
    assert why.exact_for == "exact over the features of blocks.2, stride 4"
    assert float(why.completeness_error()) < 1e-4


def test_the_time_is_foretold_on_a_pipe(folder, tmp_path, capsys):
    trained(folder, tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("features of 44 views: about ")  # 20 photographs twice, and 4
    assert "then training: about " in lines[0]
    assert sum(line.startswith("features ") for line in lines) > 5


def weights(run):
    return codanet.load(run.weights).state_dict()


def test_an_interrupted_extraction_goes_on(folder, tmp_path, monkeypatch):
    whole, written = trained(folder, tmp_path / "whole", quiet=True), []
    write = FeatureCache.write

    def interrupted(self, view, picture, maps):
        written.append((view, picture))
        if len(written) == 15:
            raise KeyboardInterrupt
        write(self, view, picture, maps)

    monkeypatch.setattr(FeatureCache, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(folder, tmp_path / "run", quiet=True)
    kept = len(written) - 1
    written.clear()
    written.extend([None] * 100)  # past the fifteenth
    again = trained(folder, tmp_path / "run", quiet=True)
    assert len(written) - 100 <= 44 - kept + 1  # another thread may have written beside the interruption
    assert all(torch.equal(value, weights(whole)[key]) for key, value in weights(again).items())


def test_a_finished_run_is_not_done_again(folder, tmp_path, monkeypatch):
    first = trained(folder, tmp_path / "run", quiet=True)
    monkeypatch.setattr(photos, "extract", None)
    assert trained(folder, tmp_path / "run", quiet=True).accuracy == first.accuracy


def test_a_backbone_in_training_mode_keeps_what_its_norms_have_learnt(folder, monkeypatch):
    def build(trained):
        return nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.BatchNorm2d(8))

    monkeypatch.setitem(BACKBONES, "normed", Backbone(build, "1", 32))
    model = photos.build(Settings(backbone="normed"), load_photographs(folder, side=32))
    norm = model.backbone.network[1]
    assert int(norm.num_batches_tracked) == 0
    assert torch.equal(norm.running_mean, torch.zeros(8))


def test_fine_tuning_trains_the_last_blocks_alone(folder, tmp_path):
    after = weights(trained(folder, tmp_path / "run", finetune=True, epochs=3, optimiser="muon"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        before = Little()
    first, last = (f"backbone.network.blocks.{place}.weight" for place in (0, 2))
    assert torch.equal(after[first], before.blocks[0].weight)
    assert not torch.allclose(after[last], before.blocks[2].weight)


def backbones(monkeypatch):
    """The filters that features are made with, as (first, last) sums, and the threads that make them."""
    seen = []
    featured, extract = run_module.featured, photos.extract

    def watched(model, *rest):
        blocks = model.backbone.network.blocks
        seen.append((float(blocks[0].weight.sum()), float(blocks[2].weight.sum())))
        return featured(model, *rest)

    def extracted(cache, maps, advance, workers):
        threads.append(workers)
        return extract(cache, maps, advance, workers)

    threads: list[int | None] = []
    monkeypatch.setattr(run_module, "featured", watched)
    monkeypatch.setattr(photos, "extract", extracted)
    return seen, threads


def test_a_run_from_tuned_weights_makes_features_with_their_backbone(folder, tmp_path, monkeypatch):
    """Also when it is taken up after its features are gone; and its own hours are told, the second time as well."""
    tuned = trained(folder, tmp_path / "tuned", finetune=True, epochs=3, optimiser="muon", quiet=True)
    filters = weights(tuned)
    expected = tuple(float(filters[f"backbone.network.blocks.{place}.weight"].sum()) for place in (0, 2))
    changes = {"start": str(tuned.folder), "threads": 1, "quiet": True}
    seen, threads = backbones(monkeypatch)
    stop = Checkpoints.on_train_epoch_end

    def interrupted(self, trainer, module):
        stop(self, trainer, module)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "on_train_epoch_end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trained(folder, tmp_path / "run", **changes)
    shutil.rmtree(tmp_path / "run" / "features")
    first = trained(folder, tmp_path / "run", **changes)
    assert seen == [expected, expected]
    assert set(threads) == {1}
    model = codanet.load(first.weights)
    before, own = model.provenance["stages"]
    stages = [before | {"hours": 5.0}, own]  # as if tuning had taken so long
    codanet.save(model, first.weights, {"stages": stages, "hours": 5.0 + own["hours"]})
    assert trained(folder, tmp_path / "run", **changes).hours == own["hours"] < 1


def test_features_of_a_backbone_that_was_tuned_meanwhile_are_made_again(folder, tmp_path, monkeypatch):
    """The weights at `start` are others when an interrupted extraction goes on: no features of both are mixed."""
    other = {"quiet": True, "epochs": 1, "finetune": True}
    start = trained(folder, tmp_path / "first", **other)
    longer = trained(folder, tmp_path / "second", **other | {"epochs": 2, "learning_rate": 0.1})
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "Classification", None)  # stopped before the first epoch
        with pytest.raises(TypeError):
            trained(folder, tmp_path / "run", start=str(start.folder), quiet=True)
    shutil.copy(longer.weights, start.weights)
    with pytest.warns(UserWarning, match="are made again"):
        trained(folder, tmp_path / "run", start=str(start.folder), quiet=True)


def test_fine_tuning_is_a_word_on_the_command_line(folder, tmp_path, capsys):
    options = ["--backbone", "little", "--head", "6/3/3", "--views", "1", "--epochs", "1", "--finetune", "--json"]
    assert cli.main(["train", str(folder), "-o", str(tmp_path / "run"), *options]) == 0
    assert set(json.loads(capsys.readouterr().out)["recall"]) == {"blue", "red"}
    assert codanet.load(tmp_path / "run" / "model.safetensors").provenance["settings"]["finetune"] is True


def test_what_is_odd_is_a_sentence_on_the_command_line(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "pictures")
    (place / "red" / "IMG_1.HEIC").write_bytes(b"")
    options = ["--backbone", "little", "--head", "6/3/3", "--views", "1", "--epochs", "1"]
    command = f"""
import torch
from codanet import cli
from codanet.models import backbones
part = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 4, 1))
backbones.BACKBONES["little"] = backbones.Backbone(lambda trained: part, "0", 32)
raise SystemExit(cli.main({["train", str(place), "-o", str(tmp_path / "run"), *options]!r}))
"""
    result = processes.run(command)
    said = result.stderr
    assert result.returncode == 0, said
    (line,) = (line for line in said.splitlines() if "HEIC" in line)
    assert line.startswith("codanet: 1 files in ")
    assert "UserWarning" not in said


def test_a_small_folder_gets_small_batches():
    settings = Settings(batch_size=64)
    assert [photos.photographs_at_once(settings, number) for number in (3, 66, 2022)] == [1, 4, 64]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": "litle"}, "unknown backbone 'litle': did you mean 'little'"),
        ({"layer": "blocks.22"}, "unknown layer 'blocks.22' of Little: did you mean 'blocks.2'"),
        ({"layer": "pooled"}, r"layer 'pooled' gives a tensor \[1, 8\]: choose one that gives a map"),
        ({"backbone": None, "finetune": True}, "no backbone to tune"),
        ({"backbone": "resnet56", "layer": "layer2", "finetune": True}, "resnet56 is only known frozen"),
        ({"augmentation": "flip-crop"}, "photographs are varied by their views"),
        ({"head": "6/3"}, "give units/rank/kernel"),
        ({"root": "elsewhere"}, "is a folder, which takes neither root nor source: leave both out"),
    ],
)
def test_what_cannot_be_trained_is_said_beforehand(folder, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        trained(folder, tmp_path / "run", **changes)


def test_a_data_set_goes_before_a_folder_of_its_name(folder, tmp_path, monkeypatch):
    """As it does without a backbone, and in evaluations."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, tmp_path / "digits")
    with pytest.raises(ValueError, match="digits is grey, but little takes RGB"):
        trained(folder, tmp_path / "run", data="digits")


def test_the_same_photograph_on_both_sides_of_a_holdout_is_a_leak(folder, tmp_path, recwarn):
    shutil.copytree(folder, tmp_path / "val")
    for name, colour in COLOURS.items():
        for index in range(12):
            photograph(tmp_path / "train" / name / f"{index}.png", colour, 1000 + index)
            photograph(tmp_path / "train" / name / f"{index} again.png", colour, 1000 + index)
    settings = Settings(data=str(tmp_path), backbone="little")
    images_of(settings)
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"validation photographs are among the training ones as well .*flattered"):
        images_of(dataclasses.replace(settings, holdout=6))


def test_held_out_photographs_are_measured_as_they_were_held_out(folder, tmp_path):
    run = trained(folder, tmp_path / "run", seed=5, epochs=6, quiet=True)
    results = evaluate(
        [str(run.weights)], folder, ["contributions", "ixg", "gradcam"], ["accuracy", "completeness"],
        tmp_path / "measured", quiet=True,
    )  # fmt: skip
    rows = {(row.metric, row.method): row for row in results.rows}
    assert rows["accuracy", ""].mean == run.accuracy
    assert rows["accuracy", ""].n == 4
    assert rows["completeness", "contributions"].mean < 1e-4
    with pytest.raises(ValueError, match="takes neither root nor source"):
        evaluate([str(run.weights)], folder, ["ixg"], ["accuracy"], tmp_path / "other", root=tmp_path, quiet=True)
    held = load_photographs(folder, size=codanet.load(run.weights).image_size, seed=5).val.digest()
    assert results.provenance["settings"]["split_digest"] == held


def test_the_report_lays_maps_over_photographs(run, tmp_path):
    page = report(run.folder, tmp_path / "report.html", quiet=True).read_text()
    assert "exact over the features of blocks.2, stride 4; below these nothing is claimed" in page
    assert "accuracy on 4 held-out images" in page
    assert re.findall(r"<th scope='row'>(blue|red)</th>.*?<td class='sum'>(\d+%)</td>", page) == [
        (name, f"{share:.0%}") for name, share in run.recall.items()
    ]


def test_a_page_of_explained_photographs(run, folder, tmp_path, capsys):
    files = [str(folder / "red" / "0.png"), str(folder / "blue" / "1.png")]
    options = ["--compare", "gradcam,ixg:space=image"]
    assert cli.main(["explain", str(run.weights), *files, "-o", str(tmp_path / "why.svg"), *options]) == 0
    page = (tmp_path / "why.svg").read_text()
    assert page.count("<image") == 2 * 4 + 1  # and the colours of the scale
    assert cli.main(["explain", str(run.weights), *files, "-o", str(tmp_path / "cards")]) == 0
    assert Image.open(tmp_path / "cards" / "0-why.png").width > 600  # larger than the 32 pixels that the model sees
    assert cli.main(["explain", str(run.weights), files[0], "-o", str(tmp_path / "layers.png"), "--layers"]) == 0
    assert cli.main(["explain", str(run.weights), files[0], "-o", str(tmp_path / "w.png"), "--style", "weights"]) == 2
    assert "have no colours: choose map or overlay" in capsys.readouterr().err


def test_a_film_says_what_its_maps_are_exact_for(run, folder, tmp_path):
    frames = [Image.open(folder / "red" / f"{index}.png") for index in range(3)]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:], duration=100)
    assert cli.main(["explain", str(run.weights), str(tmp_path / "film.gif"), "-o", str(tmp_path / "why.gif")]) == 0
    assert Image.open(tmp_path / "why.gif").n_frames == 3


def test_a_camera_picture_is_validated_on_as_it_is_classified(tmp_path):
    """A JPEG more than twice as large as the network's pictures is decoded reduced: training does so no less."""
    for name, colour in COLOURS.items():
        for index in range(5):
            photograph(tmp_path / name / f"{index}.jpg", colour, index, (1600, 1200))
    with pytest.warns(UserWarning, match="few photographs"):
        split = load_photographs(tmp_path, size=(96, 128), seed=0).val
    drawn = Views((96, 128))
    whole = [to_tensor(drawn.view(photos._photograph(split, 0, drawn, views), 0, 0)) for views in (1, 4)]
    assert torch.equal(whole[0], split[0][0])
    assert not torch.equal(whole[1], split[0][0])  # or the pictures are too small to tell
