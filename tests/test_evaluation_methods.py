"""The methods of an evaluation: by name, with settings, for several classes, and where a map is not finite."""

import pytest
import torch

from codanet.attribution import METHODS, MethodSpec, NotFinite, attribute, has_sign, method_title, settings_of
from codanet.evaluation import Results, evaluate
from codanet.evaluation.figures import COLOURS, curves_figure
from codanet.evaluation.methods import choose_methods
from codanet.metrics import Scores
from codanet.models.network import CoDANet, Layer
from colours import Colours
from evaluations import planted

pytestmark = pytest.mark.usefixtures("one_thread")


def test_methods_by_name():
    chosen = choose_methods(["contributions", "occlusion5:stride=1", "rise:masks=10:cells=4"], seed=3)
    assert chosen["occlusion5:stride=1"].settings.stride == 1
    assert chosen["rise:masks=10:cells=4"].settings.masks == 10
    assert chosen["contributions"].several_targets
    for name, words in (
        ("gradcan", "did you mean 'gradcam'"),
        ("rise:maks=3", "no setting 'maks'"),
        ("rise:masks", "write it as rise:name=value"),
        ("rise:masks=many", "masks is 'many'"),
    ):
        with pytest.raises(ValueError, match=words):
            choose_methods([name], seed=0)
    with pytest.raises(ValueError, match="no method was named"):
        choose_methods([], seed=0)


def test_a_method_spec_is_its_name_settings_and_title():
    spec = MethodSpec.parse("occlusion9:stride=4:space=image")
    assert (spec.method, spec.title) == (METHODS["occlusion9"], "Occ9:stride=4:space=image")
    assert spec.settings == settings_of("occlusion9", {"stride": 4, "space": "image"})
    assert MethodSpec.parse("gradcam:layer=null").settings == METHODS["gradcam"].settings
    assert MethodSpec.parse("rise:probability=2e-1").settings.probability == 0.2
    assert MethodSpec.find("RISE:masks=10") == MethodSpec.parse("rise:masks=10")
    assert MethodSpec.parse("rise:masks=10").settings == settings_of("rise", {"masks": 10})
    assert MethodSpec.find("mine") is MethodSpec.find("rise:masks=0") is None
    assert [method_title(name) for name in ("ixg", "mine", "mine:a=1")] == ["IxG", "mine", "mine:a=1"]
    assert [name for name in METHODS if not has_sign(name)] == ["rise"]
    assert [has_sign(name) for name in ("RISE", "rise:masks=10", "Occ5", "mine")] == [False, False, True, True]


@pytest.mark.parametrize(
    "methods",
    [
        ("occlusion5:window=3", "occlusion5:window=4"),
        ("rise", "rise:cells=4", "rise:cells=5", "mine"),
        ("grad:space=image", "ixg:space=image"),
    ],
)
def test_every_curve_has_a_colour_of_its_own(methods, tmp_path):
    curve = torch.rand(4, 3).double()
    each = Scores("removal-least", curve.mean(1), ("",) * 4, {"curve": curve}, torch.tensor([0.0, 0.1, 0.2]))
    results = Results(tmp_path, (), {("m", method, "removal-least"): each for method in methods}, {})
    lines = curves_figure(results, ["removal-least"]).axes[0].lines
    colours = [line.get_color() for line in lines]
    assert len(set(colours)) == len(methods)
    assert colours[0] == COLOURS[methods[0].partition(":")[0]]


@pytest.mark.parametrize("name", METHODS)
def test_several_classes_of_an_image_get_the_maps_of_each(name):
    torch.manual_seed(0)
    model = CoDANet([Layer(6, 2), Layer(5, 2, stride=2)], image_size=12, temperature=2).eval()
    images, targets = torch.rand(2, 3, 12, 12), torch.tensor([[0, 3, 4], [1, 1, 2]])
    settings = settings_of(name, {"rise": {"masks": 40}, "lime": {"samples": 24}}.get(name))
    maps = attribute(model, images, targets, settings)
    assert maps.shape == (2, 3, 12, 12)
    for place in range(3):
        assert torch.allclose(maps[:, place], attribute(model, images, targets[:, place], settings), atol=1e-5)


