"""What happens to pictures on their way: compression, blur, noise, other light, another place in the frame.

Each takes images float [N, C, H, W] in [0, 1] and gives them back in the same range, the same every time.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import conv2d, pad

SEED = 0  # for the noise


def jpeg(images: Tensor, quality: int) -> Tensor:
    """Compressed and decompressed."""
    return torch.stack([_recoded(image, quality) for image in images]).to(images)


def _recoded(image: Tensor, quality: int) -> Tensor:
    levels = (image.clamp(0, 1) * 255).round().byte().cpu().numpy()
    grey = len(levels) == 1
    buffer = io.BytesIO()
    Image.fromarray(levels[0] if grey else levels.transpose(1, 2, 0)).save(buffer, "JPEG", quality=quality)
    decoded = np.array(Image.open(buffer))
    return torch.from_numpy(decoded[None] if grey else decoded.transpose(2, 0, 1).copy()) / 255


def blur(images: Tensor, share: float) -> Tensor:
    """A Gaussian whose standard deviation is this share of the shorter side; edges repeated."""
    deviation = share * min(images.shape[2:])
    reach = max(1, math.ceil(3 * deviation))
    return gaussian(images, deviation, min(reach, min(images.shape[2:]) - 1) or 1).clamp(0, 1)


def gaussian(images: Tensor, deviation: float, reach: int) -> Tensor:
    """Images under a Gaussian window of 2 · reach + 1 pixels a side, edge pixels continued."""
    offsets = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    line = torch.exp(-(offsets**2) / (2 * deviation**2))
    line = (line / line.sum()).expand(images.shape[1], 1, 1, -1)
    padded = pad(images, (reach,) * 4, mode="replicate")
    rows = conv2d(padded, line, groups=images.shape[1])
    return conv2d(rows, line.transpose(2, 3), groups=images.shape[1])


def noise(images: Tensor, deviation: float) -> Tensor:
    """Gaussian, independent in every channel and pixel."""
    generator = torch.Generator().manual_seed(SEED)
    return (images + deviation * torch.randn(images.shape, generator=generator).to(images)).clamp(0, 1)


def brightness(images: Tensor, factor: float) -> Tensor:
    """Multiplied, what is too bright cut off."""
    return (images * factor).clamp(0, 1)


def shift(images: Tensor, share: float) -> Tensor:
    """Moved right and down by this share of each side; the edge repeated where nothing is known."""
    down, right = (max(1, round(share * side)) for side in images.shape[2:])
    height, width = images.shape[2:]
    return pad(images, [right, 0, down, 0], mode="replicate")[:, :, :height, :width]


class Corruption(NamedTuple):
    name: str
    setting: str
    apply: Callable[[Tensor], Tensor]


CORRUPTIONS = (
    Corruption("JPEG", "quality 50", partial(jpeg, quality=50)),
    Corruption("JPEG", "quality 15", partial(jpeg, quality=15)),
    Corruption("blur", "deviation 2% of the side", partial(blur, share=0.02)),
    Corruption("blur", "deviation 4% of the side", partial(blur, share=0.04)),
    Corruption("noise", "deviation 0.04", partial(noise, deviation=0.04)),
    Corruption("noise", "deviation 0.08", partial(noise, deviation=0.08)),
    Corruption("brightness", "half as bright", partial(brightness, factor=0.5)),
    Corruption("brightness", "1.5 times as bright", partial(brightness, factor=1.5)),
    Corruption("shift", "by 1/16 of the sides", partial(shift, share=1 / 16)),
    Corruption("shift", "by 1/8 of the sides", partial(shift, share=1 / 8)),
)
