"""What a model makes of images: where it is right, what it confuses, and the decisions to look at."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.pictures import Pictures
from ..metrics import predict
from ..metrics.predictions import Predictions
from ..models.classifier import like, logits_of, probabilities
from ..models.hybrid import HybridNet
from ..models.network import CoDANet
from ..models.self_explaining import SelfExplaining

RIGHT, WRONG = 10, 8  # decisions shown


@dataclass(frozen=True)
class Case:
    """One decision, with the contributions to the class that was said and to the true one."""

    index: int  # in the split
    label: int
    said: int
    probability: float  # for the predicted class
    label_probability: float
    image: Tensor  # [C, H, W]
    said_map: Tensor  # [H, W]
    label_map: Tensor  # [H, W]


@dataclass(frozen=True)
class Findings:
    classes: tuple[str, ...]
    pictures: Pictures  # the images that were looked at
    predictions: Predictions  # what the model made of them
    confusion: Tensor  # int64 [true, said]
    right: tuple[Case, ...]  # the surest of each class, the surest class first
    wrong: tuple[Case, ...]  # the surest first
    unread: int = 0  # images that could not be read
    exact_for: str = ""  # what the maps are exact for, where that is not the pixels

    @property
    def number(self) -> int:
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        return int(self.confusion.diagonal().sum()) / self.number

    def interval(self) -> tuple[float, float]:
        return wilson(int(self.confusion.diagonal().sum()), self.number)


def wilson(successes: int, number: int, z: float = 1.96) -> tuple[float, float]:
    """95% interval of a share (Wilson 1927)."""
    share = successes / number
    centre = share + z * z / (2 * number)
    spread = z * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    low, high = ((centre + sign * spread) / (1 + z * z / number) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


def find(
    model: nn.Module, pictures: Pictures, classes: tuple[str, ...], done: Callable[[int], object] | None = None
) -> Findings:
    """Every image goes through the model once; those worth a look are explained, if it explains itself."""
    predictions = predict(model, pictures, done=done)
    truth, said, sure = predictions.labels, predictions.predicted, probabilities(model, predictions.logits)
    number = len(classes)
    confusion = torch.bincount(truth * number + said, minlength=number * number).view(number, number)
    right, wrong = _worth_a_look(truth, said, sure)

    def cases(places: list[int]) -> tuple[Case, ...]:
        if not places or not isinstance(model, SelfExplaining):
            return ()
        return _explained(model, pictures, predictions.indices[places].tolist(), said[places], truth[places])

    unread = len(pictures) - len(predictions.indices)
    exact_for = model.exact_for if isinstance(model, HybridNet) else ""
    return Findings(classes, pictures, predictions, confusion, cases(right), cases(wrong), unread, exact_for)


def _worth_a_look(truth: Tensor, said: Tensor, sure: Tensor) -> tuple[list[int], list[int]]:
    """Places of the surest right decision of each class, and of the surest wrong ones."""
    order = sure.gather(1, said[:, None])[:, 0].argsort(descending=True, stable=True)
    correct = (truth == said)[order]
    first: dict[int, int] = {}
    for place in order[correct].tolist():
        first.setdefault(int(truth[place]), place)
    return list(first.values())[:RIGHT], order[~correct][:WRONG].tolist()


def _explained(
    model: SelfExplaining, pictures: Pictures, indices: list[int], said: Tensor, truth: Tensor
) -> tuple[Case, ...]:
    images = torch.cat([pictures.read([index])[0] for index in indices])
    inputs, targets = like(model, images), torch.stack([said, truth], 1)
    with torch.no_grad():
        chances = probabilities(model, logits_of(model, images)).cpu()
        if isinstance(model, CoDANet):  # of features, as a picture shows them
            maps = model.explain(inputs, targets).shown.float().cpu()
        else:
            maps = model.own_maps(model.encode(inputs), targets.to(inputs.device)).float().cpu()
    return tuple(
        Case(
            index,
            int(truth[place]),
            int(said[place]),
            chances[place, said[place]].item(),
            chances[place, truth[place]].item(),
            images[place],
            maps[place, 0],
            maps[place, 1],
        )
        for place, index in enumerate(indices)
    )
