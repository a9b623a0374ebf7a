"""Exported files say what the model says, in onnxruntime and as torch.export's programs, and refuse in words."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import codanet
from codanet import CoDANet, Layer
from codanet.app.answers import about
from codanet.app.session import Gallery, Session
from codanet.cli import main
from codanet.data.examples import photographs
from codanet.export import Differences, write
from codanet.export import page as pages
from codanet.export.check import differences
from codanet.export.digest import LENGTH
from codanet.models.architectures import ARCHITECTURES
from networks import of_kind

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from codanet.export.session import opened  # noqa: E402

DOCS = Path(__file__).parents[1] / "docs" / "export.md"


def tiny(**options) -> CoDANet:
    """Three layers, one of them with a stride, and every number of it away from zero."""
    options = {"image_size": 9, "temperature": 3.0, **options}
    return CoDANet([Layer(6, 3), Layer(5, 2, stride=2), Layer(4, 3, kernel_size=1)], **options).eval()


def run(path, images, targets, names=None):
    return opened(Path(path)).run(names, {"image": np.asarray(images), "target": np.asarray(targets, dtype=np.int64)})


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rescale", ["sq", "l2", "l1"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_file_says_what_the_model_says(tmp_path, rescale, bias, channels):
    model = tiny(rescale=rescale, bias=bias, image_channels=channels)
    made = codanet.export(model, tmp_path / "model.onnx", channels=True, rows=True)
    assert made.differences.small
    assert made.bytes == made.path.stat().st_size
    for size in ((9, 9), (16, 11), (3, 30)):  # odd and even, so that a stride leaves rows over or not
        images, targets = torch.rand(3, channels, *size), torch.tensor([-1, 0, 3])
        logits, pixels, parts, rows = run(made.path, images, targets)
        chosen = torch.where(targets < 0, model(images).argmax(1), targets)
        why = model.explain(images, chosen)
        np.testing.assert_allclose(logits, why.logits.detach(), rtol=1e-5, atol=1e-5)
        for ours, theirs in ((why.pixels, pixels), (why.contributions, parts), (why.rows, rows)):
            np.testing.assert_allclose(theirs, ours, atol=1e-5 * float(ours.abs().max()))
        np.testing.assert_allclose(pixels.sum((1, 2)) + model.logit_bias, logits[range(3), chosen], atol=1e-4)


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_every_registered_network(tmp_path, name):
    side = 24 if ARCHITECTURES[name].layers[0].stride == 3 else 12
    made = codanet.export(of_kind(name, image_size=side), tmp_path / f"{name}.onnx")
    assert made.differences.small
    onnx.checker.check_model(str(made.path), full_check=True)


def test_a_layer_as_wide_as_any(tmp_path):
    """As many inputs and as high a rank as a registered network has, so that as many numbers are summed up."""
    layers = [layer for known in ARCHITECTURES.values() for layer in known.layers]
    widest = Layer(units=4, rank=max(layer.rank for layer in layers), stride=2)
    before = Layer(units=max(layer.units for layer in layers if layer.kernel_size == 3), rank=4)
    made = codanet.export(CoDANet([before, widest], image_size=12, temperature=1.0), tmp_path / "wide.onnx")
    assert made.differences.small


def test_the_shipped_model_on_photographs(tmp_path):
    model = codanet.load("cifar10")
    made = codanet.export(model, tmp_path / "cifar10.onnx")
    assert made.bytes < 1.1 * sum(parameter.numel() * 4 for parameter in model.parameters())  # every weight once
    images = torch.stack([codanet.read_image(photo, model) for photo in photographs().values()])
    why = model.explain(images)
    logits, pixels = run(made.path, images, [-1] * len(images))
    assert (logits.argmax(1) == why.targets.numpy()).all()
    np.testing.assert_allclose(logits, why.logits, atol=1e-4)
    assert np.abs(pixels - why.pixels.numpy()).max() <= 1e-5 * float(why.pixels.abs().max())


def test_a_layer_that_is_nothing_stays_nothing(tmp_path):
    model = tiny()
    with torch.no_grad():
        model.dau_layers[1].A.zero_()
    images = torch.rand(2, 3, 9, 9)
    logits, pixels = run(codanet.export(model, tmp_path / "model.onnx").path, images, [-1, 2])
    np.testing.assert_allclose(logits, model.logit_bias)
    assert (pixels == 0).all()


def test_metadata(tmp_path):
    model = tiny(class_names=("a", "b", "ü", "d"), provenance={"data": "made up", "seed": 3}, name="little")
    made = codanet.export(model, tmp_path / "model.onnx")
    found = {name: json.loads(value) for name, value in opened(made.path).get_modelmeta().custom_metadata_map.items()}
    digest, content = found.pop("sha256"), made.path.read_bytes()
    assert digest == hashlib.sha256(content[:-LENGTH]).hexdigest()  # of all bytes before its own entry
    assert found == {
        "codanet": codanet.__version__,
        "name": "little",
        "layers": [dataclasses.asdict(layer) for layer in model.architecture],
        "bias": True,
        "class_names": ["a", "b", "ü", "d"],
        "image_size": [9, 9],
        "image_channels": 3,
        "temperature": 3.0,
        "logit_bias": model.logit_bias,
        "rescale": "sq",
        "provenance": {"data": "made up", "seed": 3},
    }


def test_what_a_graph_cannot_refuse(tmp_path):
    path = codanet.export(tiny(), tmp_path / "model.onnx", size=9).path
    images = np.random.default_rng(0).random((2, 3, 9, 9), np.float32)
    logits, pixels = run(path, images, [4, -7])  # no class; any negative number is the predicted one
    assert (pixels[0] == 0).all()
    assert pixels[1].sum() + tiny().logit_bias == pytest.approx(logits[1].max(), abs=1e-4)
    images[0, 0, 0, 0] = np.nan
    logits, pixels = run(path, images, [0, 0])
    assert np.isnan(logits[0]).all()
    assert np.isfinite(logits[1]).all()
    for wrong in (np.zeros((1, 1, 9, 9), np.float32), np.zeros((1, 3, 8, 9), np.float32)):
        with pytest.raises(Exception, match="image"):
            run(path, wrong, [0])


def test_one_image_with_several_targets(tmp_path):
    model, image = tiny(), torch.rand(1, 3, 9, 9)
    logits, pixels = run(codanet.export(model, tmp_path / "model.onnx").path, image, [2, 0, -1])
    best = int(model(image).argmax())
    assert logits.shape == (1, 4)
    np.testing.assert_allclose(pixels, model.explain(image, [[2, 0, best]]).pixels[0], atol=1e-6)


def test_half_precision_costs_what_it_says(tmp_path):
    model = codanet.load("cifar10")
    full, half = (codanet.export(model, tmp_path / f"{name}.onnx", half=name == "half") for name in ("full", "half"))
    assert half.bytes < 0.55 * full.bytes
    assert half.differences.small  # from the model with rounded weights: sums stay exact
    assert half.half is not None
    assert 1e-5 < half.half.logits < 1e-2
    assert full.half is None


def test_models_on_the_way(tmp_path):
    """Compiled, in double precision, in training mode: left as they are."""
    model = tiny().double().train()
    made = codanet.export(torch.compile(model), tmp_path / "model.onnx")
    assert made.differences.small
    assert model.training
    assert model.dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "model.txt"}, "unknown format 'txt'"),
        ({"path": "."}, "is a folder"),
        ({"path": "model.pt2", "half": True}, "only .onnx files"),
        ({"path": "model.onnx", "size": (0, 3)}, "size is"),
        ({"path": "file/model.onnx"}, "could not be written"),
        ({"path": "model.onnx", "model": torch.nn.Linear(2, 2)}, "a Linear was given"),
        ({"path": "model.onnx", "model": tiny(rescale=lambda norm: 1 / (1 + norm))}, "rescales with a function"),
        ({"path": "model.onnx", "model": tiny(provenance={"a": object()})}, "cannot be written as JSON"),
    ],
)
def test_refused_in_a_sentence(tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    options = {"model": tiny(), **options}
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        codanet.export(options.pop("model"), options.pop("path"), **options)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_maps_of_nothing_are_noticed_where_b0_is_nearly_all_of_the_logit():
    model, images, targets = tiny(temperature=1e4), torch.rand(2, 3, 9, 9), torch.tensor([0, 1])
    why = model.explain(images, targets)
    logits, maps = why.logits.numpy(), why.pixels.numpy()
    assert np.abs(logits - model.logit_bias).max() < 1e-2
    assert differences(model, images, targets, logits, maps).sums < 1e-5
    assert differences(model, images, targets, logits, np.zeros_like(maps)).sums > 0.9


def test_a_file_that_differs_is_not_kept(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"what was there")
    monkeypatch.setattr(write, "compare", lambda *_: Differences(8, 1.0, 0.0, 0.0, 3))
    with pytest.raises(ValueError, match="was not written"):
        codanet.export(tiny(), path)
    assert path.read_bytes() == b"what was there"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk(tmp_path, monkeypatch):
    def full(self, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ValueError, match="No space left on device\\): make room"):
        codanet.export(tiny(), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_torch_export_without_codanet(tmp_path):
    layers = [Layer(5, 2, stride=2), Layer(4, 3, kernel_size=1)]  # every one costs seconds to trace
    model = CoDANet(layers, image_size=9, temperature=3.0, class_names=tuple("abcd")).eval()
    state = torch.get_rng_state()
    made = codanet.export(model, tmp_path / "model.pt2", rows=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert made.differences.small
    images, targets = torch.rand(3, 3, 12, 9), torch.tensor([-1, 1, 4])
    torch.save((images, targets), tmp_path / "inputs.pt")
    code = """
