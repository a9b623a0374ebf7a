"""An .onnx file as a model: its graph answers where it can, PyTorch where it cannot, and both say the same."""

import copy
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import codanet
from codanet import CoDANet, Layer
from codanet.attribution import attribute
from codanet.cli import main
from codanet.data.examples import photographs
from codanet.export import ExportedNet, load

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def tiny(**options) -> CoDANet:
    layers = [Layer(6, 3), Layer(5, 2, stride=2), Layer(4, 3, kernel_size=1)]
    options = {"image_size": 9, "temperature": 3.0, "class_names": tuple("abcd"), "provenance": {"seed": 3}, **options}
    return CoDANet(layers, **options).eval()


class Counting:
    """An onnxruntime session that counts what it is asked."""

    def __init__(self, session):
        self.session, self.runs = session, 0

    def run(self, *arguments):
        self.runs += 1
        return self.session.run(*arguments)


def exported(model: CoDANet, path: Path, **options) -> tuple[ExportedNet, Counting]:
    """The model read back, and the session that it asks."""
    net = load(codanet.export(model, path, **options).path)
    assert isinstance(net, ExportedNet)
    net._session = Counting(net._session)
    return net, net._session


@pytest.mark.parametrize("rescale", ["sq", "l2", "l1"])
@pytest.mark.parametrize(("bias", "channels"), [(True, 3), (False, 1)])
@torch.no_grad()
def test_it_is_the_model_again(tmp_path, rescale, bias, channels):
    model = tiny(rescale=rescale, bias=bias, image_channels=channels)
    net, session = exported(model, tmp_path / "model.onnx")
    for name, value in model.state_dict().items():
        assert torch.equal(net.state_dict()[name], value)
    for fact in ("architecture", "class_names", "image_size", "temperature", "logit_bias", "rescale", "provenance"):
        assert getattr(net, fact) == getattr(model, fact)
    for size in ((9, 9), (12, 7)):
        images = torch.rand(3, channels, *size)
        torch.testing.assert_close(net(images), model(images), atol=1e-5, rtol=1e-5)
        for target in (None, "b", [0, 3, 1], [[0, 2], [1, 1], [3, 0]], "all"):
            ours, theirs = model.explain(images, target), net.explain(images, target)
            assert torch.equal(theirs.targets, ours.targets)
            for name in ("logits", "rows", "pixels", "inputs"):
                torch.testing.assert_close(getattr(theirs, name), getattr(ours, name), atol=1e-5, rtol=1e-4)
    assert session.runs == 2 * (1 + 3 + 2 * 3)  # several classes: one run for each picture


def test_what_a_graph_cannot_do_pytorch_does(tmp_path):
    model = tiny()
    net, session = exported(model, tmp_path / "model.onnx", size=9)
    images = torch.rand(2, 3, 9, 9)
    differentiable = images.clone().requires_grad_()
    net(differentiable)[:, 0].sum().backward()
    assert differentiable.grad.abs().sum() > 0
    with torch.no_grad():
        torch.testing.assert_close(net(torch.rand(1, 3, 12, 12)).shape, (1, 4))  # not the file's only size
        torch.testing.assert_close(net(model.encode(images)), model(images))
        torch.testing.assert_close(net.trace(images).logits, model(images))
        torch.testing.assert_close(copy.deepcopy(net)(images), model(images))
        seen = []
        handle = net.layers[1].register_forward_hook(lambda *_: seen.append(1))
        net(images)
        handle.remove()
    assert seen == [1]
    torch.testing.assert_close(attribute(net, images, 1, "ixg"), attribute(model, images, 1, "ixg"))
    assert session.runs == 0
    with torch.no_grad():
        net(images)
    assert session.runs == 1


@torch.no_grad()
def test_other_weights_are_not_answered_for_by_the_graph(tmp_path):
    net, session = exported(tiny(), tmp_path / "model.onnx")
    other = tiny()
    net.load_state_dict(other.state_dict())
    images = torch.rand(2, 3, 9, 9)
    torch.testing.assert_close(net(images), other(images))
    torch.testing.assert_close(net.double().explain(images.double()).logits, other.double()(images.double()))
    assert session.runs == 0


