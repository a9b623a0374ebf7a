"""Pictures by their content: the colour at a place is the contribution planted there."""

import dataclasses
import re

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

from codanet import create_model, plot
from planted import BLUE, ENDS, RED, WHITE, box, panels, planted, shown


@pytest.mark.parametrize("palette", plot.PALETTES)
def test_heatmap_colours(palette):
    values = np.array([[-2.0, -1.0, 0.0], [0.0, 1.0, 7.0]])
    picture = plot.heatmap(values, scale=1.0, palette=palette)
    negative, positive = ENDS[palette]
    assert picture.shape == (1, 2, 3, 3)
    assert picture.dtype == np.uint8
    assert tuple(picture[0, 0, 0]) == tuple(picture[0, 0, 1]) == negative  # beyond the scale is the end of it
    assert tuple(picture[0, 1, 1]) == tuple(picture[0, 1, 2]) == positive
    assert tuple(picture[0, 0, 2]) == tuple(picture[0, 1, 0]) == WHITE


def test_heatmap_is_linear_and_shares_its_scale():
    maps = torch.stack([torch.full((4, 4), 0.5), torch.full((4, 4), -1.0)])
    picture = plot.heatmap(maps)
    assert picture.shape == (2, 4, 4, 3)
    assert tuple(picture[1, 0, 0]) == BLUE
    assert np.abs(picture[0, 0, 0].astype(int) - (0xF4, 0xA5, 0x82)).max() <= 2  # halfway to red


@pytest.mark.parametrize("palette", plot.PALETTES)
def test_palette_is_monotone_in_lightness(palette):
    side = plot.heatmap(np.linspace(0, 1, 50)[None], scale=1.0, palette=palette)[0, 0].astype(float)
    other = plot.heatmap(-np.linspace(0, 1, 50)[None], scale=1.0, palette=palette)[0, 0].astype(float)
    for shades in (side, other):
        assert (np.diff(shades @ (0.2126, 0.7152, 0.0722)) <= 1).all()


def test_colour_scale_is_the_percentile_of_all():
    values = np.linspace(-1, 0, 10001)
    assert plot.colour_scale(values) == pytest.approx(0.9975)
    assert plot.colour_scale(np.zeros((3, 3))) == 1.0
    sparse = np.zeros(100_000)
    sparse[7] = -4.0
    assert plot.colour_scale(sparse) == 4.0
    assert plot.colour_scale(torch.ones(2, 2, dtype=torch.bfloat16)) == 1.0


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        (np.ones((2, 2)), {"palette": "red-blu"}, "did you mean 'red-blue'"),
        (np.ones((2, 2)), {"palette": "jet"}, "orange-purple"),
        (np.ones((2, 2)), {"scale": 0.0}, "positive"),
        (np.ones((2, 2)), {"scale": float("nan")}, "positive"),
        (np.ones(2), {}, r"\[H, W\]"),
        (np.ones((0, 2)), {}, "at least one"),
        (np.array([[np.nan]]), {}, "finite"),
    ],
)
def test_heatmap_refuses(values, options, words):
    with pytest.raises(ValueError, match=words):
        plot.heatmap(values, **options)


def test_every_image_stands_above_its_map_on_one_scale():
    pixels = torch.zeros(3, 8, 8)
    pixels[0, 1, 2], pixels[1, 5, 6], pixels[2] = 4.0, -4.0, 2.0
    images = torch.zeros(3, 1, 8, 8)
    images[1, 0, 0, 7] = 1.0
    figure = plot.contribution_maps(planted(pixels, [2, 0, 1], images), columns=2)
    above = panels(figure)[::2]
    below = panels(figure)[1::2]
    assert len(above) == len(below) == 3
    assert tuple(shown(above[1])[0, 7]) == WHITE
    assert tuple(shown(above[1])[0, 0]) == (0, 0, 0)
    assert tuple(shown(below[0])[1, 2]) == RED
    assert tuple(shown(below[1])[5, 6]) == BLUE
    assert tuple(shown(below[0])[0, 0]) == WHITE
    np.testing.assert_array_equal(shown(below[2]), plot.heatmap(pixels[2], scale=plot.colour_scale(pixels))[0])
    for picture, contributions in zip(above, below, strict=True):
        assert box(picture)[0::2] == pytest.approx(box(contributions)[0::2])
        assert box(picture)[3] < box(contributions)[1]
    assert box(above[2])[1] > box(below[0])[3]  # the third wraps to a new row
    assert [axes.get_title() for axes in above] == ["2 p=0.95", "0 p=0.95", "1 p=0.95"]
    assert all(axes.get_title() == "" for axes in below)


