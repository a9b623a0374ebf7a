"""Where a logit comes from, layer by layer."""

from torch import Tensor

from .explanation import Target, resolve_targets
from .network import CoDANet


def layer_contributions(model: CoDANet, images: Tensor, target: Target = None) -> list[Tensor]:
    """How much every position of every layer adds to the logit (eq. 6, 8): [N, H_l, W_l] for l = 0, the image, to L.

    Every map of an image adds up to the same number, its logit less b0.
    """
    trace = model.trace(images)
    chosen, several = resolve_targets(target, len(trace.logits), model.num_classes, model.class_names)
    if several:
        raise ValueError("several targets per image were given: layers are shown for one class at a time")
    targets = trace.logits.argmax(1, keepdim=True) if chosen is None else chosen.to(trace.logits.device)
    return [
        (trace.class_rows(targets, source=layer)[:, 0] * activations).sum(1)
        for layer, activations in enumerate(trace.activations)
    ]