def test_occlusion_of_several_classes_asks_the_model_once():
    model = CoDANet([Layer(6, 2), Layer(5, 2, stride=2)], image_size=12).eval()
    images, calls = torch.rand(1, 3, 12, 12), []
    model.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    attribute(model, images, [[2]], "occlusion5")
    one = sum(calls)
    attribute(model, images, [[0, 1, 2, 3, 4]], "occlusion5")
    assert sum(calls) == 2 * one


class Roots(Colours):
    """Adds the image's norm to the logits: it has no gradient for an image that is all dark."""

    def forward(self, images):
        return images.sum((2, 3)) + images.square().sum((1, 2, 3)).sqrt()[:, None]


class Steep(Colours):
    """The gradient of class 3, and of no other, is larger than any float32."""

    def forward(self, images):
        gain = torch.where(torch.arange(images.shape[1]) == 3, 1e30, 1.0)
        return images.sum((2, 3)) * gain * gain


def test_maps_that_are_not_finite_are_nan_alone():
    images, targets = torch.rand(3, 10, 8, 8), torch.tensor([1, 3, 0])
    images[1] = 0
    method = choose_methods(["grad"], seed=0)["grad"]
    maps = method(Roots(), images, targets)
    assert maps.flatten(1).isnan().all(1).tolist() == [False, True, False]
    assert torch.equal(maps[::2], attribute(Roots(), images[::2], targets[::2], "grad"))
    dark = images.clone()
    dark[:, 3] = 0
    several = method(Steep(), dark, torch.tensor([[1, 3], [3, 0], [0, 2]]))
    assert several.flatten(2).isnan().all(2).tolist() == [[False, True], [True, False], [False, False]]
    assert several.flatten(2).isfinite().all(2).tolist() == [[True, False], [False, True], [True, True]]
    with pytest.raises(NotFinite, match="not finite for 1 of 3 images"):
        attribute(Roots(), images, targets, "grad")


def test_a_failing_image_fails_alone_wherever_it_stands():
    """Its logits are not finite, too."""

    class Inverse(torch.nn.Module):
        def forward(self, images):
            return (1 / (1 - images)).sum((2, 3))

    images, targets = torch.rand(3, 10, 8, 8), torch.tensor([1, 3, 0])
    images[0] = 1
    method = choose_methods(["ixg"], seed=0)["ixg"]
    for order in ([0, 1, 2], [1, 0, 2], [2, 1, 0]):
        maps = method(Inverse(), images[order], targets[order])
        assert maps.flatten(1).isnan().all(1).tolist() == [place == 0 for place in order]


def test_methods_that_do_not_fit_the_images_are_left_out(tmp_path):
    """As those of the usual ones do that have windows of 9, on images of 8x8."""
    chosen = ["grad", "occlusion5", "occlusion9", "deeplift"]
    results = evaluate({"m": Roots()}, planted(20), chosen, ["removal-least", "localisation"], tmp_path, images=20)
    assert {row.method for row in results.rows if row.metric == "removal-least"} == {"grad", "occlusion5", "deeplift"}
    assert "Occ9 cannot be used on m: a window of 9 does not fit into images of 8x8: take a smaller." in results.remarks


def test_a_failing_image_is_one_failed_sample_and_damaged_weights_stop_the_run(tmp_path):
    data = planted(20)
    data.val.images[3] = 0  # all channels dark
    results = evaluate({"m": Roots()}, data, ["grad"], ["removal-least"], tmp_path, images=20)
    row = results.row("m", "grad", "removal-least")
    assert (row.n, row.failed) == (20, 1)
    damaged = CoDANet([Layer(4, 2), Layer(10, 2)], image_channels=10).eval()
    damaged.dau_layers[1].A.data[0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="its weights are damaged"):
        evaluate({"m": damaged}, data, ["grad"], ["removal-least"], tmp_path / "damaged", images=20)
