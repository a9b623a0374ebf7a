"""A picture as one model reads it: parts of a logit, boxes, the cells of a multi-image."""

from dataclasses import replace

import pytest
import torch

from codanet.app.reading import Parts, cell, read, share
from codanet.app.views import equation
from codanet.data.tiling import tiled_square
from visitors import random_model


@pytest.mark.parametrize("box", [None, (0, 0, 16, 16), (3, 5, 9, 6), (15, 15, 16, 16)])
@pytest.mark.parametrize("versus", [None, 3])
def test_parts_add_up_to_the_logit(box, versus):
    reading = read(random_model(), torch.rand(3, 16, 16))
    parts = reading.parts(box, 1, versus)
    wanted = reading.logits[1] - (0 if versus is None else reading.logits[versus])
    assert parts.logit == pytest.approx(wanted.item())
    assert parts.inside + parts.outside + parts.bias == pytest.approx(parts.logit, abs=1e-4)
    assert parts.error < 1e-4
    if box == (3, 5, 9, 6):
        assert parts.inside == pytest.approx(reading.map(1, versus)[5, 3:9].sum().item(), abs=1e-5)


def test_a_sum_is_called_a_difference_only_where_there_are_two_classes():
    """Whatever b0 is: 0 is allowed, too."""
    parts = Parts(1.0, 0.0, 0.0, 1.0)
    assert "difference of the logits" not in equation(parts, None, None)
    assert "difference of the logits" in equation(parts, None, 2)


@pytest.mark.parametrize("at_once", [2, 16])
def test_maps_of_many_classes_are_made_when_they_are_asked_for(monkeypatch, at_once):
    monkeypatch.setattr("codanet.app.reading.CLASSES_AT_ONCE", at_once)
    model, image = random_model(), torch.rand(3, 16, 16)
    reading, expected = read(model, image), model.explain(image[None], "all")
    assert torch.equal(reading.logits, expected.logits[0])
    asked = set(range(len(reading.logits)) if at_once == 16 else reading.ranked(1))
    assert set(reading.pixels.known) == asked
    assert torch.allclose(reading.pixels[1], expected.pixels[0, 1], atol=1e-6)
    assert set(reading.pixels.known) == asked | {1}
    before = reading.pixels[1]
    reading.table(None)
    assert reading.pixels[1] is before
    whole = torch.stack([reading.pixels[c] for c in range(len(reading.logits))])
    assert torch.allclose(whole, expected.pixels[0], atol=1e-6)


def test_the_numbers_of_many_classes_leave_no_maps_behind(monkeypatch):
    """A thousand of them would be 200 MB in every visitor's session."""
    monkeypatch.setattr("codanet.app.reading.CLASSES_AT_ONCE", 2)
    model, image, box = random_model(), torch.rand(3, 16, 16), (3, 5, 9, 6)
    reading, expected = read(model, image), model.explain(image[None], "all")
    top = reading.ranked(1)[0]
    numbers = reading.numbers(model, box, top)
    assert len(reading.table(box).splitlines()) == 1 + model.num_classes
    assert list(reading.pixels.known) == [top]
    assert [each["class"] for each in numbers["classes"]] == [reading.class_names[c] for c in reading.ranked()]
    inside = expected.pixels[0, reading.ranked(), 5:6, 3:9].sum((1, 2))
    assert [each["inside"] for each in numbers["classes"]] == pytest.approx(inside.tolist(), abs=1e-5)


def test_a_box_on_the_red_half(opened):
    """Each class counts its own channel: +2g a pixel of its colour, -g one of another."""
    reading = opened.read
    left = reading.parts((0, 0, 8, 16), 0)
    right = reading.parts((8, 0, 16, 16), 0)
    assert left.inside == pytest.approx(right.outside)
    assert left.inside == pytest.approx(-2 * left.outside, rel=1e-5)
    assert reading.parts((0, 0, 8, 16), 0, 2).inside == pytest.approx(1.5 * left.inside, rel=1e-5)
    assert reading.ranked()[-1] == 1


def test_cells_and_shares():
    images = [torch.full((3, 4, 6), float(i)) for i in range(9)]
    whole = tiled_square(images)
    assert whole.shape == (3, 12, 18)
    assert whole[0, 5, 13] == 5
    with pytest.raises(ValueError, match="no square"):
        tiled_square(images[:5])
    reading = read(random_model(), torch.rand(3, 32, 32))
    assert cell(reading, 2, 3) == (16, 16, 32, 32)
    maps = torch.full((1, 32, 32), -1.0)
    maps[0, :16, 16:] = 3
    maps[0, 20, 2] = 3 * 256  # as much as that whole quarter
    planted = replace(reading, pixels=maps)
    assert [share(planted, 0, cell(planted, 2, index)) for index in range(4)] == [0, 0.5, 0.5, 0]
    assert share(replace(reading, pixels=-maps.abs()), 0, cell(reading, 2, 0)) == 0  # nothing speaks for it
