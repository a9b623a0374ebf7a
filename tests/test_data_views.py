"""Views of photographs: the same again, within bounds, and the first as it is classified."""

import numpy as np
import pytest
from PIL import Image

from codanet._support.errors import DataError
from codanet.data.image import fit
from codanet.data.views import Views, _window


@pytest.fixture(scope="module")
def photograph() -> Image.Image:
    generator = np.random.default_rng(0)
    return Image.fromarray(generator.integers(0, 256, (90, 120, 3), dtype=np.uint8))


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image)


def test_the_first_view_is_what_is_classified(photograph):
    assert np.array_equal(pixels(Views((32, 32)).view(photograph, 5, 0)), pixels(fit(photograph, (32, 32))))


def test_a_view_can_be_made_again(photograph):
    views = Views((32, 48))
    first = [pixels(views.view(photograph, picture, number)) for picture in (1, 2) for number in (1, 2)]
    again = [pixels(views.view(photograph, picture, number)) for picture in (1, 2) for number in (1, 2)]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert len({a.tobytes() for a in first}) == 4
    assert all(a.shape == (32, 48, 3) for a in first)
    assert not np.array_equal(pixels(Views((32, 48), seed=1).view(photograph, 1, 1)), first[0])


@pytest.mark.parametrize("size", [(120, 90), (90, 120), (1, 1), (1000, 3), (3, 1000), (828, 1792), (1792, 828)])
@pytest.mark.parametrize("aspect", [1.0, 288 / 224, 224 / 288])
@pytest.mark.parametrize("least", [0.1, 0.4, 1.0])
def test_windows_lie_inside_the_photograph(size, aspect, least):
    generator = np.random.default_rng(0)
    for _ in range(200):
        left, top, right, bottom = _window(size, aspect, least, generator)
        assert 0 <= left < right <= size[0]
        assert 0 <= top < bottom <= size[1]


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (400, 1)])
def test_very_small_photographs_have_views(size):
    view = Views((16, 16)).view(Image.new("RGB", size, (200, 10, 10)), 0, 1)
    assert view.size == (16, 16)


@pytest.mark.parametrize("wrong", [{"least": 0}, {"least": 1.2}, {"colour": 1}, {"colour": -0.1}])
def test_other_settings_are_refused(wrong):
    with pytest.raises(DataError, match="pass the"):
        Views((8, 8), **wrong)
