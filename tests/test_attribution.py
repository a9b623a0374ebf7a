"""Every registered method keeps one contract on every kind of classifier; each is right where the answer is known."""

import math
import random
from dataclasses import FrozenInstanceError, replace

import captum.attr
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import codanet.attribution as attribution
from codanet import CoDANet
from codanet.attribution import (
    METHODS,
    DeepLift,
    Grad,
    GradCam,
    InputTimesGradient,
    IntegratedGradients,
    Lime,
    Occlusion,
    Rise,
    attribute,
    list_methods,
    settings_of,
)
from codanet.network import Layer
from codanet.resnet import ResNet

CLASSES, SIZE = 5, 12


class Broken(Exception):
    """What a forward pass raises half-way."""


def coda() -> CoDANet:
    return CoDANet([Layer(8, 2), Layer(CLASSES, 2, stride=2)], image_size=SIZE, temperature=4)


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(8, CLASSES),
    )


def resnet() -> ResNet:
    return ResNet(1, CLASSES)


MODELS = {"coda": coda, "cnn": cnn, "resnet": resnet}
FAST = {"rise": Rise(masks=40), "lime": Lime(samples=24, kernel_size=1, max_dist=8)}
TABLE = [(model, name) for model, make in MODELS.items() for name in list_methods(make())]
every = pytest.mark.parametrize(("kind", "name"), TABLE)


def settings(name: str):
    return FAST.get(name, METHODS[name].settings)


def made(kind: str) -> nn.Module:
    """In double precision, so that what differs does so for a reason, and with statistics of its own."""
    model = MODELS[kind]().double()
    model(torch.rand(8, 3, SIZE, SIZE).double())
    return model.eval()


def pictures(number: int = 3) -> torch.Tensor:
    return torch.rand(number, 3, SIZE, SIZE).double()


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-6) -> None:
    scale = float(expected.detach().abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * max(scale, 1e-12))


# --- one contract -----------------------------------------------------------------------------------------------------


@every
def test_shape_and_determinism(kind, name):
    model, images = made(kind), pictures()
    maps = attribute(model, images, method=settings(name))
    assert maps.shape == (3, SIZE, SIZE)
    assert maps.dtype == torch.float64
    assert maps.isfinite().all()
    assert not maps.requires_grad
    torch.rand(7), random.random(), np.random.rand()  # noqa: NPY002 (the global state must not matter)
    assert torch.equal(attribute(model, images, method=settings(name)), maps)
    predicted = model(images).argmax(1)
    close(attribute(model, images, predicted.tolist(), settings(name)), maps)


@every
def test_batch_equals_singles_and_any_batch_size(kind, name):
    model, images, targets = made(kind), pictures(), torch.tensor([0, 4, 2])
    maps = attribute(model, images, targets, settings(name), seed=3)
    for index in range(len(images)):
        close(attribute(model, images[[index]], int(targets[index]), settings(name), seed=3)[0], maps[index])
    close(attribute(model, images, targets, settings(name), seed=3, batch_size=2), maps)


@every
def test_several_classes_at_once_equal_one_by_one(kind, name):
    model, images, targets = made(kind), pictures(2), torch.tensor([[0, 4, 1], [2, 3, 2]])
    maps = attribute(model, images, targets, settings(name))
    assert maps.shape == (2, 3, SIZE, SIZE)
    for column in range(3):
        close(maps[:, column], attribute(model, images, targets[:, column], settings(name)))


def test_perturbations_serve_all_classes_of_an_image():
    model, images, seen = made("cnn"), pictures(1), []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    for method in (Occlusion(5, 2), Rise(masks=50)):
        passes = []
        for target in (1, "all"):
            seen.clear()
            attribute(model, images, target, method)
            passes.append(sum(seen))
        assert passes[0] == passes[1]


