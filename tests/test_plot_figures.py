"""Overlays, weights in colour, comparisons, strips, layers, multi-images, cards and notebooks, by their content."""

import base64
import dataclasses
import io
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle
from PIL import Image

from codanet import CoDANet, plot
from codanet.models.layer_contributions import layer_contributions
from codanet.models.network import Layer
from codanet.plot.cards import fitted, font
from planted import BLUE, ENDS, RED, WHITE, bars, box, panels, planted, shown, titles

NAMES = ("cat", "dog", "frog", "ship", "<b>")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return CoDANet([Layer(8, 2), Layer(5, 2, stride=2)], image_size=16, class_names=NAMES).double().eval()


@pytest.mark.parametrize("palette", plot.PALETTES)
def test_overlay_covers_by_contribution(palette):
    values = torch.zeros(1, 4, 4)
    values[0, 0, 0], values[0, 1, 1], values[0, 2, 2] = 2.0, -2.0, 1.0
    image = torch.zeros(1, 3, 4, 4)  # black, so the light grey behind is known
    picture = plot.overlay(image, values, scale=2.0, palette=palette)[0]
    negative, positive = ENDS[palette]
    backdrop = tuple(picture[3, 3])
    assert tuple(picture[0, 0]) == positive
    assert tuple(picture[1, 1]) == negative
    assert len(set(backdrop)) == 1
    assert 90 < backdrop[0] < 150  # grey, and light enough to see colours on
    between = picture[2, 2].astype(int)
    assert (np.minimum(positive, backdrop) <= between).all()
    assert (between <= np.maximum(positive, backdrop)).all()
    faint = plot.overlay(image, values, scale=2.0, palette=palette, strength=0)[0]
    assert (faint == backdrop[0]).all()


def test_overlay_refuses():
    image, values = torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 4)
    with pytest.raises(ValueError, match="strength is 2"):
        plot.overlay(image, values, strength=2)
    with pytest.raises(ValueError, match="one map of the same size"):
        plot.overlay(image, torch.zeros(1, 5, 4))
    with pytest.raises(ValueError, match="images have shape"):
        plot.overlay(image[0], values)


def test_weights_show_the_colour_they_ask_for():
    colours = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.4, 0.8], [1.0, 1.0, 1.0], [0.5, 0.5, 0.5]])
    encoded = torch.cat([colours, 1 - colours], 1).T.reshape(1, 6, 2, 2)  # w ∝ [x, 1-x]
    strength = torch.tensor([1.0, 0.5, 1.0, -1.0]).view(1, 1, 2, 2)
    drawn = plot.weight_colours(encoded * strength / encoded.norm(dim=1, keepdim=True), encoded)
    flat = drawn.reshape(4, 4)
    np.testing.assert_array_equal(flat[:3, :3], np.rint(colours[:3].numpy() * 255))
    assert flat[:, 3].tolist() == [255, 128, 255, 0]  # by strength; nothing where it speaks against the class
    grey = plot.weight_colours(np.array([3.0, 1.0]).reshape(1, 2, 1, 1), np.ones((1, 2, 1, 1)))
    assert grey.tolist() == [[[[191, 191, 191, 255]]]]
    undecided = plot.weight_colours(np.zeros((1, 2, 1, 1)), np.ones((1, 2, 1, 1)))
    assert undecided[0, 0, 0, 3] == 0
    with pytest.raises(ValueError, match=r"\[N, 2C, H, W\]"):
        plot.weight_colours(encoded, encoded[:, :5])


def test_importance_runs_from_the_least_to_the_most_of_each():
    maps = np.array([[[0.1, 0.2], [0.3, 0.4]], [[10.0, 20.0], [30.0, 40.0]]])
    picture = plot.importance(maps)
    np.testing.assert_array_equal(picture[0], picture[1])  # each on its own scale
    assert picture[0, 0, 0, 2] > 100 > picture[0, 0, 0, 0]  # blue
    assert picture[0, 1, 1, 0] > 100 > picture[0, 1, 1, 2]  # red
    assert not np.array_equal(plot.importance(maps, "orange-purple"), picture)
    assert plot.importance(np.full((2, 2), 3.0)).shape == (1, 2, 2, 3)
    with pytest.raises(ValueError, match="unknown palette"):
        plot.importance(maps, "jet")


