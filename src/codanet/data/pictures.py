"""What a network sees of a split: images in [0, 1], cut to its size as in training, with their boxes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from codanet._support.errors import DataError
from codanet.data.split import Split


@dataclass(frozen=True)
class Pictures:
    split: Split
    size: tuple[int, int] | None = None  # (H, W) cut out of the centre of larger images

    def __len__(self) -> int:
        return len(self.split)

    def read(self, indices: Sequence[int]) -> tuple[Tensor, Tensor, list[int]]:
        """Images float32 [m, C, H, W], labels [m], and which of the indices they are: damaged files are left out."""
        kept = list(indices)
        images, labels = self._read_bytes(kept)
        if len(images) < len(kept):  # the split leaves damaged files out without saying which
            kept = [index for index in kept if len(self._read_bytes([index])[0])]
        top, left = self._corner(images.shape[2], images.shape[3])
        if self.size:
            images = images[:, :, top : top + self.size[0], left : left + self.size[1]]
        return images.float() / 255, labels, kept

    def _read_bytes(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        try:
            return self.split.__getitems__(indices)
        except DataError:
            return torch.empty(0, 1, 1, 1, dtype=torch.uint8), torch.empty(0, dtype=torch.int64)

    def _corner(self, height: int, width: int) -> tuple[int, int]:
        return ((height - self.size[0]) // 2, (width - self.size[1]) // 2) if self.size else (0, 0)

    def boxes(self, indices: Sequence[int]) -> Tensor:
        """(x_min, y_min, x_max, y_max) in pixels of what `read` gives, [m, 4]."""
        if self.split.boxes is None:
            raise ValueError("these images have no boxes around their objects: Tiny-ImageNet's validation images have")
        boxes = self.split.boxes[list(indices)].clone()
        if self.size:
            image = self.split[int(indices[0])][0]
            top, left = self._corner(image.shape[-2], image.shape[-1])
            boxes -= torch.tensor([left, top, left, top], dtype=boxes.dtype)
        return boxes

    def sample(self, number: int | None, wanted: int, seed: int) -> list[int]:
        """Indices of `number` readable images in a seeded order; without a number, of up to `wanted`."""
        if number is not None and not 1 <= number <= len(self):
            raise ValueError(f"{number} images are asked for and there are {len(self)}: ask for 1 to {len(self)}")
        count = min(wanted, len(self)) if number is None else number
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).tolist()
        readable: list[int] = []
        for start in range(0, len(order), 64):
            readable += self.read(order[start : start + 64])[2]
            if len(readable) >= count:
                return readable[:count]
        if number is not None or not readable:
            raise ValueError(
                f"{number or count} images are asked for and only {len(readable)} of {len(self)} can be read: ask for "
                "fewer, or replace the damaged ones"
            )
        return readable
