"""Numbers as colours: red speaks for the class, blue against it, on one linear scale (supplement A)."""

from functools import lru_cache

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import Colormap, LinearSegmentedColormap
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .._support.messages import nearest
from ..attribution import has_sign
from ..models.explanation import Explanation

PERCENTILE = 99.75  # the scale's among the absolute values, so that a single peak does not bleach the rest

# From most negative to most positive: ColorBrewer's RdBu and PuOr with white for zero. PuOr sets orange against purple,
# which do not turn into each other for those who confuse red and green.
PALETTES = {
    "red-blue": "#2166ac #4393c3 #92c5de #d1e5f0 #ffffff #fddbc7 #f4a582 #d6604d #b2182b",
    "orange-purple": "#542788 #8073ac #b2abd2 #d8daeb #ffffff #fee0b6 #fdb863 #e08214 #b35806",
}
SHADES = 511  # odd, so that zero is white itself

# For maps without a zero to speak of, such as RISE's, from least to most important: its authors' own, and one that does
# not need telling red from green.
SEQUENTIAL = {"red-blue": "jet", "orange-purple": "cividis"}

STYLES = ("map", "overlay", "weights")


def colour_scale(values: Tensor | ArrayLike) -> float:
    """v of the scale (-v, v) that maps are shown on: the 99.75th percentile of their absolute values; never 0.

    Args:
        values: Maps of any shape, everything that is to share the scale.

    Raises:
        ValueError: If they are empty or not finite.

    Examples:
        >>> colour_scale([[0.0, -2.0]]) <= 2
        True
    """
    magnitudes = np.abs(finite_array(values))
    return float(np.percentile(magnitudes, PERCENTILE)) or float(magnitudes.max()) or 1.0


def heatmap(values: Tensor | ArrayLike, scale: float | None = None, palette: str = "red-blue") -> NDArray[np.uint8]:
    """Maps as RGB [N, H, W, 3]: positive red, negative blue, zero white.

    Args:
        values: [H, W] or [N, H, W].
        scale: The colours are linear over (-scale, scale); `colour_scale` of all maps if not given.
        palette: "red-blue" or, for those who confuse red and green, "orange-purple".

    Raises:
        ValueError: If values are not finite, or the palette is unknown.

    Examples:
        >>> heatmap([[0.0, 1.0]], scale=1)[0, 0, 0].tolist()
        [255, 255, 255]
    """
    colours, maps = diverging(palette), _maps(values)
    picture: NDArray[np.uint8] = colours((_relative(maps, scale) + 1) / 2, bytes=True)[..., :3]
    return picture


def importance(values: Tensor | ArrayLike, palette: str = "red-blue") -> NDArray[np.uint8]:
    """Maps as RGB [N, H, W, 3] from the least to the most important pixel of each, as RISE shows its own."""
    diverging(palette)  # refuses an unknown one
    maps = _maps(values)
    low, high = maps.min((1, 2), keepdims=True), maps.max((1, 2), keepdims=True)
    spread = np.where(high > low, high - low, 1)
    picture: NDArray[np.uint8] = colormaps[SEQUENTIAL[palette]]((maps - low) / spread, bytes=True)[..., :3]
    return picture


def method_colours(name: str, values: Tensor | ArrayLike, palette: str = "red-blue") -> NDArray[np.uint8]:
    """Maps of a method, by its name or title, as RGB [N, H, W, 3], each on a scale of its own.

    One whose maps have no sign (RISE) is in colours from the least important pixel to the most.
    """
    if not has_sign(name):
        return importance(values, palette)
    return np.concatenate([heatmap(each, None, palette) for each in _maps(values)])