def test_styles(model):
    explanation = model.explain(torch.rand(2, 3, 16, 16), "all")
    for style in plot.STYLES:
        assert plot.painted(explanation, style).shape == (2, 5, 16, 16, 3)
        figure = plot.contribution_maps(explanation, style=style)
        np.testing.assert_array_equal(shown(panels(figure)[-1]), plot.painted(explanation, style)[1, 4])
        assert len(bars(figure)) == (style != "weights")  # colours of W have no scale in logits
    with pytest.raises(ValueError, match="did you mean 'overlay'"):
        plot.painted(explanation, "overlays")


def test_comparison_scales():
    pixels = torch.zeros(2, 8, 8)
    pixels[0], pixels[1] = 1.0, 4.0
    small, large = torch.full((2, 8, 8), 1e-3), torch.full((2, 8, 8), 1e3)
    small[1] *= -7
    ramp = torch.linspace(5, 6, 64).view(1, 8, 8).expand(2, 8, 8)
    figure = plot.comparison(planted(pixels, [0, 1]), {"IxG": small, "GradCAM": large, "RISE": ramp})
    drawn = [shown(axes) for axes in panels(figure)]
    assert len(drawn) == 2 * 5
    scale = plot.colour_scale(pixels)
    np.testing.assert_array_equal(drawn[1], plot.heatmap(pixels[0], scale)[0])  # the own maps share one scale
    assert tuple(drawn[6][0, 0]) == RED
    assert tuple(drawn[2][0, 0]) == tuple(drawn[3][0, 0]) == RED  # the others each have their own
    assert tuple(drawn[7][0, 0]) == BLUE
    np.testing.assert_array_equal(drawn[4], plot.importance(ramp[0])[0])
    assert titles(figure)[:5] == ["0 p=0.95", "contributions", "IxG", "GradCAM", "RISE"]
    assert titles(figure)[5:] == ["1 p=0.95", "", "", "", ""]
    assert "scale of its own" in figure.texts[0].get_text()
    places = [box(axes) for axes in panels(figure)]
    assert all(first[2] < second[0] for first, second in pairwise(places[:5]))
    assert places[5][1] > places[0][3]


def test_comparison_of_several_targets():
    pixels = torch.stack([torch.full((8, 8), 1.0), torch.full((8, 8), -1.0)]).expand(1, 2, 8, 8)
    explanation = planted(pixels, [[0, 3]], names=("cat", "dog", "frog", "ship"))
    beside = plot.comparison(explanation)
    assert titles(beside) == ["cat p=0.95", "for cat p=0.95", "for ship p=0.50"]
    below = plot.comparison(explanation, {"IxG": torch.ones(1, 2, 8, 8) * torch.tensor([2.0, -2.0]).view(1, 2, 1, 1)})
    drawn = panels(below)
    assert len(drawn) == 5  # the image once, then two rows of two
    assert [tuple(shown(axes)[0, 0]) for axes in drawn[1:]] == [RED, RED, BLUE, BLUE]
    assert box(drawn[3])[1] > box(drawn[1])[3]
    with pytest.raises(ValueError, match=r"\[1, 2, H, W\]"):
        plot.comparison(explanation, {"IxG": torch.ones(1, 8, 8)})
    with pytest.raises(ValueError, match=r"'IxG' have shape \[2, 8, 8\]: they must be \[1, H, W\]"):
        plot.comparison(planted(torch.ones(1, 8, 8), [0]), {"IxG": torch.ones(2, 8, 8)})


