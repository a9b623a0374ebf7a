"""A hybrid where other models are used: exported, on the page, by every method, with maps of the size of the image."""

import copy
import json
import shutil
import subprocess

import pytest
import torch
from torch import nn

import codanet
from codanet.app import views
from codanet.app.reading import read
from codanet.attribution import METHODS, attribute
from codanet.attribution.gradients import InputTimesGradient
from codanet.attribution.local import local_network
from codanet.attribution.occlusion import Occlusion
from codanet.export import page as pages
from codanet.export.write import _checked_size
from codanet.metrics import completeness
from codanet.metrics.sanity import layer_groups
from codanet.models.backbones import cut
from codanet.models.efficientnet_lite import efficientnet_lite0
from codanet.models.hybrid import HybridNet, head_layers
from test_hybrid import Stranger, calibrated, small

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model() -> HybridNet:
    """On the untrained stages of EfficientNet-Lite0 up to stride 8, by its name, so that a file can hold them."""
    torch.manual_seed(0)
    net = HybridNet(
        cut(efficientnet_lite0(weights=False), "blocks.4"),
        head_layers(3, (6,), 3),
        image_size=(48, 64),
        temperature=8.0,
        encoding="split",
        class_names=("bottle", "box", "can"),
        backbone="efficientnet_lite0",
        layer="blocks.4",
    )
    return calibrated(net, torch.rand(4, 3, 48, 64)).eval()


@pytest.mark.parametrize("name", ["model.onnx", "half.onnx"])
def test_a_file_holds_the_backbone(model, tmp_path, name):
    pytest.importorskip("onnxruntime")
    written = codanet.export(model, tmp_path / name, half=name.startswith("half"))
    assert written.differences.small


def test_a_backbone_that_onnx_does_not_know_is_said(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ValueError, match=r"the backbone is Stranger, whose operations are not known.*\.pt2"):
        codanet.export(small(Stranger(), "join"), tmp_path / "model.onnx")


def test_the_size_of_a_file_is_that_of_images_not_of_features():
    """2048 x 2048 pixels would be too many for a first layer of 256 units; 64 x 64 features are not."""
    wide = HybridNet(
        nn.Conv2d(3, 8, 3, stride=32, padding=1), head_layers(3, (256,), 3), image_size=64, backbone="wide"
    )
    assert _checked_size(2048, wide) == (2048, 2048)
    with pytest.raises(ValueError, match="of which at most"):
        _checked_size(2048 * 32, wide)


def test_the_page_says_what_its_sums_are_exact_for(model):
    reading = read(model, torch.rand(3, 48, 64))
    assert reading.size == (48, 64)
    assert reading.parts((0, 0, 20, 30), 1).error < 1e-4
    assert "exact over the features of blocks.4, stride 8" in views.region(reading, 1, None, None)
    assert reading.numbers(model, None, 1)["exact_for"].endswith("stride 8")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_page_without_a_server_lays_features_over_their_pixels(model, tmp_path):
    """Its maps and boxes are those of `pixels`, of what the graph gives for every position."""
    images = torch.rand(1, 3, 48, 60)  # 60 pixels are no whole number of squares
    why = model.explain(images)
    positions, logits = why.positions[0], why.logits[0]
    assert positions.shape == (6, 8)
    script = f"""
        const logits = {{ data: Float32Array.from({logits.tolist()}) }};
        const contributions = {{ data: Float32Array.from({positions.flatten().tolist()}), dims: [1, 6, 8] }};
        const session = {{ run: async () => ({{ logits, contributions }}) }};
        const network = new Network({{ Tensor: class {{}} }}, {{ channels: 3, bias: {model.logit_bias}, session }});
        Reading.of(network, new Float32Array(3 * 48 * 60), [48, 60]).then((reading) => {{
          const [top] = reading.ranked();
          console.log(JSON.stringify([Array.from(reading.map(top)), reading.parts([0, 0, 20, 30], top)]));
        }});
    """
    (tmp_path / "page.js").write_text((pages.WEB / "network.js").read_text(encoding="utf-8") + script)
    said = subprocess.run(["node", tmp_path / "page.js"], capture_output=True, text=True, check=True).stdout
    values, parts = json.loads(said)
    assert torch.allclose(torch.tensor(values).view(48, 60), why.pixels[0], atol=1e-7)
    assert parts["inside"] == pytest.approx(float(why.pixels[0, :30, :20].sum()), abs=1e-5)
    assert parts["inside"] + parts["outside"] + parts["bias"] == pytest.approx(parts["logit"], abs=1e-4)
    assert pages._described(model)["exact_for"].endswith("stride 8")


SLOW, LARGE = {"rise", "lime", "deeplift"}, {"occlusion9"}  # features of 6x8 have no room for a window of 9


@pytest.mark.parametrize("method", sorted(METHODS.keys() - SLOW - LARGE))
def test_maps_are_as_large_as_the_image(model, method):
    images = torch.rand(1, 3, 48, 64)
    assert attribute(model, images, 1, method).shape == (1, 48, 64)


def test_own_maps_add_up_and_stay_over_features(model):
    images, targets = torch.rand(2, 3, 48, 64), torch.tensor([0, 2])
    maps = attribute(model, images, targets)
    why = model.explain(images, targets)
    assert torch.allclose(maps.sum((1, 2)) + why.bias, why.target_logits, atol=1e-4)
    assert (maps[:, :8, :8] == maps[:, :1, :1]).all()  # a square of features is one value
    assert completeness(model, images, targets, maps).values.max() < 1e-4


def test_a_removed_pixel_is_what_the_backbone_sees_as_zero(model):
    from codanet.models.classifier import baseline, network_input

    images = torch.rand(1, 3, 48, 64)
    assert torch.equal(network_input(model, images), images)
    assert baseline(model, images).flatten().tolist() == pytest.approx([127 / 255] * 3)
    assert baseline(model, model.encode(images)).abs().max() == 0


def test_maps_of_the_image_are_asked_for_by_name(model):
    images = torch.rand(1, 3, 48, 64)
    fine, coarse = (attribute(model, images, 1, InputTimesGradient(space=space)) for space in ("image", "encoded"))
    assert len(fine.unique()) > 1000
    assert len(coarse.unique()) <= 6 * 8


def test_the_sanity_check_goes_from_the_output_down_to_the_backbone(model):
    names = [name for group in layer_groups(model) for name, _ in group]
    assert names[:2] == ["layers.1", "layers.0"]
    assert names[-2:] == ["backbone.stem.conv", "backbone.stem.norm"]


@torch.no_grad()
def test_occlusion_of_features_follows_a_window_only_as_far_as_it_reaches(model):
    """The same as whole passes, which a hook asks for; on the image, with the backbone in between, they are needed."""
    wide, images = copy.deepcopy(model).double(), torch.rand(2, 3, 96, 128).double()
    found = attribute(wide, images, [[0, 2], [1, 0]], Occlusion(3, 2))
    passes = []
    hook = wide.register_forward_hook(lambda module, inputs, output: passes.append(len(output)))
    expected = attribute(wide, images, [[0, 2], [1, 0]], Occlusion(3, 2))
    assert (found - expected).abs().max() < 1e-10 * expected.abs().max()
    assert sum(passes) > 2 * 30
    hook.remove()
    assert local_network(wide, wide.encode(images)) is not None
    assert local_network(wide, images) is None