@torch.no_grad()
def test_images_are_checked_as_ever_and_taken_in_chunks(tmp_path, monkeypatch):
    model = tiny()
    net, session = exported(model, tmp_path / "model.onnx")
    with pytest.raises(ValueError, match="image values run from"):
        net(torch.full((1, 3, 9, 9), 7.0))
    with pytest.raises(ValueError, match="images are a tensor of shape"):
        net.explain(torch.rand(1, 2, 9, 9))
    with pytest.raises(ValueError, match="target 9 is out of range"):
        net.explain(torch.rand(1, 3, 9, 9), 9)
    monkeypatch.setattr("codanet.export.model.PIXELS_AT_ONCE", 2 * 81)
    images = torch.rand(5, 3, 9, 9)
    torch.testing.assert_close(net.explain(images).rows, model.explain(images).rows, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(net(images), model(images), atol=1e-5, rtol=1e-5)
    assert session.runs == 3 + 3


def test_it_is_read_under_inference_mode(tmp_path):
    model, path = tiny(), tmp_path / "model.onnx"
    codanet.export(model, path)
    images = torch.rand(2, 3, 9, 11)
    with torch.inference_mode():
        net = load(path)
        assert torch.allclose(net.explain(images).rows, model.explain(images).rows, atol=1e-6)
    net.requires_grad_()
    net(images).sum().backward()


def test_half_precision(tmp_path):
    model = tiny()
    net, _ = exported(model, tmp_path / "model.onnx", half=True)
    assert torch.equal(net.dau_layers[0].A, model.dau_layers[0].A.half().float())


def damaged(path: Path, what: str) -> None:
    graph = onnx.load(path)
    if what == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        return
    if what == "foreign":
        del graph.metadata_props[:]
    if what == "layers":
        next(each for each in graph.metadata_props if each.key == "layers").value = '[{"units": 4}]'
    if what == "weights":
        del graph.graph.initializer[:]
    if what == "nan":
        first = next(each for each in graph.graph.initializer if each.name == "layers.0.A")
        values = onnx.numpy_helper.to_array(first).copy()
        values[0] = np.nan
        first.CopyFrom(onnx.numpy_helper.from_array(values, first.name))
    if what == "nodes":
        del graph.graph.node[3:]
    if what == "inputs":
        del graph.graph.input[:]
    if what == "elsewhere":
        onnx.external_data_helper.set_external_data(graph.graph.initializer[0], "elsewhere.bin")
        graph.graph.initializer[0].ClearField("raw_data")
    path.write_bytes(graph.SerializeToString())


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("cut", "cannot be read as ONNX|metadata that make no model|of another kind"),
        ("foreign", "an ONNX file of another kind: give one written by codanet export"),
        ("layers", "metadata that make no model"),
        ("weights", "does not fit the model: missing"),
        ("nan", "not finite"),
        ("nodes", "does not run in onnxruntime"),
        ("inputs", "does not run in onnxruntime"),
        ("elsewhere", "takes weights from other files, as none of ours does"),
    ],
)
def test_damaged_files_are_refused_in_a_sentence(tmp_path, what, words):
    path = codanet.export(tiny(), tmp_path / "model.onnx").path
    damaged(path, what)
    with pytest.raises(ValueError, match=words) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_no_flipped_bit_is_loaded(tmp_path):
    path = codanet.export(tiny(), tmp_path / "model.onnx").path
    whole, draw = path.read_bytes(), random.Random(0)
    assert json.loads({each.key: each.value for each in onnx.load(path).metadata_props}["sha256"])
    for _ in range(40):
        damaged_bytes = bytearray(whole)
        damaged_bytes[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged_bytes)
        with pytest.raises(ValueError, match=str(path)):
            codanet.export.load(path)
    path.write_bytes(whole)
    codanet.export.load(path)


def test_the_short_way_says_where_to_go(tmp_path):
    path = codanet.export(tiny(), tmp_path / "model.onnx").path
    with pytest.raises(ValueError, match="open it with codanet.export.load"):
        codanet.load(path)


def test_commands_take_it(tmp_path, capsys):
    model = codanet.load("cifar10")
    path = codanet.export(model, tmp_path / "cifar10.onnx").path
    photographs()["cat"].save(tmp_path / "cat.png")
    answers = []
    for name in ("cifar10", str(path)):
        arguments = [
            "explain",
            name,
            str(tmp_path / "cat.png"),
            "-o",
            str(tmp_path / "why.png"),
            "--json",
            "--top",
            "2",
        ]
        assert main(arguments) == 0
        answers.append(json.loads(capsys.readouterr().out))
    ours, theirs = ([each["class"] for each in answer["classes"]] for answer in answers)
    assert ours == theirs
    probabilities = [[each["probability"] for each in answer["classes"]] for answer in answers]
    assert probabilities[0] == pytest.approx(probabilities[1], abs=1e-4)
    folder = tmp_path / "pictures"
    for number in range(20):
        place = folder / model.class_names[number // 2]
        place.mkdir(parents=True, exist_ok=True)
        photographs()["cat"].rotate(10 * number).resize((32, 32)).save(place / f"{number}.png")
    arguments = ["--data", str(folder), "--methods", "contributions", "--metrics", "accuracy,completeness"]
    tables = []
    for name in ("cifar10", str(path)):
        output = tmp_path / f"evaluation{len(tables)}"
        assert main(["evaluate", name, *arguments, "-o", str(output), "--json"]) == 0
        tables.append(json.loads(capsys.readouterr().out))
    assert [row["mean"] for row in tables[0]["rows"]] == [row["mean"] for row in tables[1]["rows"]]


def test_the_web_page_reads_it(tmp_path):
    from codanet.app.reading import read

    model = codanet.load("cifar10")
    net, session = exported(model, tmp_path / "cifar10.onnx")
    image = codanet.read_image(photographs()["cat"], model)
    ours, theirs = read(model, image), read(net, image)
    for target in range(10):
        torch.testing.assert_close(theirs.pixels[target], ours.pixels[target], atol=1e-6, rtol=1e-3)
    assert session.runs == 1