def test_top_classes_are_the_most_probable(model):
    image = torch.rand(1, 3, 16, 16)
    figure = plot.top_classes(model, image, 3)
    explanation = model.explain(image, "all")
    order = explanation.logits[0].topk(3).indices
    assert [title.split()[1] for title in titles(figure)[1:]] == [NAMES[i] for i in order]
    expected = plot.heatmap(explanation.pixels[0, order], plot.colour_scale(explanation.pixels[0, order]))
    for axes, picture in zip(panels(figure)[1:], expected, strict=True):
        np.testing.assert_array_equal(shown(axes), picture)
    with pytest.raises(ValueError, match="number is 6: it must be from 1 to the model's 5"):
        plot.top_classes(model, image, 6)


def test_multi_image_marks_the_cell_and_says_the_share():
    pixels = torch.zeros(1, 4, 8, 8)
    for index in range(4):
        row, column = divmod(index, 2)
        pixels[0, index, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 1.0
    pixels[0, 3] = 1.0  # uniform
    pixels[0, 2, 0, 0] = -1.0  # negative evidence does not count
    figure = plot.multi_image(planted(pixels, [[0, 1, 2, 3]], names=("cat", "dog", "frog", "a long name")), 2)
    assert titles(figure) == ["2 x 2 images", "cat 100%", "dog 100%", "frog 100%", "a long name 25%"]
    whole, first, *_ = panels(figure)
    assert box(whole)[2] - box(whole)[0] > 1.8 * (box(first)[2] - box(first)[0])
    (mark,) = [patch for patch in panels(figure)[2].patches if isinstance(patch, Rectangle)]
    assert mark.get_bbox().bounds == (3.5, -0.5, 4, 4)
    assert tuple(shown(panels(figure)[2])[0, 7]) == RED
    assert tuple(shown(panels(figure)[2])[7, 0]) == WHITE


@pytest.mark.parametrize(
    ("pixels", "targets", "side", "words"),
    [
        (torch.ones(1, 4, 8, 8), [[0, 1, 2, 3]], 3, "is one image with 9"),
        (torch.ones(2, 4, 8, 8), [[0, 1, 2, 3]] * 2, 2, "2 images"),
        (torch.ones(1, 4, 7, 8), [[0, 1, 2, 3]], 2, "7 x 8 pixels cannot be cut"),
    ],
)
def test_multi_image_refuses(pixels, targets, side, words):
    with pytest.raises(ValueError, match=words):
        plot.multi_image(planted(pixels, targets), side)


def test_a_multi_image_of_one():
    """One target is one, whether it was given as a number or as a list."""
    for pixels, targets in ((torch.ones(1, 1, 8, 8), [[0]]), (torch.ones(1, 8, 8), [0])):
        assert titles(plot.multi_image(planted(pixels, targets), 1))[1].endswith("100%")


def test_strip_scales():
    images = torch.rand(2, 3, 8, 8)
    low = torch.stack([torch.full((8, 8), 0.1), torch.full((8, 8), 0.2)])
    maps = {"T = 10": low, "T = 1000": 100 * low}

    def colours(scale):
        figure = plot.strip(images, maps, scale=scale)
        return figure, [tuple(shown(axes)[0, 0]) for axes in panels(figure)]

    figure, drawn = colours("column")
    assert drawn[2] == drawn[1] != RED
    assert drawn[4] == drawn[5] == RED
    assert titles(figure)[:3] == ["", "T = 10\n±0.2", "T = 1000\n±20"]
    assert not bars(figure)
    figure, drawn = colours("each")
    assert [drawn[i] for i in (1, 2, 4, 5)] == [RED] * 4
    assert titles(figure)[4:] == ["±0.2", "±20"]
    figure, drawn = colours("all")
    assert drawn[5] == RED
    assert drawn[1] != RED
    assert len(bars(figure)) == 1
    np.testing.assert_array_equal(shown(panels(figure)[3]), plot.pictures(images)[1])
    wrapped = [box(axes) for axes in panels(plot.strip(images[:1], {n: m[:1] for n, m in maps.items()}, columns=2))]
    assert wrapped[2][0] == pytest.approx(wrapped[0][0])
    assert wrapped[2][1] > wrapped[0][3]
    named = plot.strip(images, maps, titles=["cat", "dog\np=0.5"])
    assert [titles(named)[i] for i in (0, 3)] == ["cat", "dog\np=0.5"]


@pytest.mark.parametrize(
    ("maps", "options", "words"),
    [
        ({}, {}, "at least one setting"),
        ({"a": torch.ones(2, 8, 8)}, {}, r"'a' have shape \[2, 8, 8\]: they must be \[1, H, W\]"),
        ({"a": torch.ones(1, 8, 8)}, {"scale": "row"}, "'all', 'column' or 'each'"),
        ({"a": torch.ones(1, 8, 8)}, {"titles": ["a", "b"]}, "2 titles"),
    ],
)
def test_strip_refuses(maps, options, words):
    with pytest.raises(ValueError, match=words):
        plot.strip(torch.rand(1, 3, 8, 8), maps, **options)


def test_every_layer_adds_up_to_the_logit(model):
    images = torch.rand(3, 3, 16, 16, dtype=torch.float64)
    for target in (None, 2, [0, 4, 1]):
        maps = layer_contributions(model, images, target)
        explanation = model.explain(images, target)
        assert [list(each.shape) for each in maps] == [[3, 16, 16], [3, 16, 16], [3, 8, 8]]
        torch.testing.assert_close(maps[0], explanation.pixels, atol=1e-12, rtol=1e-10)
        for each in maps:
            torch.testing.assert_close(each.sum((1, 2)), explanation.target_logits - explanation.bias)
    figure = plot.layer_maps(model, images[:1], "dog")
    assert [title.split("\n")[0] for title in titles(figure)] == ["", "image", "layer 1", "layer 2"]
    widths = {box(axes)[2] - box(axes)[0] for axes in panels(figure)}
    assert max(widths) - min(widths) < 1e-6  # coarse maps are as large as fine ones
    with pytest.raises(ValueError, match="one class at a time"):
        layer_contributions(model, images, "all")


def test_coarse_maps_beside_a_large_image_stay_squares(tmp_path):
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(1, 2, 2)  # [1, 4, 4]
    figure = plot.strip(torch.ones(1, 1, 600, 600), {"layer 1": signs})
    with Image.open(plot.save(figure, tmp_path / "a.png")) as picture:
        dots = np.asarray(picture.convert("RGB"))
    left, top, right, bottom = (round(place) for place in box(panels(figure)[1]))
    inside = dots[top + 2 : bottom - 2, left + 2 : right - 2].reshape(-1, 3)
    assert {tuple(colour) for colour in np.unique(inside, axis=0)} == {RED, BLUE}  # nothing between the two


def test_card_is_crisp_and_even():
    image = np.zeros((8, 8, 3), np.uint8)
    image[2, 5] = (10, 200, 30)
    values = torch.zeros(8, 8)
    values[7, 0] = 1.0
    made = plot.card([image, plot.heatmap(values)[0]], ["$a_b", "long " * 30], scale=0.5)
    assert made.width % 2 == made.height % 2 == 0
    dots = np.asarray(made)
    assert tuple(dots[0, 0]) == tuple(dots[-1, -1]) == WHITE
    places = np.argwhere((dots == (10, 200, 30)).all(-1))
    assert len(places) == 30 * 30  # 240 dots for 8 pixels: a square of 30
    assert (np.ptp(places, axis=0) == 29).all()
    red = np.argwhere((dots[: 16 + 26 + 240] == RED).all(-1))  # above the colour bar
    assert (red.min(0).tolist(), red.max(0).tolist()) == ([252, 270], [281, 299])
    assert font().getlength(fitted("long " * 30, 240)) <= 240
    assert fitted("two\nlines", 240) == "two lines"
    with pytest.raises(ValueError, match="1 panels and 2 titles"):
        plot.card([image], ["a", "b"])


def test_cards_of_any_size():
    assert plot.card([np.zeros((1, 1, 3), np.uint8)], ["a"]).size == (2 * 16 + 240, 2 * 16 + 26 + 240)
    wide = plot.card([np.zeros((10, 5000, 3), np.uint8)], ["a"])
    assert wide.width == 2 * 16 + 240


def test_cards_are_saved_as_png(tmp_path):
    made = plot.card([np.zeros((8, 8, 3), np.uint8)], ["a"])
    with Image.open(plot.save(made, tmp_path / "a.png")) as back:
        np.testing.assert_array_equal(np.asarray(back), np.asarray(made))
    with pytest.raises(ValueError, match="saved as .png"):
        plot.save(made, tmp_path / "a.svg")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]


