"""Hybrids: exact over the features of any layer of any backbone, and honest about it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from codanet.models.backbones import UpTo
from codanet.models.digest import model_digest
from codanet.models.efficientnet_lite import CUTS, efficientnet_lite0
from codanet.models.feature_explanation import FeatureExplanation, spread
from codanet.models.hybrid import HybridNet, head_layers, hybrid


class Stranger(nn.Module):
    """A network this package never saw: grouped stem, two branches, batch norm, tanh, a dictionary at the end."""

    def __init__(self):
        super().__init__()
        self.entry = nn.Sequential(nn.Conv2d(3, 12, 5, 2, 2, groups=3), nn.BatchNorm2d(12), nn.Tanh())
        self.left, self.right = nn.Conv2d(12, 8, 1), nn.Conv2d(12, 8, 3, padding=1)
        self.join = nn.Sequential(nn.MaxPool2d(2), nn.GELU())
        self.answer = nn.Linear(16, 7)
        self.calls = 0

    def forward(self, images):
        x = self.entry(images)
        x = self.join(torch.cat([self.left(x), self.right(x)], 1))
        self.calls += 1
        return {"logits": self.answer(x.mean((2, 3)))}


@pytest.fixture
def stranger() -> Stranger:
    torch.manual_seed(0)
    return Stranger()


def small(backbone, layer, **options) -> HybridNet:
    torch.manual_seed(1)
    options = {"units": (6, 5), "rank": 3, "image_size": 32, "temperature": 8.0, **options}
    return hybrid(backbone, layer, 4, **options)


def calibrated(model: HybridNet, images) -> HybridNet:
    model.calibrate(model.maps(images))
    return model


def assert_exact(model: HybridNet, images, atol=1e-10):
    why = model.explain(images, target="all")
    total = why.contributions.sum((-3, -2, -1)) + why.bias
    assert torch.allclose(total, why.target_logits, atol=atol, rtol=0)
    assert torch.allclose(why.logits, model(images), atol=atol, rtol=0)
    assert torch.allclose(why.pixels.sum((-2, -1)) + why.bias, why.target_logits, atol=atol, rtol=0)


@pytest.mark.parametrize("encoding", ["signed", "split"])
@pytest.mark.parametrize("stride", list(CUTS))
def test_contributions_add_up_at_every_cut(stride, encoding):
    images = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    torch.manual_seed(0)
    model = small(efficientnet_lite0(weights=False), CUTS[stride], image_size=64, encoding=encoding).double()
    assert model.stride == stride
    assert_exact(calibrated(model, images), images)


@pytest.mark.parametrize("layer", ["entry", "entry.1", "left", "join", "join.0"])
def test_contributions_add_up_on_a_network_never_seen(stranger, layer):
    images = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    assert_exact(calibrated(small(stranger, layer).double(), images), images)


def test_pictures_of_other_sizes_add_up(stranger):
    images = torch.rand(1, 3, 39, 51, dtype=torch.float64)
    assert_exact(small(stranger, "join").double(), images)


def test_the_backbone_runs_no_further_than_its_layer(stranger):
    model = small(stranger, "join.0")
    model(torch.rand(2, 3, 32, 32))
    assert model.backbone.network.calls == 0
    assert not model.backbone.network.join[0]._forward_hooks


@pytest.mark.parametrize("way", ["compiled", "exported"])
def test_a_map_stays_as_it_is_where_the_rest_is_traced(way):
    """Compilers see the layers above the cut as well, and ReLU(inplace=True) would change what was cut off."""
    part = UpTo(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)), "0").requires_grad_(False)
    images = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    if way == "compiled":
        traced = torch.compile(part, backend="eager")
    else:
        traced = torch.export.export(part, (images,)).module()
    assert float(part(images).min()) < 0
    assert torch.equal(traced(images), part(images))


def test_hooks_are_gone_after_an_error(stranger):
    part = UpTo(stranger, "join")
    with pytest.raises(RuntimeError):
        part(torch.rand(2, 5, 32, 32))
    assert not stranger.join._forward_hooks


def test_the_callers_network_is_left_alone(stranger):
    before = {key: value.clone() for key, value in stranger.state_dict().items()}
    model = small(stranger, "join").train()
    model(torch.rand(2, 3, 32, 32)).sum().backward()
    assert stranger.training
    assert all(parameter.requires_grad for parameter in stranger.parameters())
    assert all(torch.equal(value, before[key]) for key, value in stranger.state_dict().items())


class InPlace(nn.Module):
    """Normalises what it is given in its place, as is done to save memory."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 2, 1)

    def forward(self, images):
        return self.conv(images.sub_(0.5).div_(0.5))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_callers_images_are_left_alone(layout):
    model = small(InPlace(), "conv")
    images = torch.rand(2, 3, 32, 32).contiguous(memory_format=layout)
    before = images.clone()
    why = model.explain(images)
    assert torch.equal(images, before)
    assert torch.equal(why.images, before)
    assert torch.allclose(model.explain(images).logits, why.logits)
    model.backbone.requires_grad_()
    model(images)
    assert torch.equal(images, before)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16, torch.float16])