@every
def test_batch_size_bounds_what_the_model_holds(kind, name):
    model, images, seen = made(kind), pictures(5), []
    first = next(module for module in model.modules() if not list(module.children()))
    first.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    attribute(model, images, method=settings(name), batch_size=4)
    assert max(seen, default=0) <= 4


def state(model: nn.Module, images: torch.Tensor) -> dict[str, object]:
    """All that a caller may see."""
    return {
        "training": [module.training for module in model.modules()],
        "inplace": [getattr(module, "inplace", None) for module in model.modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "hooks": [
            [(key, list(value.items())) for key, value in vars(module).items() if key.endswith("hooks")]
            for module in model.modules()
        ],
        "requires_grad": [each.requires_grad for each in model.parameters()],
        "grad": [
            None if each.grad is None else (id(each.grad), each.grad.numpy().tobytes()) for each in model.parameters()
        ],
        "state": {key: value.numpy().tobytes() for key, value in model.state_dict().items()},
        "images": (images.tolist(), images.requires_grad, images.grad.tolist()),
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state()),  # noqa: NPY002 (the caller's own)
        "python": random.getstate(),
        "grad mode": torch.is_grad_enabled(),
    }


def lived_in(kind: str) -> tuple[nn.Module, torch.Tensor]:
    """A model in training, partly frozen, with gradients and hooks; and images that have a gradient."""
    model, images = made(kind), pictures().requires_grad_()
    model.train()
    modules = list(model.modules())
    modules[-1].eval()
    modules[1].register_forward_hook(lambda module, inputs, output: None)
    modules[-1].register_full_backward_hook(lambda module, before, after: None)
    for number, parameter in enumerate(model.parameters()):
        if number % 2:
            parameter.requires_grad_(False)
        else:
            parameter.grad = torch.rand_like(parameter)
    images.grad = torch.rand_like(images)
    return model, images


@every
def test_leaves_the_callers_things_alone(kind, name):
    model, images = lived_in(kind)
    before = state(model, images)
    attribute(model, images, method=settings(name))
    assert state(model, images) == before


@every
def test_leaves_them_alone_when_the_forward_pass_raises(kind, name, monkeypatch):
    model, images = lived_in(kind)
    place = (
        model.layers[-1] if kind == "coda" else next(m for m in reversed(list(model.modules())) if type(m) is nn.Linear)
    )
    called = "align" if kind == "coda" else "forward"  # explain() aligns the layers without calling them
    plain, calls, limit = getattr(place, called), [0], [10**9]

    def fragile(*arguments):
        calls[0] += 1
        if calls[0] >= limit[0]:
            raise Broken
        return plain(*arguments)

    monkeypatch.setattr(place, called, fragile)
    before = state(model, images)
    maps = attribute(model, images, method=settings(name), batch_size=8)
    last = calls[0]
    for limit[0] in (last // 2 + 1, last):
        calls[0] = 0
        with pytest.raises(Broken):
            attribute(model, images, method=settings(name), batch_size=8)
        assert state(model, images) == before
    limit[0] = 10**9
    close(attribute(model, images, method=settings(name), batch_size=8), maps)


@every
def test_works_where_gradients_are_off(kind, name):
    model, images = made(kind), pictures(2)
    maps = attribute(model, images, method=settings(name))
    with torch.no_grad():
        close(attribute(model, images, method=settings(name)), maps)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        close(attribute(model, images.clone(), method=settings(name)), maps)


@every
def test_progress_adds_up_to_the_images(kind, name, monkeypatch):
    from contextlib import contextmanager

    told: list[float] = []

    @contextmanager
    def bar(title, total, *, shown, unit):
        assert (total, shown) == (3, True)
        yield told.append

    monkeypatch.setattr(attribution, "progress_bar", bar)
    attribute(made(kind), pictures(), method=settings(name), progress=True)
    assert sum(told) == pytest.approx(3)


@pytest.mark.parametrize("name", list(METHODS))
def test_encoded_images_give_the_same(name):
    model, images = made("coda"), pictures(2)
    close(attribute(model, model.encode(images), 1, settings(name)), attribute(model, images, 1, settings(name)))


@pytest.mark.parametrize("name", list(METHODS))
def test_defaults_are_the_papers_and_run(name):
    images = torch.rand(1, 3, SIZE, SIZE)
    maps = attribute(coda().eval(), images, method=name)
    assert maps.shape == (1, SIZE, SIZE)
    assert maps.dtype == torch.float32


def test_the_papers_settings():
    assert METHODS["intgrad"].settings == IntegratedGradients(steps=20)
    assert METHODS["occlusion5"].settings == Occlusion(window=5, stride=2)
    assert METHODS["occlusion9"].settings == Occlusion(window=9, stride=2)
    assert METHODS["rise"].settings == Rise(masks=6000, cells=6, probability=0.1)
    assert METHODS["lime"].settings == Lime(samples=256, features=3, kernel_size=4, max_dist=200, ratio=0.2)
    assert [name for name, method in METHODS.items() if not method.post_hoc] == ["contributions"]
    assert all(name == method.name for name, method in METHODS.items())
    with pytest.raises(FrozenInstanceError):
        METHODS["rise"].settings.masks = 3


def test_a_seed_changes_what_is_random_only():
    model, images = made("coda"), pictures(2)
    for name in METHODS:
        same = torch.equal(*(attribute(model, images, 0, settings(name), seed=seed) for seed in (1, 2)))
        assert same == (name not in ("rise", "lime", "random")), name


def test_random_differs_between_images_and_classes():
    model, images = made("cnn"), pictures(2)
    one, two = attribute(model, images, 0, "random")
    assert abs(torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1]) < 0.3
    assert not torch.equal(one, attribute(model, images[:1], 1, "random")[0])
    assert abs(float(one.mean())) < 0.3
    assert 0.7 < float(one.std()) < 1.3


