"""VGG-19 with batch norm (Simonyan and Zisserman 2015), with one linear layer, as it is used on CIFAR."""

from typing import Any

from torch import Tensor, nn

from .peer import Centred, Peer, head, initialised

PLANES = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)  # of 16 convolutions; a pooling after each row


class VGG(Peer):
    """Convolutions of 3x3 with batch norm and ReLU, five poolings, the mean over what is left, a linear layer."""

    def __init__(self, name: str, num_classes: int = 10, **facts: Any):
        super().__init__(name, num_classes, **facts)
        self.centred = Centred(self.image_channels)
        layers: list[nn.Module] = []
        before = self.image_channels
        for row in PLANES:
            for planes in row:
                layers += [nn.Conv2d(before, planes, 3, padding=1), nn.BatchNorm2d(planes), nn.ReLU()]
                before = planes
            layers.append(nn.MaxPool2d(2, ceil_mode=True))  # one pixel stays one: pictures may start small
        self.layers = nn.Sequential(*layers)
        initialised(self)
        self.linear = head(before, num_classes)

    def features(self, images: Tensor) -> Tensor:
        return self.layers(self.centred(images))

    def classify(self, maps: Tensor) -> Tensor:
        return self.linear(maps.mean((2, 3)))
