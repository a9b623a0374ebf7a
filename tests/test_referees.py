"""Other people's metrics on answers that are known: DiFull and DiPart, the pointing game, ROAD, aggregate maps."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from codanet.attribution import METHODS, GradCam, Occlusion, Registered, settings_of
from codanet.attribution.task import prepare
from codanet.data import ImageData, MemorySplit
from codanet.data.pictures import Pictures
from codanet.data.tiling import Grids
from codanet.evaluation import Results, Row, evaluate
from codanet.evaluation.aggregates import aggregate_maps
from codanet.metrics import Disconnected, DoesNotFit, Scores, cell_shares, disconnected, pointing, road
from codanet.metrics.pointing import hits
from codanet.metrics.road import imputed
from codanet.models.classifier import probabilities
from codanet.models.hybrid import HybridNet, head_layers
from codanet.models.network import CoDANet, Layer
from codanet.models.resnet import ResNet

pytestmark = pytest.mark.usefixtures("one_thread")
SIDE, CLASSES = 8, 4


def coda() -> CoDANet:
    torch.manual_seed(0)
    return CoDANet([Layer(6, 2), Layer(CLASSES, 2, stride=2)], image_size=SIDE, temperature=4).eval()


def pictures(number: int = 12) -> Pictures:
    images = torch.randint(0, 256, (number, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(1))
    return Pictures(MemorySplit(images.to(torch.uint8), torch.arange(number) % CLASSES))


GRIDS = Grids(torch.tensor([[0, 1, 2, 3], [5, 4, 7, 6]]), torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]), 2)


@pytest.mark.parametrize("model", [coda(), ResNet(1, CLASSES).eval()], ids=["coda", "resnet"])
@pytest.mark.parametrize("part", [False, True])
def test_heads_see_their_own_cell(model, part):
    """DiFull's logits are those of the single images; with one cell both are the model itself."""
    cut, images = Disconnected(model, 2, part), GRIDS.images(pictures())
    with torch.no_grad():
        logits = cut(images).view(2, 4, CLASSES)
        alone = model(pictures().read([0, 1, 2, 3, 5, 4, 7, 6])[0]).view(2, 4, CLASSES)
        assert torch.allclose(logits, alone, atol=1e-5) != part
        whole = Disconnected(model, 1, part)(images)
        assert torch.allclose(whole, model(images), atol=1e-5)
        changed = images.clone()
        changed[:, :, :SIDE, SIDE:] = 0.5  # the second cell
        reached = (cut(changed).view(2, 4, CLASSES) != logits).any(2).any(0)
    assert reached.tolist() == ([True, True, True, True] if part else [False, True, False, False])


@pytest.mark.parametrize("part", [False, True])
def test_contributions_add_up_to_every_heads_logit(part):
    model = coda().double()
    cut, images = Disconnected(model, 2, part), GRIDS.images(pictures()).double()
    targets = torch.tensor([[0, 5, 10, 15], [3, 4, 9, 14]])
    maps = cut.own_maps(images, targets)
    logits = cut(images).gather(1, targets)
    assert (maps.sum((2, 3)) + model.logit_bias - logits).abs().max() < 1e-12


def test_difull_is_exactly_kept_by_contributions_and_not_by_gradcam():
    model = coda()
    own = disconnected(model, pictures(), GRIDS, Registered(METHODS["contributions"].settings))
    assert own.values.tolist() == [1.0] * 8
    assert own.extras["outside"].max() == 0
    for name in ("ixg", "intgrad"):
        assert disconnected(model, pictures(), GRIDS, Registered(settings_of(name))).extras["outside"].max() == 0
    assert disconnected(model, pictures(), GRIDS, Registered(GradCam())).extras["outside"].max() > 0.1
    window = disconnected(model, pictures(), GRIDS, Registered(Occlusion(3, 1))).extras["outside"].max()
    assert 0 < window <= 1  # windows reach across the border
    part = disconnected(model, pictures(), GRIDS, Registered(METHODS["contributions"].settings), part=True)
    assert part.metric == "dipart"
    assert 0 < part.extras["outside"].max() < 1  # the kernels of 3x3 do as well


