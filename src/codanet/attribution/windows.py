"""Square windows over an image: which places each covers, and maps made of one number for each window."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from codanet._support.errors import DoesNotFit
from codanet._support.numbers import check_whole


@dataclass(frozen=True)
class Windows:
    """rows [R, H] and columns [S, W]: which each of R x S windows covers; the last are cut at the border."""

    rows: Tensor
    columns: Tensor

    @classmethod
    def over(cls, size: tuple[int, int], window: int, stride: int) -> Windows:
        """Of `window` x `window` pixels, `stride` from one to the next; every pixel is in one at least."""
        if window > min(size):
            raise DoesNotFit(f"a window of {window} does not fit into images of {size[0]}x{size[1]}: take a smaller")
        return cls(*(_covered(side, window, stride) for side in size))

    def to(self, device: torch.device) -> Windows:
        return Windows(self.rows.to(device), self.columns.to(device))

    def sums(self, maps: Tensor) -> Tensor:
        """[..., R, S] of maps [..., H, W]: over what each window covers."""
        return torch.einsum("...hw,rh,sw->...rs", maps, self.rows.to(maps), self.columns.to(maps))

    def means(self, values: Tensor) -> Tensor:
        """Maps [..., H, W] of a value for each window [..., R, S]: at every pixel the mean over those that cover it."""
        total = torch.einsum("...rs,rh,sw->...hw", values, self.rows.to(values), self.columns.to(values))
        return total / (self.rows.sum(0)[:, None] * self.columns.sum(0))


def check_windows(window: int, stride: int) -> None:
    check_whole(1, window=window, stride=stride)
    if stride > window:
        raise ValueError(
            f"stride {stride} is larger than the window {window}: pixels between two windows would get no value, so "
            "take a smaller stride"
        )


def _covered(side: int, window: int, stride: int) -> Tensor:
    start = torch.arange(ceil((side - window) / stride) + 1)[:, None] * stride
    place = torch.arange(side)[None]
    return (place >= start) & (place < start + window)
