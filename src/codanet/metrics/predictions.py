"""What a model makes of every image of a split: its accuracy, and the images it is sure of."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.pictures import Pictures
from ..models.classifier import log_odds, logits_of
from .metric import Metric, Sample
from .scores import NO_PREDICTION, Scores

IMAGES_AT_ONCE = 500  # read together


@dataclass(frozen=True)
class Predictions:
    indices: Tensor  # within the split, [n]; damaged files are left out
    labels: Tensor  # [n]
    logits: Tensor  # float64 [n, classes]
    log_odds: Tensor  # for the label, float64 [n]: two probabilities near 1 may be the same number, these are not

    @property
    def predicted(self) -> Tensor:
        return self.logits.argmax(1)

    @property
    def correct(self) -> Tensor:
        return self.predicted == self.labels

    @property
    def confidence(self) -> Tensor:
        """The probability of the label, [n]."""
        return self.log_odds.sigmoid()

    def scores(self) -> Scores:
        """1 or 0 for every image; one whose logits hold NaN has no class, and fails."""
        extras = {"indices": self.indices, "labels": self.labels, "log_odds": self.log_odds}
        failed = self.logits.isnan().any(1)
        notes = tuple(NO_PREDICTION if bad else "" for bad in failed.tolist())
        return Scores("accuracy", self.correct.double().masked_fill(failed, torch.nan), notes, extras)


def predict(
    model: nn.Module,
    pictures: Pictures,
    start: int = 0,
    stop: int | None = None,
    *,
    batch_size: int | None = None,
    done: Callable[[int], object] | None = None,
) -> Predictions:
    """Of images start to stop of a split, streamed; `done` hears how many have been read.

    Of a part there may be none that can be read, of a whole split not.
    """
    stop = len(pictures) if stop is None else min(stop, len(pictures))
    parts = list(_read(model, pictures, start, stop, batch_size, done))
    if not parts and (start, stop) == (0, len(pictures)):
        raise ValueError(f"none of the {len(pictures)} images can be read: check the data")
    if not parts:
        number = torch.empty(0, dtype=torch.long)
        return Predictions(number, number, torch.empty(0, 1).double(), torch.empty(0).double())
    return Predictions(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _read(
    model: nn.Module,
    pictures: Pictures,
    start: int,
    stop: int,
    batch_size: int | None,
    done: Callable[[int], object] | None,
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    for first in range(start, stop, IMAGES_AT_ONCE):
        wanted = range(first, min(first + IMAGES_AT_ONCE, stop))
        images, labels, kept = pictures.read(wanted)
        if kept:
            logits = logits_of(model, images, batch_size)
            _check_classes(logits, labels)
            yield torch.tensor(kept), labels, logits, log_odds(model, logits, labels)
        if done:
            done(len(wanted))


def _check_classes(logits: Tensor, labels: Tensor) -> None:
    if int(labels.max()) >= logits.shape[1]:
        raise ValueError(
            f"the model has {logits.shape[1]} classes and the data have a label {int(labels.max())}: use the data set "
            "that the model was trained on"
        )


def confident_images(found: Scores, threshold: float = 0.5) -> dict[int, list[int]]:
    """Images classified correctly with a probability above the threshold: class to indices, most confident first.

    `found` is `predict(...).scores()`. Equal confidences keep the order of the split.
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold is {threshold}: it is a probability, from 0 to below 1")
    confidence = found.extras["log_odds"]
    least = math.log(threshold / (1 - threshold)) if threshold else -math.inf
    sure = (found.values == 1) & (confidence > least)
    order = torch.argsort(confidence, descending=True, stable=True)
    chosen: dict[int, list[int]] = {}
    for place in order[sure[order]].tolist():
        chosen.setdefault(int(found.extras["labels"][place]), []).append(int(found.extras["indices"][place]))
    return dict(sorted(chosen.items()))


def _run(sample: Sample) -> Scores:
    return predict(sample.model, sample.pictures, sample.indices[0], sample.indices[-1] + 1).scores()


ACCURACY = Metric(
    "accuracy",
    "Accuracy",
    True,
    "share of the split's images that are classified correctly",
    "predictions",
    _run,
    n=None,
)
