"""Every attribution method behind one contract: attribute(model, images, target) -> [N, H, W] (sec. 4.2, C.3).

`METHODS` is the single list. A method is called by its name there, which stands for the paper's settings, or by
settings of your own: `Occlusion(window=7, stride=4)`. The maps keep their signs: positive speaks for the class.

On a CoDA-Net every method works on the encoded input [x, 1-x], so that the maps can be compared with its own
contributions, and a removed pixel is zero in all encoded channels. The paper's published figures are of the other
choice, `space="image"` (`task.InputSettings`; docs/evaluation.md has both). On any other classifier they work on the
images as given; `task.baseline` says what a removed pixel is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor, nn

from codanet._support.messages import nearest
from codanet._support.numbers import check_whole
from codanet._support.progress import progress_bar
from codanet.models.explanation import Target
from codanet.models.network import CoDANet, bare

from .gradcam import GradCam, has_map
from .gradients import DeepLift, Grad, InputTimesGradient, IntegratedGradients
from .lime import Lime
from .occlusion import Occlusion
from .plain import Contributions, Random
from .rise import Rise
from .task import MethodSettings, prepare, space_of
from .untouched import untouched

__all__ = [
    "METHODS",
    "Contributions",
    "DeepLift",
    "Grad",
    "GradCam",
    "InputTimesGradient",
    "IntegratedGradients",
    "Lime",
    "Method",
    "MethodSettings",
    "Occlusion",
    "Random",
    "Rise",
    "attribute",
    "list_methods",
    "settings_of",
]


@dataclass(frozen=True)
class Method:
    """An entry of the registry."""

    name: str
    title: str  # as figures and tables call it
    about: str
    settings: MethodSettings
    needs: str = ""  # of the model: "coda", or "layer" that makes a map
    post_hoc: bool = True  # approximates the model from outside


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("contributions", "CoDA", "the CoDA-Net's own contributions", Contributions(), "coda", post_hoc=False),
        Method("grad", "Grad", "gradient of the class logit", Grad()),
        Method("ixg", "IxG", "input times gradient", InputTimesGradient()),
        Method("intgrad", "IntGrad", "integrated gradients, 20 steps", IntegratedGradients()),
        Method("gradcam", "GradCAM", "gradient-weighted last map before pooling", GradCam(), "layer"),
        Method("deeplift", "DeepLIFT", "differences from a baseline, by the rescale rule", DeepLift()),
        Method("occlusion5", "Occ5", "fall of the logit under a 5x5 window, stride 2", Occlusion(5, 2)),
        Method("occlusion9", "Occ9", "fall of the logit under a 9x9 window, stride 2", Occlusion(9, 2)),
        Method("rise", "RISE", "probability under 6000 random masks, s = 6, p1 = 0.1", Rise()),
        Method("lime", "LIME", "linear model of 256 samples over segments, the top 3", Lime()),
        Method("random", "Random", "noise, the baseline", Random()),
    )
}


def list_methods(model: nn.Module | None = None) -> list[str]:
    """The methods' names; with a model, those that can work on it as far as its modules tell."""
    names = list(METHODS)
    if model is not None:
        model = bare(model)
        lacking = {"coda": not isinstance(model, CoDANet), "layer": not has_map(model), "": False}
        names = [name for name in names if not lacking[METHODS[name].needs]]
    return names


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


def attribute(
    model: nn.Module,
    images: Tensor,
    target: Target = None,
    method: str | Method | MethodSettings = "contributions",
    *,
    seed: int = 0,
    progress: bool = False,
    batch_size: int | None = None,
) -> Tensor:
    """How much every pixel speaks for the class, [N, H, W], in the model's precision.

    images: [N, C, H, W], for a CoDA-Net RGB in [0, 1] or encoded. target: None for the predicted class, a class, one
    per image, or several per image [N, K] for maps [N, K, H, W], which contributions, occlusion and RISE make from the
    same passes through the model. An image gets the same map alone and in a batch. batch_size bounds how many images,
    perturbed ones included, are in the model at a time; by default it follows from their size (`task.FORWARD_PIXELS`).
    The model, its modes, hooks and gradients, the images and the global random numbers are left as they were.
    """
    settings = settings_of(method)
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model is a {type(model).__name__}: give a torch.nn.Module that makes [N, classes]")
    check_whole(0, seed=seed)
    if batch_size is not None:
        check_whole(1, batch_size=batch_size)
    model = bare(model)
    settings.check(model)
    title, number = type(settings).__name__, len(images) if isinstance(images, Tensor) and images.ndim else 0
    with untouched(model), progress_bar(title, number, shown=progress, unit="images") as advance:
        task = prepare(model, images, target, seed, batch_size, advance, space_of(settings))
        alone = task.targets.ndim == 2 and not settings.several_targets
        maps = settings.maps(task.spread() if alone else task).detach().view(*task.targets.shape, *task.size)
    broken = int((~maps.isfinite()).flatten(1).any(1).sum())
    if broken:
        raise ValueError(
            f"{title} gives values that are not finite for {broken} of {len(maps)} images: the model overflows on them"
        )
    return maps.to(task.inputs.dtype)