def test_a_backbone_in_another_precision_is_brought_to_that_of_the_layers(stranger, kind):
    model = small(stranger.to(kind), "join")
    assert stranger.left.weight.dtype == kind
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.explain(torch.rand(1, 3, 32, 32)).completeness_error().max() < 1e-5


def test_maps_larger_than_the_image_are_refused():
    """Several positions to a pixel: a map over pixels would leave some of them out."""
    wide = nn.Sequential(nn.Conv2d(3, 8, 3, padding=2), nn.Upsample(scale_factor=4))
    for layer, side in (("0", 34), ("1", 136)):
        with pytest.raises(ValueError, match=f"gives maps of {side}x{side} for images of 32x32: choose one"):
            small(wide, layer)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda maps: maps[:0], r"features are torch.float32 \[0, 16, 8, 8\]"),
        (lambda maps: maps.int(), "features are torch.int32"),
        (lambda maps: maps * torch.nan, "not finite"),
        (lambda maps: maps.to("meta"), "features are on meta"),
    ],
)
def test_features_are_checked(stranger, change, words):
    model = small(stranger, "join")
    features = change(model.encode(torch.rand(2, 3, 32, 32)))
    for call in (model, model.explain, model.trace):
        with pytest.raises(ValueError, match=words):
            call(features)


def test_hybrids_cut_at_other_layers_are_told_apart(stranger):
    model = small(stranger, "left")
    digest = model_digest(model)
    model.backbone.layer = "right"
    assert model_digest(model) != digest


def test_a_frozen_backbone_stays_as_it_is_while_the_layers_learn(stranger):
    model = small(stranger, "join").train()
    before = {key: value.clone() for key, value in model.backbone.state_dict().items()}
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    first = model.layers[0].A.clone()
    model(torch.rand(4, 3, 32, 32)).square().sum().backward()
    optimiser.step()
    assert model.training
    assert not any(module.training for module in model.backbone.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.backbone.state_dict().items())
    assert not torch.equal(model.layers[0].A, first)


def test_a_backbone_set_free_learns(stranger):
    model = small(stranger, "join").train()
    model.backbone.requires_grad_()
    model(torch.rand(2, 3, 32, 32)).sum().backward()
    assert model.backbone.network.entry[0].weight.grad.abs().sum() > 0
    assert not any(module.training for module in model.backbone.modules())


def test_gradients_reach_the_image(stranger):
    images = torch.rand(2, 3, 32, 32, requires_grad=True)
    small(stranger, "join")(images).sum().backward()
    assert images.grad.abs().sum() > 0


def test_features_already_encoded_are_taken_as_they_are(stranger):
    model = small(stranger, "join")
    images = torch.rand(2, 3, 32, 32)
    encoded = model.encode(images)
    assert encoded.shape == (2, model.encoded_channels, 8, 8)
    assert torch.equal(model(encoded), model(images))
    with pytest.raises(ValueError, match="features were explained, not images"):
        _ = model.explain(encoded).images


def test_one_image_at_a_time_is_the_same(stranger):
    model = small(stranger, "join")
    images = torch.rand(3, 3, 32, 32)
    assert torch.allclose(model.maps(images), model.backbone(images), atol=1e-6)


def test_features_of_three_deviations_become_one(stranger):
    model = small(stranger, "join")
    maps = torch.randn(50, 16, 8, 8) * torch.linspace(0.1, 9, 16).view(1, -1, 1, 1)
    model.calibrate(maps)
    assert torch.allclose(model.encode_maps(maps).std((0, 2, 3)), torch.full((16,), 1 / 3), atol=1e-5)


def test_a_channel_that_says_nothing_stays_finite(stranger):
    model = small(stranger, "join")
    maps = torch.randn(5, 16, 8, 8)
    maps[:, 3] = 0.25
    model.calibrate(maps)
    assert model.encode_maps(maps).isfinite().all()


@pytest.mark.parametrize("shape", [(5, 16, 8, 8), (1, 16, 1, 1)])
def test_features_that_say_nothing_at_all_are_refused(stranger, shape):
    model = small(stranger, "join")
    with pytest.raises(ValueError, match="do not vary in any channel: calibrate on images that differ"):
        model.calibrate(torch.ones(shape))
    assert torch.equal(model.feature_scale, torch.ones(1, 16, 1, 1))


