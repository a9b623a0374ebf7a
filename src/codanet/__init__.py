"""Convolutional Dynamic Alignment Networks: classifiers whose every decision is an exact sum of pixel contributions."""

from .data.image import read_image
from .dau import DAUConv2d, DAULinear
from .explanation import Explanation
from .network import CoDANet
from .weights import import_state_dict, load, save
from .zoo import create_model, list_models

__version__ = "0.1.0"

__all__ = [
    "CoDANet",
    "DAUConv2d",
    "DAULinear",
    "Explanation",
    "create_model",
    "import_state_dict",
    "list_models",
    "load",
    "read_image",
    "save",
]
