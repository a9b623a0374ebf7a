"""Published figures, to stand beside the measured ones."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from .._support.limits import read_json
from ..attribution import GradCam, MethodSpec, Occlusion
from ..attribution.task import InputSettings
from ..models.hybrid import HybridNet
from ..models.network import CoDANet

NAMES = {  # what the file calls the methods
    "contributions": "CoDA",
    "grad": "Grad",
    "ixg": "IxG",
    "intgrad": "IntGrad",
    "gradcam": "GCam",
    "deeplift": "DeepLIFT",
}
# The published code covers windows of K - 1 pixels: its Occ5 is a window of 4x4, its Occ9 one of 8x8, stride 2.
OCCLUSIONS = {Occlusion(4, 2): "Occ5", Occlusion(8, 2): "Occ9"}
KINDS = {"localisation": "localisation", "removal-least": "pixel_removal"}  # what it calls the metrics
NEEDED = {"localisation": {"q25": 0, "median": 0, "q75": 0}, "pixel_removal": {"curve": 1}}  # and their dimensions


@dataclass(frozen=True)
class Published:
    """Of CoDA-Nets: by metric, temperature and method."""

    figures: dict[str, dict[str, dict[str, dict[str, Any]]]]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Published":
        """A file {"localisation": {"T=1000": {"CoDA": {"q25": …}}}, "pixel_removal": …}."""
        try:
            figures = read_json(Path(path))
            for kind, needed in NEEDED.items():
                for methods in figures[kind].values():
                    for entry in methods.values():
                        _check(entry, needed)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} is not a file of published figures ({type(error).__name__}): it needs localisation and "
                "pixel_removal, each by temperature and method, with finite numbers"
            ) from None
        return cls({kind: figures[kind] for kind in NEEDED})

    def temperature(self, metric: str, model: nn.Module | None) -> str:
        """The model's own if there are figures for it, or else the one with figures for the most methods."""
        if not isinstance(model, CoDANet) or isinstance(model, HybridNet) or metric not in KINDS:
            return ""
        figures, own = self.figures[KINDS[metric]], f"T={model.temperature:g}"
        return own if own in figures else max(figures, key=lambda each: len(figures[each]), default="")

    def entry(self, metric: str, model: nn.Module | None, method: str) -> dict[str, Any] | None:
        temperature = self.temperature(metric, model)
        if not temperature:
            return None
        return self.figures[KINDS[metric]][temperature].get(_as_published(method))

    def mean(self, metric: str, model: nn.Module | None, method: str) -> float:
        """NaN if it was not published."""
        return float((self.entry(metric, model, method) or {}).get("mean", np.nan))


def _check(entry: dict[str, Any], needed: dict[str, int]) -> None:
    """A ValueError, KeyError or TypeError for what could not be drawn or written beside what is measured."""
    for name, dimensions in (needed | ({"mean": 0} if "mean" in entry else {})).items():
        values = np.asarray(entry[name])
        if values.dtype.kind not in "if" or values.ndim != dimensions or not np.isfinite(values).all():
            raise ValueError(name)


def _as_published(method: str) -> str:
    """What the file calls a method with the settings of its figures.

    In either space, though there it is that of the image, and GradCAM enlarged either way, though there by nearest
    neighbours.
    """
    spec = MethodSpec.find(method)
    if spec is None:
        return ""
    settings = spec.settings
    settings = replace(settings, space="encoded") if isinstance(settings, InputSettings) else settings
    settings = replace(settings, interpolation="bilinear") if isinstance(settings, GradCam) else settings
    if isinstance(settings, Occlusion):
        return OCCLUSIONS.get(settings, "")
    return NAMES.get(spec.method.name, "") if settings == spec.method.settings else ""