import json, sys, torch
sys.modules["codanet"] = None  # not to be had
files = {"codanet.json": ""}
program = torch.export.load("model.pt2", extra_files=files).module()
with torch.no_grad():
    answers = program(*torch.load("inputs.pt"))
torch.save(answers, "answers.pt")
print(json.loads(json.loads(files["codanet.json"])["class_names"]))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['a', 'b', 'c', 'd']"
    logits, pixels, rows = torch.load(tmp_path / "answers.pt")
    why = model.explain(images, torch.stack([model(images)[0].argmax(), targets[1], torch.tensor(0)]))
    torch.testing.assert_close(logits, why.logits)
    torch.testing.assert_close(pixels[:2], why.pixels[:2])
    torch.testing.assert_close(rows[:2], why.rows[:2])
    assert (pixels[2] == 0).all()


def test_command_line(tmp_path, capsys):
    codanet.save(tiny(), tmp_path / "model.safetensors")
    path = tmp_path / "out" / "model.onnx"
    assert main(["export", str(tmp_path / "model.safetensors"), "-o", str(path), "--half", "--size", "9", "9"]) == 0
    said = capsys.readouterr().out
    assert "compared with PyTorch on 8 images" in said
    assert "half precision costs" in said
    assert [size.dim_value for size in onnx.load(path).graph.input[0].type.tensor_type.shape.dim] == [0, 3, 9, 9]
    assert main(["export", "cifar10", "-o", str(tmp_path / "model.doc")]) == 2
    assert "unknown format 'doc'" in capsys.readouterr().err