def test_list_methods():
    assert list_methods() == list(METHODS) == list_methods(coda())
    assert list_methods(cnn()) == [name for name in METHODS if name != "contributions"]
    flat = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    assert list_methods(flat) == [name for name in METHODS if name not in ("contributions", "gradcam")]


# --- known answers ----------------------------------------------------------------------------------------------------


class Linear(nn.Module):
    """logits = W x, with W [classes, 3, H, W]"""

    def __init__(self, size: int = 6, classes: int = 2):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, 3, size, size).double())

    def forward(self, images):
        return torch.einsum("nchw,kchw->nk", images, self.weight)


@pytest.mark.parametrize("name", ["ixg", "intgrad", "deeplift"])
def test_a_linear_model_is_explained_by_its_weights_times_the_input(name):
    model, images = Linear(), torch.rand(2, 3, 6, 6).double()
    close(attribute(model, images, 1, name), (model.weight[1] * images).sum(1), 1e-6 if name == "intgrad" else 1e-10)
    close(attribute(model, images, [0, 1], "grad"), model.weight.sum(1), 1e-10)


def test_contributions_are_the_models_own_and_add_up_to_the_logit():
    model, images = made("coda"), pictures()
    maps = attribute(model, images)
    close(maps, model.explain(images).pixels, 1e-12)
    close(maps.sum((1, 2)), model(images).max(1).values - model.logit_bias, 1e-10)


def test_integrated_gradients_add_up_to_the_difference_from_the_baseline():
    smooth = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softplus(), nn.Conv2d(4, 4, 3, stride=2), nn.Tanh(), nn.Flatten())
    model = nn.Sequential(smooth, nn.Linear(4 * 4 * 4, 3)).double()
    images = pictures(2)
    difference = (model(images) - model(torch.zeros_like(images)))[:, 2]
    close(attribute(model, images, 2, "intgrad").sum((1, 2)), difference, 1e-5)
    rough = attribute(model, images, 2, IntegratedGradients(steps=1)).sum((1, 2))
    assert (rough - difference).abs().max() > 1e-5 * difference.abs().max()


