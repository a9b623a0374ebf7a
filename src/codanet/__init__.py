"""Convolutional Dynamic Alignment Networks: classifiers whose every decision is an exact sum of pixel contributions.

`import codanet` is cheap: PyTorch, and every name below, is imported on first use.
"""

from typing import TYPE_CHECKING, Any

from ._support.drawing import Drawing, drawn_by
from ._support.lazy import first_use
from ._support.version import __version__ as __version__

if TYPE_CHECKING:
    from . import app as app
    from . import attribution as attribution
    from . import benchmarks as benchmarks
    from . import cli as cli
    from . import data as data
    from . import dau as dau
    from . import evaluation as evaluation
    from . import export as export
    from . import integrations as integrations
    from . import metrics as metrics
    from . import models as models
    from . import plot as plot
    from . import report as report
    from . import rescale as rescale
    from . import training as training
    from .data.image import read_image
    from .dau import DAUConv2d, DAULinear
    from .models.architectures import Architecture, Layer, register_model
    from .models.explanation import Explanation
    from .models.hybrid import FeatureExplanation, HybridNet, hybrid
    from .models.linear_map import LinearMap
    from .models.network import CoDANet
    from .models.published import import_state_dict
    from .models.weights import load, save
    from .models.zoo import create_model, list_models

__all__ = [
    "Architecture",
    "CoDANet",
    "DAUConv2d",
    "DAULinear",
    "Explanation",
    "FeatureExplanation",
    "HybridNet",
    "Layer",
    "LinearMap",
    "create_model",
    "hybrid",
    "import_state_dict",
    "list_models",
    "load",
    "read_image",
    "register_model",
    "save",
]

_HOMES = {
    "Architecture": "models.architectures",
    "CoDANet": "models.network",
    "DAUConv2d": "dau",
    "DAULinear": "dau",
    "Explanation": "models.explanation",
    "FeatureExplanation": "models.hybrid",
    "HybridNet": "models.hybrid",
    "Layer": "models.architectures",
    "LinearMap": "models.linear_map",
    "create_model": "models.zoo",
    "hybrid": "models.hybrid",
    "import_state_dict": "models.published",
    "list_models": "models.zoo",
    "load": "models.weights",
    "read_image": "data.image",
    "register_model": "models.architectures",
    "save": "models.weights",
}
_ROOMS = (
    "app",
    "attribution",
    "benchmarks",
    "cli",
    "data",
    "dau",
    "evaluation",
    "export",
    "integrations",
    "metrics",
    "models",
    "plot",
    "report",
    "rescale",
    "training",
)
_HOMES |= {room: room for room in _ROOMS}

if not TYPE_CHECKING:  # so that a checker still tells a misspelt name

    def __getattr__(name: str) -> Any:
        value = first_use(__name__, name, _HOMES)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def _plot() -> Drawing:
    from . import plot

    return plot


drawn_by(_plot)  # an explanation shows itself, in a notebook and by why.save("why.png")
