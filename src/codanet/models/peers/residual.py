"""ResNets (He et al. 2016, CIFAR) and wide ones (Zagoruyko and Komodakis 2016)."""

from typing import Any

from torch import Tensor, nn

from ..resnet import MEAN, STD, ResNet
from .peer import Centred, Peer, head, initialised


class ResNetPeer(Peer):
    """6n + 2 layers: ResNet-20 has n = 3, ResNet-56 n = 9."""

    def __init__(self, name: str, blocks: int, num_classes: int = 10, **facts: Any):
        super().__init__(name, num_classes, **facts)
        if self.image_channels != 3:
            raise ValueError(f"{name} is for images of 3 channels, not {self.image_channels}: choose another peer")
        self.network = ResNet(blocks, num_classes, MEAN, STD)
        self.network.linear = head(64, num_classes)

    def features(self, images: Tensor) -> Tensor:
        return self.network.features(images)

    def classify(self, maps: Tensor) -> Tensor:
        return self.network.classify(maps)


class WideBlock(nn.Module):
    """x + conv(relu(bn(conv(relu(bn(x)))))); where the shape changes, relu(bn(x)) through a 1x1 convolution instead."""

    def __init__(self, in_planes: int, planes: int, stride: int):
        super().__init__()
        self.bn1, self.relu1 = nn.BatchNorm2d(in_planes), nn.ReLU()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride, padding=1, bias=False)
        self.bn2, self.relu2 = nn.BatchNorm2d(planes), nn.ReLU()
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        same = in_planes == planes and stride == 1
        self.shortcut = None if same else nn.Conv2d(in_planes, planes, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.relu1(self.bn1(x))
        out = self.conv2(self.relu2(self.bn2(self.conv1(active))))
        return out + (x if self.shortcut is None else self.shortcut(active))


class WideResNet(Peer):
    """6n + 4 layers of width k: WRN-28-2 has n = 4 and k = 2."""

    def __init__(self, name: str, blocks: int, width: int, num_classes: int = 10, **facts: Any):
        super().__init__(name, num_classes, **facts)
        self.centred = Centred(self.image_channels)
        layers: list[nn.Module] = [nn.Conv2d(self.image_channels, 16, 3, padding=1, bias=False)]
        planes = 16
        for wide, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            for number in range(blocks):
                layers.append(WideBlock(planes, wide, stride if number == 0 else 1))
                planes = wide
        self.layers = nn.Sequential(*layers, nn.BatchNorm2d(planes), nn.ReLU())
        initialised(self)
        self.linear = head(planes, num_classes)

    def features(self, images: Tensor) -> Tensor:
        return self.layers(self.centred(images))

    def classify(self, maps: Tensor) -> Tensor:
        return self.linear(maps.mean((2, 3)))