@pytest.mark.parametrize("kind", ["cnn", "resnet"])
def test_deeplift_adds_up_to_the_difference_from_the_baseline(kind):
    """The summation-to-delta property, which fails if one activation is missed."""
    model, images = made(kind), pictures(2)
    black = model.mean.expand_as(images) if kind == "resnet" else torch.zeros_like(images)
    difference = (model(images) - model(black))[:, 1]
    close(attribute(model, images, 1, "deeplift").sum((1, 2)), difference, 1e-8)


def test_deeplift_of_a_coda_net_is_input_times_gradient():
    model, images = made("coda"), pictures(2)
    close(attribute(model, images, 1, "deeplift"), attribute(model, images, 1, "ixg"), 1e-12)


def plain_occlusion(model, image, fill, target, window, stride):
    """One window after the other, those that stick out of the image cut off."""
    height, width = image.shape[1:]
    total, times = torch.zeros(height, width).double(), torch.zeros(height, width).double()
    before = model(image[None])[0, target]
    top = 0
    while True:
        left = 0
        while True:
            place = slice(top, top + window), slice(left, left + window)
            covered = image.clone()
            covered[:, place[0], place[1]] = fill
            total[place] += before - model(covered[None])[0, target]
            times[place] += 1
            if left + window >= width:
                break
            left += stride
        if top + window >= height:
            return total / times
        top += stride


@pytest.mark.parametrize(("window", "stride"), [(5, 2), (9, 2), (4, 4), (7, 5), (12, 3)])
@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_occlusion_equals_the_plain_loop_and_captums(kind, window, stride):
    model, images = made(kind), torch.rand(2, 3, SIZE, SIZE + 3).double()
    inputs = model.encode(images) if kind == "coda" else images
    fill = model.mean[0] if kind == "resnet" else 0
    found = attribute(model, images, [0, 3], Occlusion(window, stride))
    for index, target in enumerate((0, 3)):
        expected = plain_occlusion(model, inputs[index], fill, target, window, stride)
        close(found[index], expected, 1e-10)
    inside = captum.attr.Occlusion(model).attribute(
        inputs,
        (inputs.shape[1], window, window),
        (inputs.shape[1], stride, stride),
        fill.expand(1, 3, *images.shape[2:]) if kind == "resnet" else 0,
        target=torch.tensor([0, 3]),
        perturbations_per_eval=40,
    )
    close(found, inside[:, 0].double(), 1e-5)  # captum adds up in single precision


