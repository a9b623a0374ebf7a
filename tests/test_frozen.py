"""A frozen backbone in onnxruntime makes the maps that PyTorch makes."""

import importlib.util

import pytest
import torch
from PIL import Image
from torch import nn

from codanet.data.photographs import load_photographs
from codanet.export.frozen import in_onnxruntime
from codanet.models.backbones import cut
from codanet.models.efficientnet_lite import CUTS, EfficientNetLite0, parted
from codanet.models.resnet import resnet20
from codanet.training.photos import build, featured
from codanet.training.settings import Settings

pytestmark = pytest.mark.usefixtures("one_thread")
missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
needs_onnxruntime = pytest.mark.skipif(bool(missing), reason="onnxruntime is not installed")


def backbone(layer: str = "blocks.10") -> nn.Module:
    torch.manual_seed(0)
    network = EfficientNetLite0().eval().requires_grad_(False)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # as training would leave them: neither 0 nor 1
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.uniform_(0.5, 1.5)
            module.bias.normal_(0, 0.1)
    return cut(network, layer)


@needs_onnxruntime
@pytest.mark.parametrize("layer", ["stem", *CUTS.values(), "head"])
@pytest.mark.parametrize("size", [(64, 64), (61, 50)])
def test_the_maps_are_those_of_pytorch(layer, size):
    part, images = backbone(layer), torch.rand(1, 3, *size)
    maps = in_onnxruntime(part, size)
    expected = part(images)
    torch.testing.assert_close(maps(images), expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


@needs_onnxruntime
def test_the_part_below_what_is_tuned_is_known():
    frozen, _, _ = parted(backbone())
    images = torch.rand(1, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(in_onnxruntime(frozen, (64, 64))(images), frozen(images), rtol=1e-4, atol=1e-4)


def test_other_networks_and_precisions_stay_in_pytorch():
    assert in_onnxruntime(resnet20().layer1, (32, 32)) is None
    assert in_onnxruntime(backbone("blocks.2").double(), (32, 32)) is None


def test_it_stays_in_pytorch_where_onnxruntime_is_missing(monkeypatch):
    monkeypatch.setattr("codanet.export.frozen.find_spec", lambda name: None)
    assert in_onnxruntime(backbone("blocks.2"), (32, 32)) is None


@needs_onnxruntime
def test_it_stays_in_pytorch_where_onnxruntime_does_not_work(monkeypatch, capsys):
    def broken(*_, **__):
        raise ImportError("libm.so.6: version not found")

    monkeypatch.setattr("codanet.export.session.opened", broken)
    assert in_onnxruntime(backbone("blocks.2"), (32, 32)) is None
    assert "onnxruntime does not work here (libm.so.6: version not found), so features" in capsys.readouterr().err


@needs_onnxruntime
def test_kept_features_are_the_same_by_either_way_but_are_not_mixed(tmp_path, monkeypatch):
    shaded = Image.linear_gradient("L").convert("RGB").resize((64, 48))
    for name, turned in (("down", 0), ("up", 180)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            shaded.rotate(turned + 10 * number).save(tmp_path / "photos" / name / f"{number}.png")
    monkeypatch.setattr("codanet.models.efficientnet_lite.efficientnet_lite0", lambda weights=True: _network())
    settings = Settings(data=str(tmp_path / "photos"), backbone="efficientnet_lite0", layer="blocks.2", views=2)
    data = load_photographs(tmp_path / "photos", size=(48, 64), seed=0)

    def kept():
        made = featured(build(settings, data), data, settings, tmp_path / "run", None)
        return made.train.cache.read(torch.tensor([0, 1]), torch.tensor([0, 1])).float()

    fast = kept()
    monkeypatch.setattr("codanet.export.frozen.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="of other settings and are made again"):
        plain = kept()
    torch.testing.assert_close(fast, plain, rtol=2e-3, atol=2e-3)


def _network() -> EfficientNetLite0:
    torch.manual_seed(0)
    return EfficientNetLite0().eval()
