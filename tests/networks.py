"""The registered networks, small enough to be computed with in every test."""

from dataclasses import replace

import torch

from codanet import CoDANet, Layer
from codanet.models.architectures import ARCHITECTURES

MANY = 128  # the highest rank that is computed with as it is


def of_kind(name: str, num_classes: int | None = None, **options) -> CoDANet:
    """A registered network; one of higher ranks with a quarter of its ranks and units, but all its classes.

    What is left is all that its kind can get wrong: the layers in their order, each with its kernel and stride.
    """
    known = ARCHITECTURES[name]
    layers = known.layers
    if max(layer.rank for layer in layers) > MANY:
        layers = tuple(replace(layer, rank=layer.rank // 4, units=layer.units // 4) for layer in layers)
    layers = (*layers[:-1], replace(layers[-1], units=num_classes or known.layers[-1].units))
    return CoDANet(layers, **{"image_channels": known.image_channels, "temperature": known.temperature, **options})


def tiny(seed=0):
    torch.manual_seed(seed)
    return CoDANet([Layer(8, 2), Layer(5, 2, stride=2)], image_size=16, temperature=2).eval()