def test_one_row_per_target():
    pixels = torch.stack([torch.full((8, 8), 1.0), torch.full((8, 8), -1.0)]).expand(2, 2, 8, 8)
    names = ("cat", "dog", "frog", "a very long name of a class indeed")
    figure = plot.contribution_maps(planted(pixels, [[0, 3], [3, 1]], names=names))
    drawn = panels(figure)
    assert len(drawn) == 6
    for first in (0, 3):
        assert tuple(shown(drawn[first + 1])[0, 0]) == RED
        assert tuple(shown(drawn[first + 2])[0, 0]) == BLUE
    assert drawn[0].get_title() == "cat p=0.95"
    assert drawn[1].get_title() == "for cat p=0.95"
    assert drawn[3].get_title() == "a very long name…\np=0.95"
    assert drawn[5].get_title() == "for dog p=0.50"


def test_a_target_that_is_not_the_prediction_is_named():
    logits = torch.tensor([[0.0, 2.0, 0.0, 0.0]])
    figure = plot.contribution_maps(planted(torch.ones(1, 8, 8), [3], logits=logits))
    assert [axes.get_title() for axes in panels(figure)] == ["1 p=0.88", "for 3 p=0.50"]


def test_own_titles_and_dollar_signs(tmp_path):
    explanation = planted(torch.ones(2, 8, 8), [0, 1])
    figure = plot.contribution_maps(explanation, titles=["$\\bad{", "b"])
    plot.save(figure, tmp_path / "a.png")
    with pytest.raises(ValueError, match="1 titles were given for 2 images"):
        plot.contribution_maps(explanation, titles=["a"])


