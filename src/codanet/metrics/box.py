"""The share of positive attribution inside the box around the object: Tiny-ImageNet's validation images have boxes."""

import torch
from torch import Tensor, nn

from .maps import Attribute, maps_of
from .metric import Metric
from .scores import NO_BOX, NO_POSITIVE, NOT_FINITE, Scores
from .share import box_masks, has_positive, positive_share


def box_share(
    model: nn.Module, images: Tensor, targets: Tensor, attribute: Attribute | Tensor, boxes: Tensor
) -> Scores:
    """The share of the positive attribution that lies in the object's box: 1 at best.

    A map without positive values scores 0 and is noted. A map that is not finite and a box outside of the image fail.

    Args:
        model: Any classifier.
        images: [N, C, H, W], as the model takes them.
        targets: The class of each image, [N].
        attribute: (model, images, targets) -> maps [N, H, W], or the maps themselves.
        boxes: First and last column and row of each object, (x_min, y_min, x_max, y_max) in pixels, [N, 4].

    Returns:
        A score per image; `extras["chance"]` is the box's share of the image, the score of a uniform map; NaN for a box
        outside of it.

    Examples:
        >>> box_share(model, images, labels, contributions, boxes).mean  # doctest: +SKIP
    """
    maps = maps_of(attribute, model, images, targets)
    if len(boxes) != len(maps):
        raise ValueError(f"{len(boxes)} boxes were given for {len(maps)} images: give one for each")
    inside = box_masks(boxes, maps.shape[1], maps.shape[2])
    finite, empty = maps.flatten(1).isfinite().all(1), ~inside.flatten(1).any(1)
    values = positive_share(maps, inside).masked_fill(empty, torch.nan)
    notes = tuple(
        NO_BOX if no_box else NOT_FINITE if not good else NO_POSITIVE if not some else ""
        for no_box, good, some in zip(empty.tolist(), finite.tolist(), has_positive(maps).tolist(), strict=True)
    )
    chance = inside.double().mean((1, 2)).masked_fill(empty, torch.nan)
    return Scores("box", values, notes, {"chance": chance})


BOX = Metric(
    "box",
    "Inside the box",
    True,
    "positive attribution inside the object's box over all positive attribution; chance is the box's share of the "
    "image",
    "boxes",
    lambda sample: box_share(
        sample.model, sample.images, sample.labels, sample.maps, sample.pictures.boxes(list(sample.indices))
    ),
)
