"""The single list of methods; the command line, the page, the evaluation and the tests read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from codanet._support.messages import nearest
from codanet.models.network import bare

from .gradcam import GradCam
from .gradients import DeepLift, Grad, InputTimesGradient, IntegratedGradients
from .lime import Lime
from .occlusion import Occlusion
from .plain import Contributions, Random
from .rise import Rise
from .task import MethodSettings


@dataclass(frozen=True)
class Method:
    """An entry of the registry."""

    name: str
    title: str  # as figures and tables call it
    about: str
    settings: MethodSettings  # which also say whether the maps have a sign, and what the model must have
    post_hoc: bool = True  # approximates the model from outside


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("contributions", "CoDA", "the CoDA-Net's own contributions", Contributions(), post_hoc=False),
        Method("grad", "Grad", "gradient of the class logit", Grad()),
        Method("ixg", "IxG", "input times gradient", InputTimesGradient()),
        Method("intgrad", "IntGrad", "integrated gradients, 20 steps", IntegratedGradients()),
        Method("gradcam", "GradCAM", "gradient-weighted last map before pooling", GradCam()),
        Method("deeplift", "DeepLIFT", "differences from a baseline, by the rescale rule", DeepLift()),
        Method("occlusion5", "Occ5", "fall of the logit under a 5x5 window, stride 2", Occlusion(5, 2)),
        Method("occlusion9", "Occ9", "fall of the logit under a 9x9 window, stride 2", Occlusion(9, 2)),
        Method("rise", "RISE", "probability under 6000 random masks, s = 6, p1 = 0.1", Rise()),
        Method("lime", "LIME", "linear model of 256 samples over segments, the top 3", Lime()),
        Method("random", "Random", "noise, the baseline", Random()),
    )
}


def list_methods(model: nn.Module | None = None) -> list[str]:
    """The methods' names.

    Args:
        model: Leave out what cannot work on this one, as far as its modules tell.

    Examples:
        >>> list_methods()[:3]
        ['contributions', 'grad', 'ixg']
    """
    if model is None:
        return list(METHODS)
    return [name for name, method in METHODS.items() if not method.settings.lacks(bare(model))]


def settings_of(method: str | Method | MethodSettings, changes: Mapping[str, Any] | None = None) -> MethodSettings:
    """The settings behind a name, some of them changed: settings_of("rise", {"masks": 2000}) is Rise(masks=2000)."""
    if isinstance(method, MethodSettings):
        settings = method
    elif isinstance(method, Method):
        settings = method.settings
    elif isinstance(method, str) and method in METHODS:
        settings = METHODS[method].settings
    else:
        raise ValueError(f"unknown method {method!r}{nearest(method, METHODS)}")
    known = [field.name for field in fields(settings)]  # type: ignore[arg-type]
    for name in changes or {}:
        if name not in known:
            there = f"it has {', '.join(known)}" if known else "it has none"
            raise ValueError(f"{type(settings).__name__} has no setting {name!r}: {there}")
    return replace(settings, **(changes or {}))  # type: ignore[type-var]
