"""A hybrid in one file, with the stages of its backbone."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import codanet
from codanet.models.efficientnet_lite import efficientnet_lite0
from test_hybrid import Stranger, small


def known(image_size=64, **options):
    """On an untrained EfficientNet-Lite0, under its name."""
    model = small(efficientnet_lite0(weights=False), "blocks.4", image_size=image_size, **options)
    model.backbone_name = "efficientnet_lite0"
    for module in model.backbone.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
    return model.eval()


def test_a_network_of_ones_own_that_knows_how_to_be_cut_is_passed_whole(tmp_path):
    model = small(efficientnet_lite0(weights=False), "blocks.4", image_size=64).eval()
    path = codanet.save(model, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="a network of one's own"):
        codanet.load(path)
    assert same(model, codanet.load(path, backbone=efficientnet_lite0(weights=False)), torch.rand(1, 3, 64, 64))


def same(first, second, images):
    with torch.no_grad():
        return torch.equal(first(images), second(images))


@pytest.mark.parametrize("encoding", ["signed", "split"])
def test_a_hybrid_comes_back_as_it_was(tmp_path, encoding):
    model = known(encoding=encoding, class_names=("a", "b", "c", "d"), image_size=(64, 96))
    images = torch.rand(2, 3, 64, 96)
    model.calibrate(model.maps(images))
    path = codanet.save(model, tmp_path / "model.safetensors", {"data": "mine"})
    state = torch.get_rng_state()
    back = codanet.load(path)
    assert torch.equal(torch.get_rng_state(), state)
    assert isinstance(back, codanet.HybridNet)
    assert same(model, back, images)
    assert (back.layer, back.encoding, back.image_size, back.class_names) == (
        "blocks.4",
        encoding,
        (64, 96),
        ("a", "b", "c", "d"),
    )
    assert back.provenance == {"data": "mine"}
    assert back.stride == 8
    assert not back.training
    assert not any(parameter.requires_grad for parameter in back.backbone.parameters())
    assert all(parameter.requires_grad for parameter in back.layers.parameters())


def test_only_the_stages_in_use_are_kept(tmp_path):
    path = codanet.save(known(), tmp_path / "model.safetensors")
    keys = load_file(path)
    assert any(key.startswith("backbone.blocks.4.") for key in keys)
    assert not any(key.startswith(("backbone.blocks.5.", "backbone.classifier")) for key in keys)


def test_half_the_size_is_nearly_the_same(tmp_path):
    model, images = known(), torch.rand(2, 3, 64, 64)
    whole = codanet.save(model, tmp_path / "whole.safetensors")
    half = codanet.save(model, tmp_path / "half.safetensors", half_backbone=True)
    assert half.stat().st_size < 0.7 * whole.stat().st_size
    back = codanet.load(half)
    assert {parameter.dtype for parameter in back.parameters()} == {torch.float32}
    with torch.no_grad():
        assert torch.allclose(back(images), model(images), atol=1e-2)


def test_a_plain_model_has_no_backbone_to_halve(tmp_path):
    with pytest.raises(ValueError, match="no backbone"):
        codanet.save(codanet.create_model("nano_coda"), tmp_path / "model.safetensors", half_backbone=True)


def test_double_precision_stays(tmp_path):
    model, images = known().double(), torch.rand(1, 3, 64, 64, dtype=torch.float64)
    back = codanet.load(codanet.save(model, tmp_path / "model.safetensors"))
    assert back.dtype == torch.float64
    assert same(model, back, images)


def test_a_network_of_ones_own_is_needed_again(tmp_path):
    torch.manual_seed(0)
    model, images = small(Stranger(), "join").eval(), torch.rand(2, 3, 32, 32)
    path = codanet.save(model, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"stands on Stranger, a network of one's own.*backbone=Stranger\(\)"):
        codanet.load(path)
    again = Stranger()
    before = {key: value.clone() for key, value in again.state_dict().items()}
    assert same(model, codanet.load(path, backbone=again), images)
    assert all(torch.equal(value, before[key]) for key, value in again.state_dict().items())
    with pytest.raises(ValueError, match="unknown layer 'join'"):
        codanet.load(path, backbone=torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1)))


class Twice(Stranger):
    """Some of its layers go by two names, as where a list of them is kept besides."""

    def __init__(self):
        super().__init__()
        self.all = torch.nn.ModuleList([self.left, self.right])


def test_layers_by_two_names_are_kept(tmp_path):
    model = small(Twice(), "join").eval()
    path = codanet.save(model, tmp_path / "model.safetensors")
    again = codanet.load(path, backbone=Twice())
    assert same(again, model, torch.rand(2, 3, 32, 32))
    assert again.backbone.network.all[0] is again.backbone.network.left


def test_a_plain_model_takes_no_backbone():
    with pytest.raises(ValueError, match="holds no hybrid"):
        codanet.load("cifar10", backbone=Stranger())


@pytest.mark.parametrize("damage", ["no layer", "missing tensor", "other shape", "not finite"])
def test_damage_is_said(tmp_path, damage):
    path = codanet.save(known(), tmp_path / "model.safetensors")
    with safe_open(str(path), framework="pt") as file:
        header = json.loads(file.metadata()["codanet"])
    tensors, key = load_file(path), "backbone.stem.conv.weight"
    if damage == "no layer":
        del header["hybrid"]["layer"]
    elif damage == "missing tensor":
        del tensors[key]
    elif damage == "other shape":
        tensors[key] = tensors[key][:, :2].contiguous()
    else:
        tensors[key][0] = torch.nan
    save_file(tensors, path, metadata={"codanet": json.dumps(header)})
    with pytest.raises(ValueError, match=r"model.safetensors"):
        codanet.load(path)


def test_a_hybrid_is_created_as_it_was_trained(tmp_path):
    path = codanet.save(known(), tmp_path / "model.safetensors")
    assert isinstance(codanet.create_model("nano_coda", pretrained=path), codanet.HybridNet)
    with pytest.raises(ValueError, match="taken as it was trained"):
        codanet.create_model("nano_coda", pretrained=path, num_classes=7)


def test_the_public_name_builds_one():
    assert codanet.hybrid(Stranger(), "join", 2, image_size=32).num_classes == 2
