"""Methods that ask the model for nothing but what it is: its own contributions; and, asking nothing at all, chance."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor

from codanet.models.self_explaining import SelfExplaining

from .task import MethodSettings, Task


@dataclass(frozen=True)
class Contributions(MethodSettings):
    """[W(x)]_c ⊙ x / T of a CoDA-Net, summed over the encoded channels (eq. 8): they add up to logit - b0."""

    several_targets = True
    needs = "own maps"

    def maps(self, task: Task) -> Tensor:
        model = task.model
        assert isinstance(model, SelfExplaining)
        maps = []
        at_once = task.forward_batch
        for inputs, targets in zip(task.inputs.split(at_once), task.targets.split(at_once), strict=True):
            maps.append(model.own_maps(inputs, targets))
            task.advance(len(inputs))
        return torch.cat(maps)


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