@pytest.mark.parametrize(("window", "stride"), [(5, 3), (9, 7)])
@pytest.mark.parametrize("kind", ["coda", "resnet"])
@torch.no_grad()
def test_occlusion_follows_a_window_only_as_far_as_it_reaches(kind, window, stride):
    """The same as whole passes, which a hook asks for, on pictures far larger than a window's reach."""
    if kind == "coda":
        layers = [Layer(6, 2), Layer(7, 2, stride=2), Layer(6, 3, 5, 3), Layer(4, 1, 2), Layer(CLASSES, 2, 1)]
        model = CoDANet(layers, temperature=3).double().eval()
    else:
        model = made("resnet")
    images = torch.rand(2, 3, 37, 44).double()
    found = attribute(model, images, [[0, 3], [4, 1]], Occlusion(window, stride))
    passes = []
    model.register_forward_hook(lambda module, inputs, output: passes.append(len(output)))
    close(found, attribute(model, images, [[0, 3], [4, 1]], Occlusion(window, stride)), 1e-10)
    assert sum(passes) > 2 * (30 // stride) ** 2


@pytest.mark.parametrize("watched", [False, True])  # a hook asks for whole passes
@torch.no_grad()
def test_occlusion_in_image_space_covers_with_black_as_captum_on_the_images(watched):
    model, images = made("coda"), torch.rand(2, 3, 19, 23).double()
    if watched:
        model.register_forward_hook(lambda module, inputs, output: None)
    found = attribute(model, images, [0, 3], Occlusion(5, 2, space="image"))
    for index, target in enumerate((0, 3)):
        close(found[index], plain_occlusion(model, images[index], 0, target, 5, 2), 1e-10)
    inside = captum.attr.Occlusion(model).attribute(images, (3, 5, 5), (3, 2, 2), target=torch.tensor([0, 3]))
    close(found, inside[:, 0].double(), 1e-5)
    assert (found - attribute(model, images, [0, 3], Occlusion(5, 2))).abs().max() > 0.1 * found.abs().max()


def test_gradients_in_image_space_are_of_the_images():
    model, images = made("coda"), pictures(2)
    leaf = images.clone().requires_grad_()
    gradient = torch.autograd.grad(model(leaf)[:, 2].sum(), leaf)[0]
    close(attribute(model, images, 2, Grad(space="image")), gradient.sum(1), 1e-12)
    for method in (InputTimesGradient(space="image"), DeepLift(space="image")):
        close(attribute(model, images, 2, method), (images * gradient).sum(1), 1e-12)
    maps = attribute(model, images, 2, IntegratedGradients(200, space="image"))
    change = (model(images) - model(torch.zeros_like(images)))[:, 2].detach()
    close(maps.sum((1, 2)), change, 1e-3)


@pytest.mark.parametrize("name", ["grad", "ixg", "intgrad", "deeplift", "occlusion5", "rise"])
def test_image_space_is_another_for_a_coda_net_alone(name):
    image = replace(settings(name), space="image")
    model, images = made("coda"), pictures(2)
    maps = attribute(model, images, 1, image)
    close(attribute(model, model.encode(images), 1, image), maps, 1e-12)
    assert (maps - attribute(model, images, 1, settings(name))).abs().max() > 1e-3 * maps.abs().max()
    other = made("cnn")
    assert torch.equal(attribute(other, images, 1, image), attribute(other, images, 1, settings(name)))


def test_occlusion_of_a_linear_model():
    model, images = Linear(), torch.rand(1, 3, 6, 6).double()
    close(attribute(model, images, 1, Occlusion(1, 1)), (model.weight[1] * images).sum(1), 1e-10)


def test_gradcam_of_a_planted_map():
    """Class k looks at channel k with weight k + 1, so its map is that channel, its negative part cut off."""
    model = nn.Sequential(nn.Conv2d(3, 2, 4, stride=4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2)).double()
    model[3].weight.data = torch.diag(torch.tensor([1.0, 2.0]).double())
    images = pictures(2) - 0.5
    for target in (0, 1):
        cells = ((target + 1) / 9 * model[0](images)[:, [target]]).relu()
        expected = F.interpolate(cells, (SIZE, SIZE), mode="bilinear")[:, 0]
        close(attribute(model, images, target, "gradcam"), expected, 1e-10)
        blocks = cells[:, 0].repeat_interleave(4, 1).repeat_interleave(4, 2)
        close(attribute(model, images, target, GradCam(interpolation="nearest")), blocks, 1e-10)


def test_gradcam_of_a_coda_net_is_the_positive_part_of_the_classs_map():
    model, images = made("coda"), pictures(2)
    maps = model.features(model.encode(images))[:, [3]].relu() / model.temperature
    close(attribute(model, images, 3, "gradcam"), F.interpolate(maps, (SIZE, SIZE), mode="bilinear")[:, 0], 1e-10)


class Aside(nn.Module):
    """A map that the logits do not use comes last; pooling is a function, a convolution follows it."""

    def __init__(self):
        super().__init__()
        self.body, self.aside, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, CLASSES, 1)

    def forward(self, images):
        maps = self.body(images)
        self.aside(maps)
        return self.head(maps.mean((2, 3), keepdim=True)).flatten(1)


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (cnn(), "5"),
        (resnet(), "layer3"),
        (coda(), "layers.1"),
        (Aside(), "body"),
        (
            nn.Sequential(
                nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(100, 5)
            ),
            "1",
        ),
        (nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)), nn.Flatten(), nn.Linear(100, 5)), "0.0"),
    ],
)
def test_gradcam_finds_the_last_map_before_pooling(model, layer):
    images, targets = pictures(1).float().expand(CLASSES, -1, -1, -1), range(CLASSES)
    found = attribute(model, images, targets, "gradcam")
    close(found, attribute(model, images, targets, GradCam(layer=layer)))
    assert found.max() > 0


