"""The completeness error: how far a map is from adding up to the logit that it explains.

|Σ map - (logit - logit of an empty input)|, over Σ |map|: over what was distributed, so that b0 does not count. For an
empty input a CoDA-Net's logits are b0, so that its contributions have nothing but rounding here; Integrated Gradients
has the error of its integral. A network whose own maps add up to logit - b0 is measured against b0, whatever it makes
of an empty input.
"""

import torch
from torch import Tensor, nn

from ..models.classifier import baseline, logits_of, network_input
from ..models.explanation import completeness_error
from ..models.hybrid import HybridNet
from ..models.network import bare
from .maps import Attribute, checked_targets, maps_of
from .metric import Metric
from .scores import NOT_FINITE, Scores


def completeness(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    attribute: Attribute | Tensor,
    *,
    empty: Tensor | None = None,
    bias: float | None = None,
    batch_size: int | None = None,
) -> Scores:
    """How far a map is from adding up to the logit that it explains, over what it distributes: 0 at best.

    Args:
        model: Any classifier.
        images: [N, C, H, W], as the model takes them.
        targets: The class of each image, [N].
        attribute: (model, images, targets) -> maps [N, H, W], or the maps themselves.
        empty: The network input, [1, C, 1, 1] or [1, C, H, W], that the maps are relative to; by default a removed
            pixel's value everywhere, and of a hybrid no features at all.
        bias: The logit that no pixel adds to, of maps that a network makes itself; then there is no `empty` to ask for.
        batch_size: Images in the model at a time; by default it follows from their size.

    Examples:
        >>> completeness(model, images, labels, contributions).mean  # doctest: +SKIP
    """
    chosen = checked_targets(images, targets)
    inputs = network_input(model, images)
    maps = maps_of(attribute, model, images, targets)
    logits = logits_of(model, inputs, batch_size).gather(1, chosen[:, None])[:, 0]
    base = _empty_logits(model, inputs, empty)[chosen] if bias is None else torch.full_like(logits, bias)
    finite = maps.flatten(1).isfinite().all(1)
    errors = completeness_error(maps.flatten(1), logits - base)
    errors = torch.where(finite, errors, torch.nan)
    return Scores("completeness", errors, tuple("" if good else NOT_FINITE for good in finite.tolist()))


def _empty_logits(model: nn.Module, inputs: Tensor, empty: Tensor | None) -> Tensor:
    """Of an input with nothing in it, [classes]."""
    inner = bare(model)
    if empty is None and isinstance(inner, HybridNet):  # no features, wherever they are
        nothing = torch.zeros_like(inner.encode(inputs[:1]))
    else:
        nothing = (baseline(model, inputs) if empty is None else empty.to(inputs)).expand_as(inputs[:1])
    return logits_of(model, nothing.contiguous())[0]


COMPLETENESS = Metric(
    "completeness",
    "Completeness error",
    False,
    "|sum of the map - (logit - logit of an empty image)| / sum of |map|, 1 for a map of zeros",
    "maps",
    lambda sample: completeness(
        sample.model, sample.images, sample.labels, sample.maps, empty=sample.empty, bias=sample.bias
    ),
)
