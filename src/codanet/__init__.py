"""Convolutional Dynamic Alignment Networks: classifiers whose every decision is an exact sum of pixel contributions."""

from importlib import import_module
from types import ModuleType

from ._support.version import __version__ as __version__
from .data.image import read_image
from .dau import DAUConv2d, DAULinear
from .models.explanation import Explanation
from .models.network import CoDANet
from .models.weights import import_state_dict, load, save
from .models.zoo import create_model, list_models

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

_ROOMS = (
    "app",
    "attribution",
    "benchmarks",
    "cli",
    "data",
    "evaluation",
    "export",
    "integrations",
    "metrics",
    "models",
    "plot",
    "report",
    "training",
)


def __getattr__(name: str) -> ModuleType:
    """A room on first use: `codanet.attribution` needs no import of its own."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})
