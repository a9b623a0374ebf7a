"""A self-explaining network (Alvarez-Melis and Jaakkola 2018): logit_c = Σ θ(x)_c · h(x), h its concepts.

Concepts are maps here, k of them at every fourth pixel, so that θ h is a map as well: what every place adds to the
logit. It is exact over places, not over pixels. As all are trained by the same objective, it goes without the
original's losses for reconstruction and stability.
"""

from typing import Any

from torch import Tensor, nn

from ..classifier import evaluating
from ..feature_explanation import spread
from ..network import LOGIT_BIAS
from ..self_explaining import SelfExplaining
from .peer import Centred, Peer, initialised


def _convolutions(channels: int, *planes: int) -> nn.Sequential:
    """Of 3x3, with batch norm and ReLU; the third and the fifth halve the side."""
    layers: list[nn.Module] = []
    for number, wide in enumerate(planes):
        stride = 2 if number in (2, 4) else 1
        layers += [nn.Conv2d(channels, wide, 3, stride, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
        channels = wide
    return nn.Sequential(*layers)


class SENN(Peer, SelfExplaining):
    """k concept maps in [0, 1], and a network for how much each of them speaks for every class at every place."""

    logit_bias = LOGIT_BIAS

    def __init__(self, name: str, concepts: int = 16, num_classes: int = 10, **facts: Any):
        super().__init__(name, num_classes, **facts)
        self.centred = Centred(self.image_channels)
        self.concepts = nn.Sequential(
            _convolutions(self.image_channels, 32, 32, 64, 64, 64), nn.Conv2d(64, concepts, 1), nn.Sigmoid()
        )
        self.relevances = nn.Sequential(
            _convolutions(self.image_channels, 32, 32, 64, 64, 128, 128), nn.Conv2d(128, num_classes * concepts, 1)
        )
        initialised(self)

    def features(self, images: Tensor) -> Tensor:
        """Σ_k θ_ck h_k at every place, [N, classes, H/4, W/4]."""
        centred = self.centred(images)
        concepts = self.concepts(centred)  # [N, k, h, w]
        relevances = self.relevances(centred).unflatten(1, (self.num_classes, -1))  # [N, classes, k, h, w]
        return (relevances * concepts[:, None]).sum(2)

    def classify(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3)) + self.logit_bias

    def own_maps(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """What a place adds to the logit, spread evenly over the pixels that it stands for."""
        with evaluating(self):
            places = self.features(inputs)  # [N, classes, h, w]
        several = targets.view(len(inputs), -1)
        chosen = places.gather(1, several[..., None, None].expand(-1, -1, *places.shape[2:]))
        pixels = spread(chosen / (places.shape[2] * places.shape[3]), inputs.shape[2], inputs.shape[3])
        return pixels.view(*targets.shape, *inputs.shape[2:])