@pytest.mark.parametrize(("height", "width"), [(8, 8), (28, 28), (32, 20), (64, 64), (1, 1), (2, 200), (600, 40)])
def test_pixels_are_whole_squares_in_the_png(tmp_path, height, width):
    pixels = torch.randn(1, height, width)
    figure = plot.contribution_maps(planted(pixels, [1]))
    path = plot.save(figure, tmp_path / "a.png")
    with Image.open(path) as picture:
        saved = np.asarray(picture.convert("RGB"))
    inches = figure.get_size_inches() * plot.DOTS_PER_INCH
    assert (saved.shape[1], saved.shape[0]) == tuple(np.rint(inches).astype(int))
    assert all(tuple(saved[y, x]) == WHITE for y in (0, -1) for x in (0, -1))
    for axes in figure.axes:
        left, top, right, bottom = box(axes)
        assert 0 <= round(left) < round(right) <= saved.shape[1]
        assert 0 <= round(top) < round(bottom) <= saved.shape[0]
    left, top, right, bottom = (round(edge) for edge in box(panels(figure)[1]))
    if max(height, width) > plot.LARGEST_CELL:
        assert max(bottom - top, right - left) == plot.LARGEST_CELL
        return
    factor = (right - left) // width
    assert (right - left, bottom - top) == (factor * width, factor * height)
    if factor > 4:  # the frame covers a dot or two of the outermost pixels
        centres = saved[top + factor // 2 : bottom : factor, left + factor // 2 : right : factor]
        np.testing.assert_array_equal(centres, plot.heatmap(pixels)[0])


def test_colour_bar_gives_the_scale_in_logits():
    pixels = torch.full((1, 8, 8), -0.25)
    figure = plot.contribution_maps(planted(pixels, [0]))
    (bar,) = [axes for axes in figure.axes if not axes.images]
    assert [label.get_text() for label in bar.get_yticklabels()] == ["−0.25", "0", "+0.25"]
    assert "logit" in bar.get_ylabel()


@pytest.mark.parametrize(("scale", "words"), [(0.0314, "0.031"), (99.4, "99"), (99.7, "100"), (120.4, "120")])
def test_scales_are_written_in_digits(scale, words):
    figure = plot.contribution_maps(planted(torch.ones(1, 8, 8), [0]), scale=scale)
    (bar,) = [axes for axes in figure.axes if not axes.images]
    assert [label.get_text() for label in bar.get_yticklabels()] == [f"−{words}", "0", f"+{words}"]


def test_colour_images_keep_their_colours():
    images = torch.zeros(1, 3, 8, 8)
    images[0, 0, 2, 3] = 1.0
    figure = plot.contribution_maps(planted(torch.ones(1, 8, 8), [0], images))
    assert tuple(shown(panels(figure)[0])[2, 3]) == (255, 0, 0)


def test_a_real_explanation(tmp_path):
    model = create_model("nano_coda", num_classes=10, image_channels=1).eval()
    explanation = model.explain(torch.rand(2, 1, 8, 8), "all")
    figure = plot.contribution_maps(explanation, palette="orange-purple")
    assert len(panels(figure)) == 2 * 11
    expected = plot.heatmap(explanation.pixels[1], plot.colour_scale(explanation.pixels), "orange-purple")
    np.testing.assert_array_equal(shown(panels(figure)[-1]), expected[-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": 0}, "at least one image"),
        ({"palette": "orange_purpel"}, "did you mean 'orange-purple'"),
    ],
)
def test_contribution_maps_refuses(change, words):
    with pytest.raises(ValueError, match=words):
        plot.contribution_maps(planted(torch.ones(1, 8, 8), [0]), **change)


def test_too_many_images_and_nan():
    with pytest.raises(ValueError, match="show fewer"):
        plot.contribution_maps(planted(torch.ones(300, 8, 8), [0] * 300), columns=1)
    explanation = planted(torch.ones(1, 8, 8), [0])
    with pytest.raises(ValueError, match="finite"):
        plot.contribution_maps(dataclasses.replace(explanation, rows=explanation.rows * torch.nan))


def test_save_by_suffix(tmp_path):
    figure = plot.contribution_maps(planted(torch.ones(1, 8, 8), [0]))
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for suffix, start in starts.items():
        path = plot.save(figure, tmp_path / "new" / f"why.{suffix}")
        assert path.read_bytes().startswith(start)
    upper = plot.save(figure, str(tmp_path / "WHY.PNG"))
    assert upper.read_bytes() == (tmp_path / "new" / "why.png").read_bytes()
    assert sorted(entry.name for entry in (tmp_path / "new").iterdir()) == ["why.pdf", "why.png", "why.svg"]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_equal_pictures_are_equal_files(suffix, tmp_path):
    figures = [plot.contribution_maps(planted(torch.ones(1, 8, 8), [0])) for _ in range(2)]
    one, two = (plot.save(figure, tmp_path / f"{n}.{suffix}").read_bytes() for n, figure in enumerate(figures))
    assert one == two


def test_save_knows_the_home_of_a_user(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    figure = plot.contribution_maps(planted(torch.ones(1, 8, 8), [0]))
    assert plot.save(figure, "~/why.png") == tmp_path / "home" / "why.png"
    assert [entry.name for entry in tmp_path.iterdir()] == ["home"]


def test_save_refuses(tmp_path):
    figure = plot.contribution_maps(planted(torch.ones(1, 8, 8), [0]))
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder.png").mkdir()
    refused = {"a.jpg": ".png, .svg", "a": "saved as", "folder.png": "is a folder", "file/a.png": "cannot be written"}
    for name, words in refused.items():
        with pytest.raises(ValueError, match=re.escape(words)) as caught:
            plot.save(figure, tmp_path / name)
        assert "\n" not in str(caught.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder.png"]


def test_a_failed_save_keeps_the_old_picture(tmp_path, monkeypatch):
    figure = plot.contribution_maps(planted(torch.ones(1, 8, 8), [0]))
    path = tmp_path / "why.png"
    path.write_bytes(b"old")

    def full(file, **options):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", full)
    with pytest.raises(ValueError, match="No space left"):
        plot.save(figure, path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["why.png"]


def test_rc_params_and_arrays_are_left_alone(tmp_path):
    pixels = torch.randn(2, 8, 8)
    explanation, before = planted(pixels, [0, 1]), dict(matplotlib.rcParams)
    rows, inputs = explanation.rows.clone(), explanation.inputs.clone()
    plot.save(plot.contribution_maps(explanation), tmp_path / "a.png")
    assert dict(matplotlib.rcParams) == before
    assert torch.equal(explanation.rows, rows)
    assert torch.equal(explanation.inputs, inputs)


def test_a_dark_style_does_not_darken_the_page(tmp_path):
    explanation = planted(torch.ones(1, 8, 8), [0])
    plain = plot.save(plot.contribution_maps(explanation), tmp_path / "a.png").read_bytes()
    dark = {"figure.facecolor": "black", "text.color": "white", "axes.grid": True, "image.origin": "lower"}
    with matplotlib.rc_context(dark | {"axes.edgecolor": "white", "ytick.color": "white", "font.size": 20}):
        styled = plot.save(plot.contribution_maps(explanation), tmp_path / "b.png").read_bytes()
    assert styled == plain
