"""Networks whose every answer is known: each class a plain sum over colours."""

import torch
from PIL import Image
from torch import nn

from codanet import CoDANet
from codanet.data import MemorySplit
from codanet.data.pictures import Pictures
from codanet.models.network import Layer

NAMES = ("red", "green", "blue")
CLASSES, SIDE = 10, 4  # of `coloured`


class Colours(nn.Module):
    """logit_c = Σ channel c: the contributions to class c are channel c itself."""

    def forward(self, images):
        return images.sum((2, 3))


def own_channel(model, images, targets):
    return images[torch.arange(len(images)), targets]


def colour_model(side: int = 16, names: tuple[str, ...] = NAMES) -> CoDANet:
    """A = 0, so w(x) = g(b) is constant: class c counts channel c against the two others, in every pixel alike."""
    model = CoDANet([Layer(3, 1, kernel_size=1)], image_size=side, temperature=20.0, class_names=names)
    weights = torch.full((3, 6), -0.5)
    for c in range(3):
        weights[c, c] = 1.0
    weights[:, 3:] = 0.0
    with torch.no_grad():
        layer = model.dau_layers[0]
        layer.B.zero_()
        layer.A.zero_()
        layer.A[-1] = weights
    return model.eval()


def halves(side: int = 160, left: str = "red", right: str = "blue") -> Image.Image:
    image = Image.new("RGB", (side, side), right)
    image.paste(Image.new("RGB", (side // 2, side), left), (0, 0))
    return image


def coloured(number=200, seed=0):
    """Images of class c have light in channel c alone, more in some than in others."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % CLASSES
    images = torch.zeros(number, CLASSES, SIDE, SIDE, dtype=torch.uint8)
    light = torch.randint(100, 256, (number, SIDE, SIDE), generator=generator).to(torch.uint8)
    images[torch.arange(number), labels] = light
    return Pictures(MemorySplit(images, labels))
