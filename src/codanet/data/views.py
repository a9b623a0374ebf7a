"""Views of a photograph: a window of it at random, mirrored or not, in slightly other colours.

View 0 is the photograph fitted to the size, as it is when it is classified. A view depends on the seed, the picture
and its own number alone, so that it can be made again after an interruption and in any order.
"""

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageEnhance

from codanet._support.errors import DataError
from codanet.data.image import fit

ASPECT = 4 / 3  # the most that a window is wider or higher than its place in the view
TRIES = 10


@dataclass(frozen=True)
class Views:
    """How views are drawn.

    size: (H, W) of a view.
    least: the smallest share of the photograph that a window covers.
    colour: the most that brightness, contrast and saturation change, as a share.
    flip: whether every second view is mirrored, on average.
    """

    size: tuple[int, int]
    least: float = 0.4
    colour: float = 0.25
    flip: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise DataError(f"least is {self.least!r}: pass the smallest share of a photograph, above 0 and up to 1")
        if not 0 <= self.colour < 1:
            raise DataError(f"colour is {self.colour!r}: pass the share that colours change by, from 0 to below 1")

    def view(self, photograph: Image.Image, picture: int, number: int) -> Image.Image:
        """View `number` of a photograph that is known as `picture`, [H, W] as `size` says."""
        if number == 0:
            return fit(photograph, self.size)
        generator = np.random.default_rng([self.seed % 2**32, picture, number])
        height, width = self.size
        box = _window(photograph.size, width / height, self.least, generator)
        view = photograph.resize((width, height), Image.Resampling.BICUBIC, box=box)
        if self.flip and generator.random() < 0.5:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.colour:
            for kind in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
                view = kind(view).enhance(generator.uniform(1 - self.colour, 1 + self.colour))
        return view


def _window(
    size: tuple[int, int], aspect: float, least: float, generator: np.random.Generator
) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) of a window that covers `least` to all of the photograph, where that fits."""
    width, height = size
    for _ in range(TRIES):
        area = width * height * generator.uniform(least, 1)
        ratio = aspect * math.exp(generator.uniform(-math.log(ASPECT), math.log(ASPECT)))
        across, down = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if across <= width and down <= height:
            break
    else:  # a very long photograph: the largest window of the aspect
        down = min(height, width / aspect)
        across = min(width, down * aspect)  # w / a · a may be a rounding more than w
    left, top = generator.uniform(0, width - across), generator.uniform(0, height - down)
    return left, top, min(left + across, width), min(top + down, height)
