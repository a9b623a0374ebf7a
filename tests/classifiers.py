"""Small classifiers of every kind that attribution methods are tried on, in double precision."""

import torch
from torch import nn

from codanet import CoDANet
from codanet.attribution import METHODS, Lime, Rise
from codanet.models.network import Layer
from codanet.models.resnet import ResNet

CLASSES, SIZE = 5, 12


def coda() -> CoDANet:
    return CoDANet([Layer(8, 2), Layer(CLASSES, 2, stride=2)], image_size=SIZE, temperature=4)


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(8, CLASSES),
    )


def resnet() -> ResNet:
    return ResNet(1, CLASSES)


MODELS = {"coda": coda, "cnn": cnn, "resnet": resnet}
FAST = {"rise": Rise(masks=40), "lime": Lime(samples=24, kernel_size=1, max_dist=8)}


def settings(name: str):
    return FAST.get(name, METHODS[name].settings)


def made(kind: str) -> nn.Module:
    """In double precision, so that what differs does so for a reason, and with statistics of its own."""
    model = MODELS[kind]().double()
    model(torch.rand(8, 3, SIZE, SIZE).double())
    return model.eval()


def pictures(number: int = 3) -> torch.Tensor:
    return torch.rand(number, 3, SIZE, SIZE).double()


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-6) -> None:
    scale = float(expected.detach().abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * max(scale, 1e-12))


class Light(nn.Module):
    """Two classes: logits (Σ first channel, 0), so p = 1 / (1 + e^-Σ)."""

    def forward(self, images):
        total = images[:, 0].sum((1, 2))
        return torch.stack([total, torch.zeros_like(total)], 1)