def test_pages_look_the_same_on_a_dark_and_a_light_screen(tmp_path):
    explanation = planted(torch.ones(1, 8, 8), [0])
    with Image.open(explanation.save(tmp_path / "a.png")) as picture:
        dots = np.asarray(picture.convert("RGBA"))
    assert (dots[..., 3] == 255).all()  # nothing shines through
    assert (dots[[0, 0, -1, -1], [0, -1, 0, -1], :3] == 255).all()
    title = dots[24:54, 24:260, :3]
    assert title.min() < 60  # dark words on white
    svg = explanation.save(tmp_path / "a.svg").read_text()
    first = svg[svg.index('id="patch_1"') :]
    assert "fill: #ffffff" in first[: first.index("</g>")]
    assert explanation.save(tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


def test_an_svg_holds_the_very_pixels_as_squares(tmp_path):
    pixels = torch.randn(1, 8, 8)
    svg = planted(pixels, [0]).save(tmp_path / "a.svg").read_text()
    images = re.findall(r"<image [^>]*base64,([^\"]*)\"[^>]*>", svg)
    found = [np.asarray(Image.open(io.BytesIO(base64.b64decode(each))).convert("RGB")) for each in images]
    np.testing.assert_array_equal(found[1], plot.heatmap(pixels)[0])
    assert svg.count("image-rendering:pixelated") >= 2


def test_an_explanation_shows_itself_in_a_notebook(model):
    explanation = model.explain(torch.rand(12, 3, 16, 16), torch.tensor([[4, 0]] * 12))
    assert explanation._repr_png_().startswith(b"\x89PNG")
    page = explanation._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "The first 8 of 12 images" in page
    assert page.count("<tr>") == 1 + 8 * 2
    cells = page.split("<tr>")[2].replace("</td>", "").split("<td")
    positive, negative, bias, logit, probability = (float(cell.split(">")[1].split("<")[0]) for cell in cells[3:8])
    assert positive + negative + bias == pytest.approx(logit, abs=0.02)
    assert probability == pytest.approx(explanation.probabilities[0, 4].item(), abs=0.01)
    assert "The first" not in model.explain(torch.rand(1, 3, 16, 16))._repr_html_()


def test_plain_arrays_are_ones_own(model):
    explanation = model.explain(torch.rand(2, 3, 16, 16), [1, 2])
    arrays = explanation.to_numpy()
    assert arrays["pixels"].shape == (2, 16, 16)
    np.testing.assert_array_equal(arrays["contributions"], explanation.contributions.numpy())
    for name in ("logits", "targets", "rows"):
        before = getattr(explanation, name).clone()
        arrays[name][:] = 0
        assert torch.equal(getattr(explanation, name), before)
        assert before.abs().sum() > 0
    half = dataclasses.replace(explanation, rows=explanation.rows.bfloat16())
    assert half.to_numpy()["rows"].dtype == np.float32


def test_parts_of_an_explanation(model):
    explanation = model.explain(torch.rand(3, 3, 16, 16), torch.tensor([[0, 1]] * 3))
    assert torch.equal(explanation.part(-1).pixels, explanation.pixels[2:])
    assert torch.equal(explanation.part(slice(1, 3), slice(1)).pixels, explanation.pixels[1:3, :1])
    with pytest.raises(ValueError, match="image 3 was asked for"):
        explanation.part(3)
