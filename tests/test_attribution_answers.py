"""Every attribution method is right where the answer is known."""

import math
from dataclasses import replace

import captum.attr
import pytest
import torch
import torch.nn.functional as F
from skimage.transform import resize
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from classifiers import CLASSES, MODELS, SIZE, Light, close, cnn, coda, made, pictures, resnet, settings
from codanet import CoDANet
from codanet.attribution import (
    Contributions,
    DeepLift,
    Grad,
    GradCam,
    InputTimesGradient,
    IntegratedGradients,
    Lime,
    Occlusion,
    Rise,
    attribute,
)
from codanet.attribution.task import prepare
from codanet.models.network import Layer


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


@pytest.mark.parametrize(("window", "stride"), [(5, 2), (4, 4), (7, 5)])
@torch.no_grad()
def test_contributions_of_windows_are_what_occlusion_takes_away_where_no_pixel_minds_another(window, stride):
    """With 1x1 kernels a window's pixels add the same with and without the others, so that covering them shows it."""
    model = CoDANet([Layer(6, 2, 1), Layer(CLASSES, 2, 1)], temperature=3).double().eval()
    images = torch.rand(2, 3, 13, 17).double()
    own = attribute(model, images, [[0, 3], [4, 1]], Contributions(window, stride))
    close(own, attribute(model, images, [[0, 3], [4, 1]], Occlusion(window, stride)), 1e-10)
    pixels = attribute(model, images, [[0, 3], [4, 1]], Contributions())
    assert torch.equal(pixels, attribute(model, images, [[0, 3], [4, 1]], Contributions(1)))
    assert (own - pixels).abs().max() > 1e-3 * own.abs().max()
    with pytest.raises(ValueError, match=r"a window of 14 does not fit into images of 13x17"):
        attribute(model, images, 0, Contributions(14))
    with pytest.raises(ValueError, match=r"stride 3 is larger than the window 2"):
        Contributions(2, 3)


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


def test_image_space_needs_colours():
    model = made("coda")
    removed = model.encode(pictures(2))
    removed[:, :, 3, 4] = 0
    attribute(model, removed, 1, Grad())
    with pytest.raises(ValueError, match=r"not as \[x, 1-x\]"):
        attribute(model, removed, 1, Grad(space="image"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rise_adds_up_in_full_precision(dtype):
    model, images = made("coda").float(), pictures(2).float()
    method = Rise(masks=400)
    expected = attribute(model, images, 1, method)
    close(attribute(model.to(dtype), images.to(dtype), 1, method).float(), expected, 0.05)


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
    """RISE as published, one mask after the other, each enlarged by skimage."""
    generator = torch.Generator().manual_seed(seed)
    height, width = image.shape[1:]
    grids = torch.rand(settings.masks, settings.cells, settings.cells, generator=generator) < settings.probability
    cells = [math.ceil(size / settings.cells) for size in (height, width)]
    shifts = [torch.randint(cell, (settings.masks,), generator=generator).tolist() for cell in cells]
    total = torch.zeros(height, width).double()
    for number, (top, left) in enumerate(zip(*shifts, strict=True)):
        size = [(settings.cells + 1) * cell for cell in cells]
        large = resize(grids[number].double().numpy(), size, order=1, mode="reflect", anti_aliasing=False)
        mask = torch.from_numpy(large)[top : top + height, left : left + width]
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


def test_many_masks_of_rise_take_a_byte_a_cell():
    """Of each of 32x32 cells; a million masks are a GB, as the limits say."""
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel() * result.element_size())
            return result

    settings, image = Rise(masks=20_000, cells=32), torch.rand(1, 3, 8, 8)
    with Sizes():
        attribute(Light(), image, [0], settings)
    assert largest <= settings.masks * settings.cells**2


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


@pytest.mark.filterwarnings("error")
def test_lime_takes_a_picture_of_one_colour_that_is_none():
    """Normalised to -1 all over: there is nothing to divide by."""
    task = prepare(Light(), torch.full((1, 3, 16, 16), -1.0), 0)
    dark = prepare(Light(), torch.zeros(1, 3, 16, 16), 0)
    assert torch.equal(Lime()._segments(task, task.inputs), Lime()._segments(dark, dark.inputs))


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
