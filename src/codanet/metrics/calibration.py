"""Calibration: of the decisions a model gives a probability of 0.8, are eight in ten right? (Guo et al. 2017)"""

from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 15


@dataclass(frozen=True)
class Reliability:
    """Decisions by the probability of the predicted class, in bins of equal width from 0 to 1."""

    counts: Tensor  # decisions in each bin, [bins]
    confidence: Tensor  # their mean probability, float64 [bins]; NaN where there are none
    accuracy: Tensor  # the share of them that is right, float64 [bins]; NaN where there are none

    @property
    def error(self) -> float:
        """ECE = Σ_b (n_b / n) |accuracy_b - confidence_b|: 0 if every probability comes true."""
        gaps = (self.accuracy - self.confidence).abs().nan_to_num()
        return float((self.counts * gaps).sum() / self.counts.sum())

    @property
    def excess(self) -> float:
        """Mean confidence less accuracy: above 0 for a model that is too sure of itself."""
        gaps = (self.confidence - self.accuracy).nan_to_num()
        return float((self.counts * gaps).sum() / self.counts.sum())


def reliability(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> Reliability:
    """Of probabilities [N, classes], one-vs-all or a softmax, and labels [N]."""
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not len(labels) or bins < 1:
        raise ValueError(
            f"probabilities {list(probabilities.shape)} and labels {list(labels.shape)} in {bins} bins: give "
            "[N, classes] and [N] of at least one image, and at least one bin"
        )
    low, high = probabilities.min().item(), probabilities.max().item()
    if low < 0 or high > 1:
        raise ValueError(f"probabilities run from {low:.3g} to {high:.3g}: give numbers in [0, 1], not logits")
    confidence, predicted = probabilities.double().max(1)
    place = (confidence * bins).long().clamp(0, bins - 1)
    counts = torch.bincount(place, minlength=bins)
    sums = (torch.bincount(place, each, bins) for each in (confidence, (predicted == labels).double()))
    means = [torch.where(counts > 0, each / counts, torch.nan) for each in sums]
    return Reliability(counts, *means)