def plain_rise(probability, image, settings, seed):
    """RISE as published, one mask after the other."""
    generator = torch.Generator().manual_seed(seed)
    height, width = image.shape[1:]
    grids = torch.rand(settings.masks, settings.cells, settings.cells, generator=generator) < settings.probability
    cells = [math.ceil(size / settings.cells) for size in (height, width)]
    shifts = [torch.randint(cell, (settings.masks,), generator=generator).tolist() for cell in cells]
    total = torch.zeros(height, width).double()
    for number, (top, left) in enumerate(zip(*shifts, strict=True)):
        size = [(settings.cells + 1) * cell for cell in cells]
        large = F.interpolate(grids[number][None, None].double(), size, mode="bilinear")[0, 0]
        mask = large[top : top + height, left : left + width]
        total += probability(image * mask) * mask
    return total / settings.masks / settings.probability


@pytest.mark.parametrize(("height", "width"), [(12, 12), (20, 13)])
def test_rise_equals_the_published_loop(height, width):
    model, image, settings = made("coda"), torch.rand(3, height, width).double(), Rise(masks=50, cells=4)
    encoded = model.encode(image[None])[0]

    def probability(masked):
        return model(masked[None]).sigmoid()[0, 2].detach()

    expected = plain_rise(probability, encoded, settings, seed=5)
    close(attribute(model, image[None], 2, settings, seed=5)[0], expected)
    softmax = made("cnn")
    expected = plain_rise(lambda masked: softmax(masked[None]).softmax(1)[0, 2].detach(), image, settings, seed=5)
    close(attribute(softmax, image[None], 2, settings, seed=5)[0], expected)


class OnePixel(nn.Module):
    """P(class 0) = 0.2 + 0.6 x at one pixel"""

    def forward(self, images):
        probability = 0.2 + 0.6 * images[:, 0, 5, 20]
        return torch.stack([probability.log(), (1 - probability).log()], 1)


def test_rise_converges_to_its_expectation():
    """E[P m]/p₁ is 0.2 + 0.6 p₁ where the mask is independent of the pixel's, and highest at the pixel itself."""
    maps = attribute(OnePixel(), torch.ones(1, 3, 32, 32), 0, Rise(masks=20_000))[0]
    assert maps.argmax() == 5 * 32 + 20
    far = maps[16:, :8]
    assert float((far - 0.26).abs().max()) < 0.03
    assert maps[5, 20] > 0.45
    every = attribute(OnePixel(), torch.ones(1, 3, 32, 32), 0, Rise(masks=7, probability=1.0))
    close(every, torch.full_like(every, 0.8))


class Quadrant(nn.Module):
    """P(class 0) = 0.1 + 0.5 × brightness of the upper right quadrant + 0.2 × of the lower left."""

    def forward(self, images):
        half = images.shape[2] // 2
        right, left = images[:, :, :half, half:].mean((1, 2, 3)), images[:, :, half:, :half].mean((1, 2, 3))
        probability = 0.1 + 0.5 * right + 0.2 * left
        return torch.stack([probability.log(), (1 - probability).log()], 1)