def test_what_lies_outside_is_told_of_the_maps_that_did_not_fail(tmp_path):
    maps = torch.zeros(2, 4, 2 * SIDE, 2 * SIDE)
    maps[:, :, 0, 0] = 1
    maps[0, 0, 0, 0] = torch.nan
    for number, told, there in ((1, "nan", None), (8, "1", 1.0)):
        scores = disconnected(coda(), pictures(), GRIDS, maps)
        outside = {"outside": scores.extras["outside"][:number]}
        some = Scores("difull", scores.values[:number], scores.notes[:number], outside)
        results = Results(tmp_path, (Row("difull", "m", "grad"),), {("m", "grad", "difull"): some}, {})
        assert f"the largest |attribution| is {told} of the largest anywhere." in " ".join(results.sentences())
        assert results.as_json()["rows"][0]["outside"] == there


def test_every_head_has_the_probabilities_of_its_own_network():
    """Those of a CoDA-Net are sigmoids; those of a ResNet are a softmax over the classes of one head."""
    grid, cells = GRIDS.images(pictures())[:1], pictures().read([0, 1, 2, 3])[0]
    for model in (coda(), ResNet(1, CLASSES).eval()):
        cut = Disconnected(model, 2).eval()
        with torch.no_grad():
            expected = probabilities(model, model(cells)).flatten()
            torch.testing.assert_close(probabilities(cut, cut(grid))[0], expected)
    assert expected.sum().item() == pytest.approx(4)


def test_the_modes_of_a_model_that_is_cut_stay_as_they_were():
    model = ResNet(1, CLASSES).train()
    model.bn1.eval()
    modes = [module.training for module in model.modules()]
    disconnected(model, pictures(), GRIDS, Registered(settings_of("grad")))
    assert [module.training for module in model.modules()] == modes
    assert model.bn1.num_batches_tracked == 0


def test_what_cannot_be_cut_is_left_out(tmp_path):
    """An evaluation says so and measures the rest."""

    class Light(nn.Module):
        def forward(self, images):
            means = images.mean((2, 3))
            return torch.cat([means, -means.sum(1, keepdim=True)], 1) * 100

    with pytest.raises(DoesNotFit, match="its head cannot be cut off"):
        Disconnected(Light(), 2)
    images = torch.zeros(24, 3, SIDE, SIDE, dtype=torch.uint8)
    for number in range(24):
        images[number, number % 3] = 200
    split = MemorySplit(images, torch.arange(24) % 3)
    data = ImageData("lights", tuple("abcd"), split, split, (SIDE, SIDE), 3, "0" * 64)
    metrics = ["difull", "pointing", "road"]
    results = evaluate({"m": Light()}, data, ["ixg"], metrics, tmp_path, grids=1, grid_size=1, images=4, quiet=True)
    assert {row.metric for row in results.rows} == {"accuracy", "pointing", "road"}
    assert any("cannot be cut off" in remark for remark in results.remarks)


def test_the_backbone_of_a_hybrid_cannot_be_cut():
    hybrid = HybridNet(torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), head_layers(3, (4,), 2), image_size=16)
    with pytest.raises(DoesNotFit, match="sees the whole grid"):
        Disconnected(hybrid, 2)


def test_methods_know_what_they_look_at_when_it_is_cut():
    """LIME segments colours, not six channels; and a removed pixel is what it is for the network that was cut."""
    model, image = coda(), torch.zeros(1, 3, 32, 32)
    image[:, 0, :16], image[:, 2, 16:] = 1, 1
    cut = Disconnected(model, 2).eval()
    tasks = [prepare(network, image, torch.tensor([0])) for network in (model, cut)]
    whole, parts = (settings_of("lime")._segments(task, task.inputs) for task in tasks)
    assert int(whole.max()) >= 1
    assert np.array_equal(whole, parts)
    assert torch.equal(tasks[0].inputs, tasks[1].inputs)
    assert torch.equal(tasks[0].baseline, tasks[1].baseline)


def test_the_pointing_game():
    maps = torch.zeros(1, 4, 4, 4)
    maps[0, 0, 0, 0] = 1  # in its own cell
    maps[0, 1, 3, 3] = 1  # not
    maps[0, 2, 2, 0] = maps[0, 2, 0, 0] = 2  # two largest, one of them
    grids = Grids(torch.zeros(1, 4).long(), torch.zeros(1, 4).long(), 2)
    scores = pointing(coda(), pictures(), grids, maps)
    assert scores.values.tolist() == [1, 0, 0.5, 0]
    assert scores.unit == 4
    assert scores.notes[3] == "no positive attribution"
    maps[0, 0, 1, 1] = torch.nan
    assert hits("pointing", maps[0], torch.ones(4, 4, 4).bool()).failed == 1


