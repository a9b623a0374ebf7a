"""RISE (Petsiuk, Das, Saenko 2018): the class's probability on randomly masked images, spread over the masks."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from codanet._support.limits import MOST_SAMPLES
from codanet._support.numbers import check_whole

from .task import InputSettings, Task

MOST_CELLS = 32  # on a side of a mask: a million masks of them are a GB
MASKS_AT_ONCE = 4096  # drawn together


@dataclass(frozen=True)
class Rise(InputSettings):
    """1/(M p₁) Σ_m P(class | x ⊙ mask_m) mask_m, with the masks of the published implementation.

    A mask is a grid of cells x cells that are 1 with probability p₁, enlarged bilinearly to one cell more than the
    image and cropped at random; beyond its outermost centres the grid is mirrored, as skimage's resize does it (mode
    "reflect"). All images of a call see the same masks, drawn from the seed; they are enlarged as they are needed, so
    that memory grows by no more than a byte for every cell. The probability is that of `Task.probabilities`.
    """

    several_targets = True
    signed = False

    masks: int = 6000
    cells: int = 6
    probability: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(1, most=MOST_SAMPLES, masks=self.masks)
        check_whole(1, most=MOST_CELLS, cells=self.cells)
        if not 0 < self.probability <= 1:
            raise ValueError(f"probability is {self.probability!r}: a cell is kept with one in (0, 1]")

    def maps(self, task: Task) -> Tensor:
        inputs, generator = task.inputs, task.generator()
        wide = torch.promote_types(inputs.dtype, torch.float32)  # thousands of masks are added up
        grids = self._grids(generator).to(inputs.device)
        sides = []
        for size in task.size:
            shifts = torch.randint(ceil(size / self.cells), (self.masks,), generator=generator)
            sides.append((self._enlargement(size).to(inputs.device, wide), shifts.to(inputs.device)))
        (down, top), (across, left) = sides  # [shifts, H, cells], [M]; [shifts, W, cells], [M]
        targets = task.targets.view(len(inputs), -1)  # [N, K]
        total = inputs.new_zeros(*targets.shape, *task.size, dtype=wide)
        for some, images in task.blocks(self.masks):
            masks = torch.einsum("mhi,mij,mwj->mhw", down[top[some]], grids[some].to(wide), across[left[some]])
            originals = inputs[images]
            shown = masks[None, :, None].to(inputs.dtype)
            hidden = torch.lerp(task.baseline[:, None], originals[:, None], shown)  # [n, m, C, H, W]
            probabilities = task.probabilities(hidden.flatten(0, 1)).to(wide).view(len(originals), len(masks), -1)
            weights = probabilities.gather(2, targets[images, None].expand(-1, len(masks), -1))  # [n, m, K]
            total[images] += torch.einsum("nmk,mhw->nkhw", weights, masks)
        return (total / (self.masks * self.probability)).view(*task.targets.shape, *task.size)

    def _grids(self, generator: torch.Generator) -> Tensor:
        """Which cells of which mask are kept, bool [masks, cells, cells]."""
        grids = torch.empty(self.masks, self.cells, self.cells, dtype=torch.bool)
        for some in grids.split(MASKS_AT_ONCE):
            some.copy_(torch.rand(some.shape, generator=generator) < self.probability)
        return grids

    def _enlargement(self, size: int) -> Tensor:
        """[shifts, size, cells]: bilinear weights of the cells at each place, for every shift of the crop."""
        cell = ceil(size / self.cells)
        places = torch.arange(cell)[:, None] + torch.arange(size)[None]  # in the enlarged grid, [shifts, size]
        enlarged = (self.cells + 1) * cell
        last = self.cells - 1
        at = ((places + 0.5) * self.cells / enlarged - 0.5).abs()  # mirrored at the first centre
        at = (last - (last - at).abs()).clamp(0, last)  # and at the last; a single cell is its own mirror
        return (1 - (at[..., None] - torch.arange(self.cells)).abs()).clamp(min=0)