def quadrants() -> torch.Tensor:
    """Four flat colours, all of mean brightness 1/3 to 2/3, that quickshift tells apart."""
    colours = torch.tensor([[1.0, 0, 0], [0, 1, 1], [0, 0, 1], [1, 1, 0]]).double()
    return colours.view(2, 2, 3).permute(2, 0, 1).repeat_interleave(12, 1).repeat_interleave(12, 2)[None]


def test_lime_finds_the_planted_segments():
    image = quadrants()
    settings = Lime(samples=512, kernel_size=2, max_dist=10, hidden="baseline")
    weights = attribute(Quadrant(), image, 0, settings)[0]
    assert len(weights.unique()) <= 4
    right, left = weights[3, 20], weights[20, 3]
    assert float(right) == pytest.approx(0.5 * 2 / 3, rel=0.1)
    assert float(left) == pytest.approx(0.2 / 3, rel=0.25)
    assert (weights[:12, 12:] == right).all()
    one = attribute(Quadrant(), image, 0, replace(settings, features=1))[0]
    assert (one > 0).sum() == 144
    assert (one[:12, 12:] == right).all()
    against = attribute(Quadrant(), image, 1, settings)[0]  # both speak against class 1, and are not shown
    assert against.max() < 0.02


def test_lime_hides_a_segment_in_its_mean_colour():
    """A model that sees nothing but means cannot tell, so nothing is important."""
    image = quadrants()
    kept = attribute(Quadrant(), image, 0, Lime(samples=64, kernel_size=2, max_dist=10))[0]
    assert kept.abs().max() < 1e-6
    grey = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 10 * 10, 2))
    assert attribute(grey, torch.randn(1, 1, SIZE, SIZE), method=Lime(samples=16)).shape == (1, SIZE, SIZE)


@pytest.mark.parametrize("name", ["occlusion5", "intgrad", "deeplift"])
def test_the_mean_colour_is_nothing_to_a_network_that_subtracts_it(name):
    model = made("resnet")
    images = model.mean.expand(1, 3, SIZE, SIZE)
    maps = attribute(model, images, 0, settings(name))
    assert maps.abs().max() < 1e-8


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"images": torch.rand(3, 16, 16)}, r"\[3, 16, 16\]: give floating point images \[N, C, H, W\]"),
        ({"images": torch.rand(0, 3, 16, 16)}, "at least one"),
        ({"images": [1, 2]}, "images are list"),
        ({"images": torch.zeros(1, 3, 16, 16, dtype=torch.uint8)}, "torch.uint8"),
        ({"images": torch.full((2, 3, 16, 16), math.nan)}, "2 of 2 images hold NaN"),
        ({"images": torch.rand(1, 4, 16, 16)}, "cannot take images of shape"),
        ({"target": 5}, "target 5 is out of range: the classes are 0 to 4"),
        ({"target": -1}, "target -1 is out of range"),
        ({"target": [1, 2, 3]}, "for 2 images"),
        ({"target": 1.5}, "class numbers"),
        ({"target": [[1, 2], [3, 5]]}, "target 5 is out of range"),
        ({"target": [[1, 2]]}, "for 2 images"),
        ({"target": "cat"}, "no class names"),
        ({"method": "gradcan"}, "unknown method 'gradcan': did you mean 'gradcam'?"),
        ({"method": 3}, "unknown method 3: choose one of contributions, grad"),
        ({"method": "contributions"}, "Sequential is none: choose one of grad, ixg"),
        ({"method": GradCam(layer="conv")}, "Sequential has no layer 'conv'"),
        ({"method": GradCam(layer="7")}, "layer '7' of Sequential makes no map"),
        ({"method": Occlusion(window=17)}, "a window of 17 does not fit into images of 16x16"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"model": lambda images: images}, "the model is a function"),
        ({"model": nn.Flatten(0)}, "a classifier gives logits"),
        ({"model": nn.Linear(7, 3)}, "Linear cannot take images of shape"),
        ({"model": nn.Sequential(nn.Flatten(2), nn.LSTM(256, 3))}, "gives tuple for one image"),
    ],
)
def test_bad_input_is_answered_in_words(change, says):
    given = {"model": cnn(), "images": torch.rand(2, 3, 16, 16), "target": 0, "method": "grad", **change}
    with pytest.raises(ValueError, match=says):
        attribute(**given)


