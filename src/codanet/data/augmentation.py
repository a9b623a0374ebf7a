"""Augmentation of whole batches, float [N, C, H, W] in [0, 1]; the same generator state gives the same result."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import avg_pool2d, pad

from codanet._support.errors import DataError
from codanet._support.extras import optional
from codanet._support.messages import nearest
from codanet.data.image import size_pair

Size = int | tuple[int, int]

# RandAugment's operations with their range at magnitude 30, by kornia's names. Shear is in units of 180 degrees
# there (tan(0.0928 * 180°) = 0.3) and translation in parts of the side (100 of 331 pixels).
OPERATIONS: dict[str, tuple[float, float]] = {
    "auto_contrast": (0, 1),
    "equalize": (0, 1),
    "invert": (0, 1),
    "rotate": (-30.0, 30.0),
    "posterize": (4.0, 8.0),
    "solarize": (0.0, 1.0),
    "solarize_add": (0.0, 0.43),
    "color": (0.1, 1.9),
    "contrast": (0.1, 1.9),
    "brightness": (0.1, 1.9),
    "sharpness": (0.1, 1.9),
    "shear_x": (-0.0928, 0.0928),
    "shear_y": (-0.0928, 0.0928),
    "translate_x": (-0.3, 0.3),
    "translate_y": (-0.3, 0.3),
}
COLOUR_OPERATIONS = ("color",)


class Augmentation(nn.Module):
    """A module without parameters whose randomness comes from the generator it is given."""

    def forward(self, images: Tensor, generator: Generator) -> Tensor:
        raise NotImplementedError

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        result: Tensor = super().__call__(images, generator)
        return result


class Identity(Augmentation):
    def forward(self, images: Tensor, generator: Generator) -> Tensor:
        return images


class Compose(Augmentation):
    """One augmentation after the other."""

    def __init__(self, *steps: Augmentation) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)

    def forward(self, images: Tensor, generator: Generator) -> Tensor:
        for step in self.steps:
            images = step(images, generator)
        return images


class FlipCrop(Augmentation):
    """Pad with zeros, cut the original size out at random, and mirror every second image, on average."""

    def __init__(self, padding: int = 4, flip: bool = True) -> None:
        super().__init__()
        if padding < 0:
            raise DataError(f"padding {padding} is not allowed: pass 0 or more pixels")
        self.padding, self.flip = padding, flip

    def forward(self, images: Tensor, generator: Generator) -> Tensor:
        if self.padding:
            images = random_windows(pad(images, [self.padding] * 4), images.shape[2:], generator)
        if self.flip:
            mirrored = draw(2, len(images), images, generator).bool()
            images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        return images


class RandomCrop(Augmentation):
    """A window of `size` at a random place."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size_pair(size)

    def forward(self, images: Tensor, generator: Generator) -> Tensor:
        check_window(images, self.size)
        return random_windows(images, self.size, generator)


class CenterCrop(Augmentation):
    """The window of `size` in the middle."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size_pair(size)

    def forward(self, images: Tensor, generator: Generator) -> Tensor:
        check_window(images, self.size)
        top, left = ((side - part) // 2 for side, part in zip(images.shape[2:], self.size, strict=True))
        return images[:, :, top : top + self.size[0], left : left + self.size[1]]


class Cutout(Augmentation):
    """A square of every image painted grey, at a random place, partly outside where that falls there (DeVries 2017)."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Tensor, generator: Generator) -> Tensor:
        covered = []
        for size in images.shape[2:]:
            first = draw(size, len(images), images, generator)[:, None] - self.side // 2
            place = torch.arange(size, device=images.device)
            covered.append((place >= first) & (place < first + self.side))
        box = covered[0][:, None, :, None] & covered[1][:, None, None, :]
        return images.masked_fill(box, 0.5)


class RandAugment(Augmentation):
    """`n` operations drawn for every image, at magnitude `m` of 30, by kornia.

    kornia draws one set of operations for a whole batch and from the global random state; here each image has its
    own, and the global state is put back.
    """

    def __init__(self, n: int = 2, m: int = 9) -> None:
        super().__init__()
        if n < 1 or not 0 < m < 30:
            raise DataError(f"RandAugment with n={n} and m={m} is not defined: pass n of at least 1 and m in 1 to 29")
        self.n, self.m = n, m
        self._operations: dict[str, Any] = {}  # not submodules: kornia's hold parameters

    def forward(self, images: Tensor, generator: Generator) -> Tensor:
        names = [name for name in OPERATIONS if images.shape[1] == 3 or name not in COLOUR_OPERATIONS]
        choices = torch.randint(len(names), (self.n, len(images)), generator=generator, device=generator.device)
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        devices = [images.device] if images.device.type == "cuda" else []
        images = images.clone()
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            torch.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed(seed)
            for choice in choices.tolist():
                for number in sorted(set(choice)):
                    rows = [row for row, chosen in enumerate(choice) if chosen == number]
                    changed = self.operation(names[number]).to(images.device)(images[rows])
                    images[rows] = changed.clamp(0, 1).to(images.dtype)
        return images

    def operation(self, name: str) -> Any:
        """kornia's RandAugment with this operation alone."""
        if name not in self._operations:
            with optional():
                kornia = import_module("kornia.augmentation.auto")
            self._operations[name] = kornia.RandAugment(
                n=1, m=self.m, policy=[[(name, *OPERATIONS[name])]], transformation_matrix_mode="skip"
            )
        return self._operations[name]