def test_split_features_are_their_positive_and_negative_parts(stranger):
    signed, split = small(stranger, "join"), small(stranger, "join", encoding="split")
    images = torch.rand(2, 3, 32, 32)
    positive, negative = split.encode(images).chunk(2, 1)
    assert (positive >= 0).all()
    assert (negative >= 0).all()
    assert torch.allclose(positive - negative, signed.encode(images))


def test_an_explanation_says_what_it_is_exact_for(stranger):
    why = small(stranger, "join", class_names=("a", "b", "c", "d")).explain(torch.rand(3, 3, 32, 32), target="b")
    assert isinstance(why, FeatureExplanation)
    assert why.exact_for == "exact over the features of join, stride 4"
    assert why.contributions.shape == (3, 16, 8, 8)
    assert why.positions.shape == (3, 8, 8)
    assert why.pixels.shape == (3, 32, 32)
    assert why.part(1).images.shape == (1, 3, 32, 32)
    assert why.part(1).layer == "join"
    assert torch.equal(why.part(-1).images, why.images[-1:])


def test_explanations_are_joined_as_they_were_made(stranger):
    model = small(stranger, "join")
    images = torch.rand(3, 3, 32, 32)
    maps = model.maps(images)
    for given in (images, maps):
        why = model.explain(given)
        whole = FeatureExplanation.joined([why.part(slice(0, 2)), why.part(2)])
        assert torch.equal(whole.contributions, why.contributions)
        for last in (np.int64(2), np.int64(-1), torch.tensor(2)):
            assert torch.equal(why.part(last).positions, why.positions[2:])
            assert given is maps or torch.equal(why.part(last).images, images[2:])
        assert whole.exact_for == why.exact_for
        assert (whole.photographs is None) == (given is maps)
    with pytest.raises(ValueError, match="features were explained, not images"):
        FeatureExplanation.joined([model.explain(images), model.explain(maps)])


def test_any_two_layers_collapse(stranger):
    model = small(stranger, "join").double()
    trace = model.trace(torch.rand(2, 3, 32, 32, dtype=torch.float64))
    for source in range(trace.depth):
        entries = trace.contributions(trace.depth, 2, source=source)
        assert torch.allclose(entries.flatten(1).sum(1) + trace.bias, trace.logits[:, 2], atol=1e-10, rtol=0)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (21, 13), (5, 7)])
def test_spreading_keeps_sums(height, width):
    maps = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    large = spread(maps, height, width)
    assert large.shape == (2, 3, height, width)
    assert torch.allclose(large.sum((-2, -1)), maps.sum((-2, -1)), atol=1e-12)


def test_an_even_map_stays_even():
    assert torch.allclose(spread(torch.ones(1, 2, 2), 8, 8), torch.full((1, 8, 8), 1 / 16))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nosuchnet", None, 2), r"unknown backbone 'nosuchnet'.*efficientnet_lite0"),
        (("efficientnet_lite", None, 2), r"did you mean 'efficientnet_lite0'"),
        ((Stranger(), "jion", 2), r"unknown layer 'jion' of Stranger: did you mean 'join'"),
        ((Stranger(), None, 2), r"no layer was given: choose one of entry"),
        ((Stranger(), "answer", 2), r"layer 'answer' gives a tensor \[1, 7\]: choose one that gives a map"),
        ((Stranger(), "join"), r"neither num_classes nor class_names"),
    ],
)
def test_what_cannot_be_built_is_said(arguments, message):
    with pytest.raises(ValueError, match=message):
        hybrid(*arguments)


def test_features_that_are_no_map_are_refused(stranger):
    with pytest.raises(ValueError, match="layer 'features' gives dict: choose one that gives a map"):
        HybridNet(stranger, head_layers(2), image_size=32)


def test_a_layer_that_looks_like_an_image_is_refused():
    with pytest.raises(ValueError, match="3 channels, as an image has"):
        small(nn.Sequential(nn.Conv2d(3, 3, 3)), "0")


def test_images_are_checked(stranger):
    model = small(stranger, "join")
    with pytest.raises(ValueError, match=r"images are a tensor of shape \[1, 4, 8, 8\].*encoded features of join"):
        model(torch.rand(1, 4, 8, 8))
    with pytest.raises(ValueError, match="image values run from"):
        model(torch.rand(1, 3, 32, 32) * 255)


def test_threads_do_not_disturb_each_other(stranger):
    cut, images = UpTo(stranger.eval(), "join"), torch.rand(24, 3, 32, 32)
    with torch.no_grad():
        one_by_one = [cut(image[None]) for image in images]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda image: cut(image[None]), images))
    assert all(map(torch.equal, one_by_one, together))
