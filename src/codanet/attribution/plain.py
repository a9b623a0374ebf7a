"""Methods that ask the model for nothing but what it is: its own contributions; and, asking nothing at all, chance."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor

from codanet.models.self_explaining import SelfExplaining

from .task import MethodSettings, Task
from .windows import Windows, check_windows


@dataclass(frozen=True)
class Contributions(MethodSettings):
    """[W(x)]_c ⊙ x / T of a CoDA-Net, summed over the encoded channels (eq. 8): they add up to logit - b0.

    With a window of more than one pixel they are as coarse as Occlusion's maps, to be compared with them: what all
    pixels of a window contribute, and at every pixel the mean over the windows that cover it. These do not add up.
    """

    several_targets = True
    needs = "own maps"

    window: int = 1
    stride: int = 1

    def __post_init__(self) -> None:
        check_windows(self.window, self.stride)

    def maps(self, task: Task) -> Tensor:
        model = task.model
        assert isinstance(model, SelfExplaining)
        maps = []
        at_once = task.forward_batch
        for inputs, targets in zip(task.inputs.split(at_once), task.targets.split(at_once), strict=True):
            maps.append(model.own_maps(inputs, targets))
            task.advance(len(inputs))
        if self.window == 1:
            return torch.cat(maps)
        windows = Windows.over(task.size, self.window, self.stride).to(task.inputs.device)
        return windows.means(windows.sums(torch.cat(maps)))


@dataclass(frozen=True)
class Random(MethodSettings):
    """Normal noise, drawn from the seed, the image and the class: what a method must beat."""

    def maps(self, task: Task) -> Tensor:
        maps = []
        for image, target in zip(task.inputs.cpu(), task.targets.tolist(), strict=True):
            digest = sha256(f"{task.seed} {target} ".encode() + image.contiguous().view(torch.uint8).numpy().tobytes())
            generator = torch.Generator().manual_seed(int.from_bytes(digest.digest()[:7], "big"))
            maps.append(torch.randn(task.size, generator=generator))
            task.advance(1)
        return torch.stack(maps).to(task.inputs)
