"""Contributions as pictures: colours (arrays in, arrays out), figures of many panels, and cards drawn fast."""

from .cards import card
from .colours import (
    PALETTES,
    PERCENTILE,
    STYLES,
    colour_scale,
    heatmap,
    importance,
    method_colours,
    overlay,
    painted,
    pictures,
    weight_colours,
)
from .maps import comparison, contribution_maps, multi_image, picture, top_classes
from .sheet import DOTS_PER_INCH, FORMATS, LARGEST_CELL, png, save
from .strips import layer_maps, strip

__all__ = [
    "DOTS_PER_INCH",
    "FORMATS",
    "LARGEST_CELL",
    "PALETTES",
    "PERCENTILE",
    "STYLES",
    "card",
    "colour_scale",
    "comparison",
    "contribution_maps",
    "heatmap",
    "importance",
    "layer_maps",
    "method_colours",
    "multi_image",
    "overlay",
    "painted",
    "picture",
    "pictures",
    "png",
    "save",
    "strip",
    "top_classes",
    "weight_colours",
]