def test_blocks_show_the_explained_cell_in_the_corner():
    maps = torch.zeros(1, 4, SIDE, SIDE)
    for cell, (row, column) in enumerate([(0, 0), (0, 4), (4, 0), (4, 4)]):
        maps[0, cell, row, column] = 3.0  # the first pixel of its cell
        maps[0, cell, (row + 4) % SIDE, column] = 1.0
    found = cell_shares(maps, 2).extras["blocks"]
    assert found.shape == (4, 8, 8)
    assert (found[:, 0, 0] == 750).all()
    assert (found[:, 4, 0] == 250).all()
    assert found.sum() == 4000


def test_aggregates_are_of_the_best_middle_and_worst(tmp_path):
    blocks = torch.zeros(60, 2, 2, dtype=torch.int64)
    blocks[:, 0, 0] = torch.arange(60)
    values = torch.arange(60).double()
    values[0] = torch.nan  # failed: in no group
    found = aggregate_maps(Scores("localisation", values, ("",) * 60, {"blocks": blocks}, unit=4))
    assert (1000 * found[:, 0, 0]).round(decimals=6).tolist() == [58, 30, 2]  # means of three each
    results = evaluate(
        {"m": sure()}, confident(), ["contributions", "gradcam"], ["localisation", "difull"], tmp_path,
        grids=3, grid_size=1, quiet=True,
    )  # fmt: skip
    assert results.row("m", "contributions", "difull").mean == 1
    assert "outside of the explained cell the largest |attribution| is 0 of" in (tmp_path / "table.md").read_text()
    for name in ("localisation", "difull"):
        with Image.open(tmp_path / f"{name}-m-maps.png") as picture:
            assert min(picture.size) > 300


def confident() -> ImageData:
    """Pictures with the labels that `sure` gives them."""
    images = torch.randint(0, 256, (40, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(2)).to(torch.uint8)
    split = MemorySplit(images, sure()(images / 255).argmax(1))
    return ImageData("confident", tuple("abcd"), split, split, (SIDE, SIDE), 3, "0" * 64)


def sure() -> CoDANet:
    torch.manual_seed(0)
    layers = [Layer(6, 2), Layer(CLASSES, 2, stride=2)]
    return CoDANet(layers, image_size=SIDE, temperature=4, logit_bias=5.0).eval()


def test_road_fills_a_plane_without_a_trace():
    """Neighbours' means continue a constant exactly, and a slope inside of the image."""
    constant = torch.full((3, 6, 6), 0.25)
    removed = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    assert torch.allclose(imputed(constant, removed), constant.double())
    slope = torch.linspace(0, 1, 9)[None, :, None].expand(1, 9, 9)
    hole = torch.zeros(9, 9, dtype=torch.bool)
    hole[3:6, 3:6] = True
    assert torch.allclose(imputed(slope, hole), slope.double(), atol=1e-6)
    assert torch.equal(imputed(slope, ~hole & False), slope.double())
    assert (imputed(slope, torch.ones(9, 9).bool()) == 0.5).all()


def test_road_falls_when_the_right_pixels_go_first():
    class Corner(nn.Module):
        """Class 0 is light in one corner, which its neighbours have not."""

        def forward(self, images):
            light = 20 * images[:, :, :2, :2].mean((1, 2, 3)) - 5
            return torch.stack([light, torch.zeros_like(light)], 1)

    images = torch.zeros(2, 3, SIDE, SIDE)
    images[:, :, :2, :2] = 1
    right = images.sum(1)
    good = road(Corner(), images, torch.zeros(2).long(), right)
    bad = road(Corner(), images, torch.zeros(2).long(), -right)
    assert good.values.max() < 0.02
    assert bad.values.min() > 0.8
    assert good.extras["curve"].shape == (2, 9)
    np.testing.assert_allclose(good.points, np.arange(1, 10) / 10)
    assert torch.equal(road(Corner(), images, torch.zeros(2).long(), right).values, good.values)


def test_road_takes_no_images_that_were_normalised():
    """It would cut them off at 0 and 1, the pixels that stay among them."""
    for images in (torch.full((1, 3, 4, 4), -0.5), torch.full((1, 3, 4, 4), 1.5), torch.full((1, 3, 4, 4), torch.nan)):
        with pytest.raises(ValueError, match=r"ROAD fills in pixels in \[0, 1\]"):
            road(coda(), images, torch.zeros(1).long(), torch.rand(1, 4, 4))