def erased(encoded: Tensor, most: float, removed: Tensor, generator: Generator) -> Tensor:
    """The images with pixels taken out at random: of each its own share of them, up to `most`.

    removed: what such a pixel becomes, [1, C, 1, 1].
    """
    number, _, height, width = encoded.shape
    share = most * torch.rand(number, 1, 1, 1, generator=generator, device=generator.device)
    kept = torch.rand(number, 1, height, width, generator=generator, device=generator.device) >= share
    return torch.where(kept.to(encoded.device), encoded, removed)


MOST_REMOVED = 0.25  # of an image's pixels, as many as the paper's metric removes


def without_least(encoded: Tensor, contributions: Tensor, removed: Tensor, generator: Generator) -> Tensor:
    """The images without the pixels that contribute least, [N, H, W]: of each its own share, up to a quarter.

    removed: what such a pixel becomes, [1, C, 1, 1].
    """
    return torch.where(lowest(contributions, generator)[:, None], removed, encoded)


def lowest(values: Tensor, generator: Generator | None) -> Tensor:
    """The pixels of lowest value, [N, H, W], as booleans: of each image its own share of them, up to a quarter."""
    number, height, width = values.shape
    device = None if generator is None else generator.device
    share = MOST_REMOVED * torch.rand(number, 1, generator=generator, device=device)
    places = values.flatten(1).argsort(1).argsort(1)  # 0 for the lowest
    return (places < (share * height * width).to(places.device)).view_as(values)


SMOOTHED = 5  # the side of the squares that noise is averaged over, as large as the windows that Occlusion covers


def least_most_or_patches(contributions: Tensor, generator: Generator | None) -> Tensor:
    """Up to a quarter of each image's pixels: the least contributing, the most, or patches, with equal probability.

    The patches are irregular: the pixels where noise, averaged over 5x5, is lowest.
    """
    number, height, width = contributions.shape
    device = None if generator is None else generator.device
    noise = torch.rand(number, 1, height, width, generator=generator, device=device)
    smooth = avg_pool2d(noise, SMOOTHED, 1, SMOOTHED // 2, count_include_pad=False)[:, 0]
    order = torch.randint(3, (number,), generator=generator, device=device).to(contributions.device)
    values = torch.stack([contributions, -contributions, smooth.to(contributions)])  # [3, N, H, W]
    return lowest(values[order, torch.arange(number, device=contributions.device)], generator)


def draw(bound: int, count: int, images: Tensor, generator: Generator) -> Tensor:
    """`count` integers in [0, bound), drawn where the generator lives, used where the images live."""
    return torch.randint(bound, (count,), generator=generator, device=generator.device).to(images.device)


def random_windows(images: Tensor, size: tuple[int, ...], generator: Generator) -> Tensor:
    """A window of `size` at a random place of every image, gathered in one step."""
    # [N, C, H-h+1, W-w+1, h, w], a view: every window of every image
    windows = images.unfold(2, size[0], 1).unfold(3, size[1], 1)
    rows = draw(windows.shape[2], len(images), images, generator)
    columns = draw(windows.shape[3], len(images), images, generator)
    return windows[torch.arange(len(images), device=images.device), :, rows, columns]


def check_window(images: Tensor, size: tuple[int, int]) -> None:
    height, width = images.shape[2:]
    if height < size[0] or width < size[1]:
        raise DataError(f"a window of {size[0]}x{size[1]} does not fit images of {height}x{width}: load larger ones")


def padding_of(size: Size) -> int:
    """4 pixels at 32, in proportion elsewhere, at least 1."""
    return max(1, min(size_pair(size)) // 8)


AUGMENTATIONS: dict[str, Callable[[Size], Augmentation]] = {
    "none": lambda size: Identity(),
    "crop": lambda size: FlipCrop(padding_of(size), flip=False),
    "flip-crop": lambda size: FlipCrop(padding_of(size)),
    "flip-crop-cutout": lambda size: Compose(FlipCrop(padding_of(size)), Cutout(min(size_pair(size)) * 3 // 8)),
    "randaugment": lambda size: Compose(RandAugment(), FlipCrop(padding_of(size))),
    "imagenet": lambda size: Compose(RandAugment(), RandomCrop(size), FlipCrop(0)),
    "centre-crop": lambda size: CenterCrop(size),
}


def list_augmentations() -> list[str]:
    return list(AUGMENTATIONS)


def augmentation(name: str, size: Size) -> Augmentation:
    """The augmentation called `name`, for a network that takes images of `size`.

    "imagenet" and "centre-crop" cut `size` (240) out of larger images (256); the others keep the size.
    """
    if name not in AUGMENTATIONS:
        raise DataError(f"unknown augmentation {name!r}{nearest(name, AUGMENTATIONS)}")
    return AUGMENTATIONS[name](size)
