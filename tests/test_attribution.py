"""Every registered attribution method keeps one contract on every kind of classifier."""

import math
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from classifiers import CLASSES, MODELS, SIZE, close, cnn, coda, made, pictures, settings
from codanet.attribution import (
    METHODS,
    DeepLift,
    Grad,
    GradCam,
    IntegratedGradients,
    Lime,
    Occlusion,
    Rise,
    attribute,
    list_methods,
    settings_of,
)
from codanet.models.peers import create_peer

TABLE = [(model, name) for model, make in MODELS.items() for name in list_methods(make())]
every = pytest.mark.parametrize(("kind", "name"), TABLE)


class Broken(Exception):
    """What a forward pass raises half-way."""


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

    monkeypatch.setattr("codanet.attribution.maps.progress_bar", bar)
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


def test_threads_take_turns_on_a_model():
    model, images = made("coda"), pictures(1)
    names = ["gradcam", "grad", "gradcam", "deeplift"] * 3
    expected = {name: attribute(model, images, 1, name) for name in names}
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda name: attribute(model, images, 1, name), names))
    assert all(torch.equal(maps, expected[name]) for name, maps in zip(names, found, strict=True))


def test_list_methods():
    assert list_methods() == list(METHODS) == list_methods(coda())
    assert list_methods(cnn()) == [name for name in METHODS if name != "contributions"]
    assert list_methods(create_peer("bcos_resnet20")) == list(METHODS)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    assert list_methods(flat) == [name for name in METHODS if name not in ("contributions", "gradcam")]


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
        ({"method": "contributions"}, "Sequential is not one: choose one of grad, ixg"),
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