@pytest.mark.parametrize("name", [b"caf\xe9.onnx", b"CAF\xe9.PT2", "ünï.onnx".encode()])
def test_any_name_of_a_file(tmp_path, capfd, name):
    """Neither library takes a path that is no UTF-8, and PyTorch warns of another suffix."""
    path, model = tmp_path / os.fsdecode(name), CoDANet([Layer(4, 2, kernel_size=1)], image_size=9).eval()
    assert codanet.export(model, path).path == path
    assert path.stat().st_size > 1000
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_page_tells_the_same_of_a_model_as_the_served_one(tmp_path):
    model = codanet.load("cifar10")
    script = (pages.WEB / "views.js").read_text(encoding="utf-8")
    (tmp_path / "page.js").write_text(f"{script}\nconsole.log(about({json.dumps(pages._described(model))}, '0'));")
    page = " ".join(said(["node", "page.js"], tmp_path))
    served = about(Gallery({"cifar10": model}, {"cifar10": ()}), Session("cifar10"))
    rows = [re.findall("<tr>.*?</tr>", words.replace("'", '"')) for words in (page, served)]
    assert rows[0] == rows[1]
    assert f"{model.provenance['test_accuracy']:.2%} of 10000 test pictures" in page


def test_numbers_that_are_none_are_null_in_every_file():
    """A browser, and most languages, do not read the NaN that Python writes into JSON."""
    model = tiny()
    model.provenance = {"val_accuracy": float("nan"), "versions": {"torch": [float("inf"), "2"]}}

    def refused(word):
        raise AssertionError(word)

    words = write.metadata(model)["provenance"]
    assert json.loads(words, parse_constant=refused) == {"val_accuracy": None, "versions": {"torch": [None, "2"]}}
    page = pages._document({"m": model}, None, {})
    settings = re.search(r'id="settings">(.*?)</script>', page)[1]
    assert json.loads(settings, parse_constant=refused)["models"][0]["facts"]["val_accuracy"] is None