def test_a_model_without_a_map_has_no_gradcam():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 2))
    with pytest.raises(ValueError, match="GradCAM needs a layer that makes a map"):
        attribute(model, torch.rand(1, 3, SIZE, SIZE), method="gradcam")


def test_a_coda_net_says_what_images_it_takes():
    with pytest.raises(ValueError, match=r"\[N, 3, H, W\], or \[N, 6, H, W\]"):
        attribute(coda(), torch.rand(1, 4, SIZE, SIZE))
    with pytest.raises(ValueError, match="not 0..255"):
        attribute(coda(), 255 * torch.rand(1, 3, SIZE, SIZE))


def test_a_damaged_model_is_told():
    model = cnn()
    model[-1].weight.data[:] = math.nan
    with pytest.raises(ValueError, match="logits that are not finite"):
        attribute(model, torch.rand(1, 3, SIZE, SIZE), method="grad")


def test_maps_that_are_not_finite_are_told():
    class Root(nn.Module):
        def forward(self, images):
            return images.clamp(min=0).sqrt().sum((2, 3))  # the gradient is infinite at 0

    images = torch.rand(2, 3, SIZE, SIZE)
    images[1, 0, 0, 0] = 0
    with pytest.raises(ValueError, match="not finite for 1 of 2 images"):
        attribute(Root(), images, 0, "grad")


class Reused(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.relu = nn.Conv2d(3, 4, 3), nn.Conv2d(4, CLASSES, 3), nn.ReLU()

    def forward(self, images):
        return self.relu(self.second(self.relu(self.first(images)))).mean((2, 3))


class Functional(Reused):
    def forward(self, images):
        return F.max_pool2d(F.relu(self.second(self.relu(self.first(images)))), 2).mean((2, 3))


def test_deeplift_refuses_what_captum_would_get_wrong():
    images = torch.rand(1, 3, SIZE, SIZE)
    with pytest.raises(ValueError, match="Reused uses 'relu' 2 times"):
        attribute(Reused(), images, method="deeplift")
    with pytest.raises(ValueError, match="Functional calls max_pool2d, relu as a function"):
        attribute(Functional(), images, method=DeepLift())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Occlusion(window=3, stride=4), "stride 4 is larger than the window 3"),
        (lambda: Occlusion(window=0), "window is 0"),
        (lambda: Occlusion(space="rgb"), "space is 'rgb': choose encoded or image"),
        (lambda: Grad(space="rgb"), "space is 'rgb': choose encoded or image"),
        (lambda: Rise(masks=0), "masks is 0"),
        (lambda: Rise(probability=0), "probability is 0"),
        (lambda: Lime(samples=1.5), "samples is 1.5"),
        (lambda: Lime(ratio=2), "ratio 2"),
        (lambda: Lime(hidden="grey"), "hidden is 'grey'"),
        (lambda: GradCam(interpolation="cubic"), "choose bilinear or nearest"),
        (lambda: IntegratedGradients(steps=0), "steps is 0"),
        (
            lambda: settings_of("rise", {"mask": 3}),
            "Rise has no setting 'mask': it has space, masks, cells, probability",
        ),
        (lambda: settings_of("grad", {"abs": True}), "it has space"),
        (lambda: settings_of("random", {"abs": True}), "it has none"),
    ],
)
def test_bad_settings_are_answered_in_words(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_settings_by_name():
    assert settings_of("occlusion5", {"window": 7}) == Occlusion(7, 2)
    assert settings_of(METHODS["rise"]) == Rise() == settings_of(Rise())