def overlay(
    images: Tensor | ArrayLike,
    values: Tensor | ArrayLike,
    scale: float | None = None,
    palette: str = "red-blue",
    strength: float = 1.0,
) -> NDArray[np.uint8]:
    """Maps over their images in light grey, as RGB [N, H, W, 3]: the more a pixel contributes, the more it covers.

    Args:
        images: [N, C, H, W] in [0, 1].
        values: Maps [N, H, W].
        scale: A pixel of that size covers the image wholly; `colour_scale` of all maps if not given.
        palette: "red-blue" or "orange-purple".
        strength: 1, or less to let the image shine through; at 0 it is all that is seen.

    Raises:
        ValueError: If the sizes differ, or strength does not lie between 0 and 1.

    Examples:
        >>> overlay(np.zeros((1, 3, 4, 4)), np.ones((1, 4, 4))).shape
        (1, 4, 4, 3)
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"strength is {strength!r}: it must lie between 0, only the image, and 1")
    maps, shown = _maps(values), pictures(images)
    if maps.shape != shown.shape[:3]:
        raise ValueError(
            f"images are {list(shown.shape[:3])} and maps {list(maps.shape)}: give one map of the same size for each"
        )
    relative = _relative(maps, scale)
    grey = shown @ np.array([0.299, 0.587, 0.114])  # Rec. 601 luma
    backdrop = (255 - (255 - grey) * 0.55)[..., None]
    end = diverging(palette)(np.where(relative < 0, 0.0, 1.0), bytes=True)[..., :3]
    cover = strength * np.abs(relative)[..., None] ** 0.75  # weak contributions stay visible on grey
    return np.rint(backdrop * (1 - cover) + end * cover).astype(np.uint8)


def weight_colours(rows: Tensor | ArrayLike, inputs: Tensor | ArrayLike) -> NDArray[np.uint8]:
    """Rows of W [N, 2C, H, W] in the colours they ask for, RGBA [N, H, W, 4].

    w ∝ [x, 1-x] is shown as the colour x = w⁺ / (w⁺ + w̄⁺), with w̄ the weight of the inverse channel; opaque by ‖w‖,
    over the percentile of all that is shown. Where w·[x, 1-x] speaks against the class nothing is shown.
    """
    weights, encoded = finite_array(rows), finite_array(inputs)
    if weights.ndim != 4 or weights.shape != encoded.shape or weights.shape[1] % 2:
        raise ValueError(
            f"rows are {list(weights.shape)} and inputs {list(encoded.shape)}: both must be [N, 2C, H, W], as an "
            "explanation's rows and inputs are"
        )
    channels = weights.shape[1] // 2
    positive = np.maximum(weights, 0)
    colour, inverse = positive[:, :channels], positive[:, channels:]
    total = colour + inverse
    asked = np.divide(colour, total, out=np.full_like(total, 0.5), where=total > 0)
    strength = np.linalg.norm(weights, axis=1)
    alpha = np.clip(strength / colour_scale(strength), 0, 1) * ((weights * encoded).sum(1) > 0)
    return np.concatenate([pictures(asked), np.rint(alpha * 255).astype(np.uint8)[..., None]], -1)


def usual_style(explanation: Explanation) -> str:
    """The map itself, and of features the overlay, as they say little without their photograph."""
    return "overlay" if explanation.exact_for else "map"


def painted(
    explanation: Explanation, style: str | None = None, palette: str = "red-blue", scale: float | None = None
) -> NDArray[np.uint8]:
    """The maps of an explanation as RGB [N, K, H, W, 3], all on one scale; style is one of `STYLES`, or the usual."""
    style = style or usual_style(explanation)
    if style not in STYLES:
        raise ValueError(f"unknown style {style!r}{nearest(style, STYLES)}")
    if style == "weights" and explanation.exact_for:
        raise ValueError("the style is 'weights', but those of features have no colours: choose map or overlay")
    number = len(explanation)
    values = finite_array(explanation.shown)  # [N, (K,) H, W]
    height, width = values.shape[-2:]
    values = values.reshape(number, -1, height, width)
    flat, count = values.reshape(-1, height, width), values.shape[1]
    if style == "map":
        picture = heatmap(flat, scale, palette)
    elif style == "overlay":
        picture = overlay(explanation.images.repeat_interleave(count, 0), flat, scale, palette)
    else:
        inputs = explanation.inputs.repeat_interleave(count, 0)
        picture = on_white(weight_colours(explanation.rows.reshape(inputs.shape), inputs))
    return picture.reshape(number, count, height, width, 3)


def on_white(rgba: NDArray[np.uint8]) -> NDArray[np.uint8]:
    alpha = rgba[..., 3:] / 255
    return np.rint(rgba[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)


def pictures(images: Tensor | ArrayLike) -> NDArray[np.uint8]:
    """[N, C, H, W] in [0, 1] as RGB [N, H, W, 3]; anything but three channels is shown in grey."""
    array = finite_array(images)
    if array.ndim != 4:
        raise ValueError(f"images have shape {list(array.shape)}: give [N, C, H, W]")
    if array.shape[1] != 3:
        array = array.mean(1, keepdims=True).repeat(3, axis=1)
    return np.rint(np.clip(array, 0, 1) * 255).astype(np.uint8).transpose(0, 2, 3, 1)


def finite_array(values: Tensor | ArrayLike) -> NDArray[np.float64]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"values of shape {list(array.shape)} cannot be drawn: give at least one, all of them finite")
    return array


@lru_cache
def diverging(palette: str) -> Colormap:
    if palette not in PALETTES:
        raise ValueError(f"unknown palette {palette!r}{nearest(palette, PALETTES)}")
    return LinearSegmentedColormap.from_list(palette, PALETTES[palette].split(), N=SHADES)


def _maps(values: Tensor | ArrayLike) -> NDArray[np.float64]:
    array = finite_array(values)
    if array.ndim not in (2, 3):
        raise ValueError(f"values have shape {list(array.shape)}: give one map [H, W] or several [N, H, W]")
    return array.reshape(-1, *array.shape[-2:])


def _relative(maps: NDArray[np.float64], scale: float | None) -> NDArray[np.float64]:
    """In units of the scale, within [-1, 1]."""
    if scale is None:
        scale = colour_scale(maps)
    elif not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale!r}: it must be a positive number, in units of the values")
    return np.clip(maps / scale, -1, 1)
