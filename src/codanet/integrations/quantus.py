"""Quantus beside codanet: our methods as its `explain_func`, its metrics on our methods. Needs the extra `quantus`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from .._support.extras import optional
from ..attribution import Method, MethodSettings, attribute, settings_of
from ..attribution.task import prepare, space_of
from ..attribution.untouched import untouched
from ..metrics.quantus import refuse, scored
from ..models.classifier import network_input
from ..models.explanation import Target
from ..models.network import bare
from ..models.self_explaining import encodes

FROM_QUANTUS = ("device", "channel_first", "softmax")  # what its metrics add to the keywords; a model knows its own


def explain_func(
    model: nn.Module,
    inputs: ArrayLike | Tensor,
    targets: ArrayLike | Tensor,
    method: str | Method | MethodSettings = "contributions",
    seed: int = 0,
    batch_size: int | None = None,
    **kwargs: Any,
) -> NDArray[np.floating[Any]]:
    """`attribute` as Quantus calls it: arrays [N, C, H, W] and [N] in, maps [N, 1, H, W] out.

    Quantus passes on its `explain_func_kwargs`: the method, the seed, the batch size, and a few names of its own.
    """
    unknown = sorted(set(kwargs) - set(FROM_QUANTUS))
    if unknown:
        raise ValueError(f"explain_func has no setting {unknown[0]!r}: it has method, seed and batch_size")
    like = next(model.parameters(), torch.empty(0))
    images = torch.as_tensor(inputs).to(like.device, like.dtype)
    classes = torch.as_tensor(targets).to(like.device).long()
    maps = attribute(model, images, classes, method, seed=seed, batch_size=batch_size)
    return maps[:, None].cpu().numpy()


def quantus_scores(
    metric: Callable[..., Any],
    model: nn.Module,
    images: Tensor,
    targets: Target = None,
    method: str | Method | MethodSettings = "contributions",
    *,
    seed: int = 0,
    batch_size: int | None = None,
) -> Any:
    """What a Quantus metric, such as quantus.Sparseness(), says of one of our methods: one score per image.

    A CoDA-Net is given the encoded images, so that a metric with perturb_baseline=0.0 removes a pixel instead of making
    it dark (Quantus's "black" is the image's own minimum); other models are given the images, a hybrid too. What the
    metric watches is the logit, as the methods explain it. The model is in evaluation mode meanwhile. The metric draws
    its random numbers from the seed; the caller's are left as they were. `codanet.metrics.quantus` says what of Quantus
    is mended for this, and that Completeness is refused.
    """
    with optional():
        import quantus
    if not isinstance(metric, quantus.Metric):
        raise ValueError(f"metric is {metric!r}: give a Quantus metric, such as quantus.Sparseness()")
    refuse(type(metric))
    model = bare(model)
    if encodes(model) and space_of(settings_of(method), model) == "image":
        raise ValueError("space is 'image': Quantus removes pixels of the encoded images, so leave it out")
    with untouched(model):
        task = prepare(model, images, targets, seed, batch_size)
        if task.targets.ndim != 1:
            raise ValueError("a score is made for one class per image: give one class, or one for each")
        kwargs = {"method": method, "seed": seed, "batch_size": batch_size}
        return scored(metric, model, network_input(model, images.detach()), task.targets, explain_func, kwargs, seed)
