"""Quantus's metrics by name, `quantus:pixel-flipping`, with settings, `quantus:sufficiency:threshold=0.5`.

What does not work in Quantus 0.6 is fixed here on a copy of the metric: the area under a curve (numpy 2.4
has no trapz), IROF (a mask of one channel for an input of several) and SmoothMPRT (asks Quantus for maps, not the
function that it was given). Completeness is refused, for it compares floating-point sums by ==.
"""

from __future__ import annotations

import ast
import copy
import inspect
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .._support.extras import optional
from .._support.messages import nearest, reason
from .._support.specs import split_spec
from ..attribution.untouched import untouched
from ..models.classifier import like, logits_of, network_input, probabilities
from .metric import DoesNotFit, Metric, Sample
from .scores import Scores
from .share import box_masks

PREFIX = "quantus:"
NO_NUMBER = "Quantus gives no finite number"
SMOOTH, IROF, COMPLETENESS = "SmoothMPRT", "IROF", "Completeness"
OLD_NAMES = ("ModelParameterRandomisation",)
# A score per image, removed pixels at 0, and a row of pixels at a time, so that an image takes 6H passes, not 6HW.
OURS: dict[str, Callable[[Sample], object]] = {
    "return_aggregate": lambda sample: False,
    "disable_warnings": lambda sample: True,
    "display_progressbar": lambda sample: False,
    "perturb_baseline": lambda sample: 0.0,
    "features_in_step": lambda sample: sample.images.shape[-1],
    "return_auc_per_sample": lambda sample: True,
    "return_average_correlation": lambda sample: True,
    "num_classes": lambda sample: logits_of(sample.model, sample.images[:1]).shape[1],
}

Explain = Callable[..., NDArray[np.floating[Any]]]  # (model, inputs, targets, **kwargs) -> maps [N, 1, H, W]


def quantus_metric(name: str) -> Metric:
    """The entry for `quantus:NAME`, or `quantus:NAME:setting=value`, as the registry has them.

    Args:
        name: Of a class of Quantus in lower case with hyphens, `pixel-flipping` for PixelFlipping, and settings of its
            constructor. Without settings Quantus's own are taken, but a removed pixel is 0, and a step a row of pixels.

    Raises:
        ValueError: If Quantus has no such metric or the metric no such setting.
        MissingPackage: If Quantus is not installed.

    Examples:
        >>> quantus_metric("quantus:sparseness").higher_is_better
        True
    """
    return _metric(name)


@lru_cache(maxsize=256)
def _metric(name: str) -> Metric:
    plain, written = split_spec(name.removeprefix(PREFIX))
    known = quantus_names()
    if plain not in known:
        raise ValueError(f"Quantus has no metric {plain!r}{nearest(plain, known)}")
    kind = known[plain]
    refuse(kind)
    taken = _taken(kind)
    for key in written:
        if key not in taken:
            raise ValueError(f"{name} has no setting {key!r}{nearest(key, taken)}")
    settings = {key: _value(value) for key, value in written.items()}
    told = ["of the probability" if _of_probabilities(kind) else "of the logit"]
    told += [f"{key} = {value}" for key, value in settings.items()]
    if "features_in_step" in taken and "features_in_step" not in settings:
        told.append("a row of pixels in a step")
    if "perturb_baseline" in taken and "perturb_baseline" not in settings:
        told.append("removed pixels are 0")
    higher = kind.score_direction.value == "higher"
    return Metric(
        name,
        f"Quantus {kind.name}" + "".join(f":{key}={value}" for key, value in written.items()),
        higher,
        f"{kind.__name__} of Quantus {_version()}, {kind.evaluation_category.value.lower()}" + f" ({', '.join(told)})",
        "boxes" if kind.evaluation_category.value == "Localisation" else "maps",
        lambda sample: _run(name, kind, settings, sample),
    )


def quantus_names() -> dict[str, Any]:
    """The metrics of Quantus, as they are written on a command line, with their classes."""
    with optional():
        import quantus
    found = {
        name: kind
        for name, kind in vars(quantus).items()
        if inspect.isclass(kind) and issubclass(kind, quantus.Metric) and kind is not quantus.Metric
    }
    return {_hyphened(name): found[name] for name in sorted(found) if name not in OLD_NAMES}


def _hyphened(name: str) -> str:
    """PixelFlipping to pixel-flipping, SmoothMPRT to smooth-mprt."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def _version() -> str:
    from importlib.metadata import version

    return version("quantus")


def _taken(kind: Any) -> list[str]:
    """The settings that a metric's constructor names; it would swallow any other in silence."""
    return [
        name
        for name, parameter in inspect.signature(kind.__init__).parameters.items()
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]


def _value(written: str) -> Any:
    """A number, a list, True, None, or else the words themselves."""
    try:
        return ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return written


def refuse(kind: Any) -> None:
    """What cannot mean anything here."""
    if kind.__name__ == COMPLETENESS:
        raise ValueError(
            "Quantus's Completeness asks two floating-point sums to be the same to the last bit, which no method's "
            "are: take the metric completeness, which measures how far they are from it"
        )


