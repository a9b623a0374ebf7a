"""Where a hybrid is taken apart for training: the maps kept on disk lie between what is frozen and what learns."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..models.hybrid import HybridNet


@dataclass(frozen=True)
class Seam:
    """below: images to the maps that are kept; above: these to the backbone's maps; layer: whose maps are kept.

    frozen: the part of the backbone that makes the kept maps.
    """

    below: Callable[[Tensor], Tensor]
    above: Callable[[Tensor], Tensor]
    layer: str
    frozen: nn.Module


def seam(model: HybridNet, finetune: bool) -> Seam:
    """At the cut, or, where the last blocks of the backbone are to learn, before them; then they are set free."""
    if not finetune:
        return Seam(model.maps, lambda maps: maps, model.layer, model.backbone)
    frozen, last, layer = model.parts()
    last.requires_grad_()

    def below(images: Tensor) -> Tensor:
        with torch.no_grad():
            maps: Tensor = frozen(images.contiguous(memory_format=torch.channels_last))
            return maps

    def above(maps: Tensor) -> Tensor:
        made: Tensor = last(maps.to(model.dtype).contiguous(memory_format=torch.channels_last))
        return made

    return Seam(below, above, layer, frozen)