def program(language: str) -> str:
    """The how-to's own code."""
    found = re.search(rf"```{language}\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"docs/export.md has no {language}"
    return found[1]


@pytest.fixture(scope="module")
def cat(tmp_path_factory):
    """A folder with cifar10.onnx and cat.png, and what the model says of it."""
    folder = tmp_path_factory.mktemp("elsewhere")
    model = codanet.load("cifar10")
    codanet.export(model, folder / "cifar10.onnx")
    photo = photographs()["cat"].crop((75, 0, 375, 300)).resize((32, 32))
    photo.save(folder / "cat.png")
    (folder / "cat.rgb").write_bytes(photo.tobytes())
    why = model.explain(codanet.read_image(photo, model)[None])
    return folder, why


def said(command, folder) -> list[str]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def expect(words, why) -> None:
    """Class, logit, and the sum of the contributions and b0."""
    name, logit, total = words[-3:]
    assert name == why.class_name(int(why.targets[0]))
    assert float(logit) == pytest.approx(float(why.target_logits[0]), abs=1e-3)
    assert float(total) == pytest.approx(float(logit), abs=1e-3)


def test_the_how_to_in_python(cat):
    folder, why = cat
    (folder / "why.py").write_text(program("python"))
    expect(said([sys.executable, "why.py"], folder), why)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_how_to_in_javascript(cat):
    from codanet.export.engine import engine

    folder, why = cat
    try:
        place = engine(download=False)
    except codanet.data.DataError as error:
        pytest.skip(str(error))
    (folder / "why.mjs").write_text(program("javascript"))
    modules = folder / "node_modules"
    modules.mkdir(exist_ok=True)
    shutil.copytree(place, modules / "onnxruntime-web", dirs_exist_ok=True)
    expect(said(["node", "why.mjs"], folder), why)


@pytest.mark.skipif(
    shutil.which("g++") is None or "ONNXRUNTIME_HOME" not in os.environ,
    reason="needs g++ and, as ONNXRUNTIME_HOME, an onnxruntime release with include/ and lib/",
)
def test_the_how_to_in_cpp(cat):
    folder, why = cat
    home = Path(os.environ["ONNXRUNTIME_HOME"])
    (folder / "why.cpp").write_text(program("cpp"))
    places = [f"-I{home / 'include'}", f"-L{home / 'lib'}", f"-Wl,-rpath,{home / 'lib'}"]
    said(["g++", "-std=c++17", "why.cpp", *places, "-lonnxruntime", "-o", "why"], folder)
    number, *rest = said(["./why"], folder)
    expect([why.class_name(int(number)), *rest], why)