def _run(name: str, kind: Any, settings: Mapping[str, Any], sample: Sample) -> Scores:
    taken = _taken(kind)
    ours = {key: value(sample) for key, value in OURS.items() if key in taken}
    masks = None
    if kind.evaluation_category.value == "Localisation":
        boxes = box_masks(sample.pictures.boxes(list(sample.indices)), sample.images.shape[2], sample.images.shape[3])
        masks = boxes[:, None].numpy()

    def explain(model: nn.Module, inputs: Any, targets: Any, **kwargs: Any) -> NDArray[np.floating[Any]]:
        model = model.inner if isinstance(model, Probabilities) else model
        images = like(model, torch.as_tensor(np.asarray(inputs)))
        return sample.attribute(model, images, torch.as_tensor(np.asarray(targets)).long())[:, None].cpu().numpy()

    try:
        with untouched(sample.model):
            metric = kind(**{**ours, **settings})
            inputs = network_input(sample.model, sample.images)
            maps = sample.maps[:, None].to(inputs.dtype).numpy()
            model = Probabilities(sample.model).eval() if _of_probabilities(kind) else sample.model
            found = scored(metric, model, inputs, sample.labels, explain, {}, sample.seed, maps, masks)
            values = _values(found, len(sample.labels))
    except Exception as error:  # whatever its code meets; what is ours has been checked before
        raise DoesNotFit(f"{name} cannot be measured ({type(error).__name__}: {reason(error)})") from error
    finite = values.isfinite()
    notes = tuple("" if good else NO_NUMBER for good in finite.tolist())
    return Scores(name, values.masked_fill(~finite, torch.nan), notes)


class Probabilities(nn.Module):
    """A classifier with its probabilities as outputs, for the metrics that Quantus means for a softmax's."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        return probabilities(self.inner, self.inner(images))


def _of_probabilities(kind: Any) -> bool:
    return inspect.signature(kind.__call__).parameters["softmax"].default is True


def _values(found: Any, number: int) -> Tensor:
    """One number per image; a curve per image becomes its mean."""
    if isinstance(found, Mapping):
        raise ValueError("it gives no score per image")
    values = torch.as_tensor(np.asarray(found, dtype=float))
    values = values.flatten(1).mean(1) if values.ndim > 1 else values
    if values.shape != (number,):
        raise ValueError(f"it gives {list(values.shape)} numbers for {number} images")
    return values


def scored(
    metric: Any,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    explain: Explain,
    kwargs: Mapping[str, Any],
    seed: int,
    maps: NDArray[np.floating[Any]] | None = None,
    masks: NDArray[np.bool_] | None = None,
) -> Any:
    """What a Quantus metric says, mended where it must be. Inside `untouched`, for it seeds all random numbers."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (Quantus draws from it)
    torch.manual_seed(seed)
    with _areas():
        return _mended(metric, explain)(
            model=model,
            x_batch=inputs.detach().cpu().numpy(),
            y_batch=targets.cpu().numpy(),
            a_batch=maps,
            s_batch=masks,
            channel_first=True,
            softmax=False,
            explain_func=explain,
            explain_func_kwargs=dict(kwargs),
            device=str(inputs.device),
        )


def _mended(metric: Any, explain: Explain) -> Any:
    kinds = {kind.__name__ for kind in type(metric).__mro__}
    if kinds.isdisjoint({IROF, SMOOTH}):
        return metric
    metric = copy.copy(metric)
    if IROF in kinds:
        replace = metric.perturb_func
        metric.perturb_func = lambda arr, mask, **more: replace(arr=arr, mask=np.broadcast_to(mask, arr.shape), **more)
    if SMOOTH in kinds:
        metric.explain_smooth_batch_numpy = lambda **given: _smoothed(metric, explain, **given)
    return metric


@contextmanager
def _areas() -> Iterator[None]:
    """Quantus's areas under curves by a function that numpy still has; afterwards Quantus is as it was."""
    import quantus

    before = quantus.helpers.utils.calculate_auc
    if not hasattr(np, "trapz"):
        quantus.helpers.utils.calculate_auc = _area
    try:
        yield
    finally:
        quantus.helpers.utils.calculate_auc = before


def _area(values: Any, dx: int = 1, batched: bool = False) -> Any:
    return np.trapezoid(np.array(values), dx=dx, axis=1 if batched else -1)


def _smoothed(metric: Any, explain: Explain, model: Any, x_batch: Any, y_batch: Any, std: Any, **more: Any) -> Any:
    """The mean of the maps of noisy inputs, the last without noise, as SmoothMPRT has it."""
    total: Any = 0.0
    for left in reversed(range(metric.nr_samples)):
        noise = np.random.randn(*x_batch.shape) * std if left else 0.0  # noqa: NPY002
        total = total + explain(model, (x_batch + noise).astype(x_batch.dtype), y_batch, **metric.explain_func_kwargs)
    return total / metric.nr_samples
