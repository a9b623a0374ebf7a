"""What a metric returns: one value per sample, never only a mean."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

NOT_FINITE = "the map has values that are not finite"
NO_PREDICTION = "the logits hold NaN"
NO_POSITIVE = "no positive attribution"
NO_BOX = "the box holds no pixel of the image"
CONSTANT = "constant map: its pixels are ordered at random"
RESAMPLES_AT_ONCE = 50


@dataclass(frozen=True)
class Scores:
    """Per-sample values of one metric.

    Args:
        metric: Its name.
        values: float64 [n], NaN where a sample failed.
        notes: Why it did, or what else was odd, [n]; "" where there is nothing to say.
        extras: More numbers of each sample, [n, ...], such as curves [n, K].
        points: What the curves are over, [K].
        unit: So many values in a row belong together: the 9 scores of a 3x3 grid come from one picture and one
            forward pass, so that intervals are over grids.

    Raises:
        ValueError: If there is not a note for every value, or a unit is cut.

    Examples:
        >>> Scores("accuracy", torch.tensor([1.0, 0.0]).double(), ("", "")).mean
        0.5
    """

    metric: str
    values: Tensor
    notes: tuple[str, ...]
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    points: Tensor | None = None
    unit: int = 1

    def __post_init__(self) -> None:
        if len(self.notes) != len(self.values) or self.unit < 1 or len(self.values) % self.unit:
            raise ValueError(
                f"{len(self.values)} values with {len(self.notes)} notes in units of {self.unit}: give a note per "
                "value, and whole units"
            )

    def __len__(self) -> int:
        return len(self.values)

    @property
    def failed(self) -> int:
        """Samples without a value; they are in no mean."""
        return int(self.values.isnan().sum())

    @property
    def reasons(self) -> dict[str, int]:
        """How many samples each note was written on, failed or not."""
        return dict(Counter(note for note in self.notes if note))

    @property
    def mean(self) -> float:
        """Over the samples that have a value; NaN if none has."""
        return float(self.values.nanmean())

    def quantiles(self, *shares: float) -> tuple[float, ...]:
        valid = self.values[~self.values.isnan()]
        return tuple(float(torch.quantile(valid, share)) if len(valid) else float("nan") for share in shares)

    def interval(self, confidence: float = 0.95, resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
        """Percentile bootstrap of the mean, over independent units: whole grids, not their single scores.

        NaN where fewer than two units have a value.
        """
        if not 0 < confidence < 1 or resamples < 1:
            raise ValueError(
                f"confidence is {confidence} with {resamples} resamples: give one between 0 and 1, and at least 1"
            )
        values = self.values.view(-1, self.unit).numpy()
        low, high = _bootstrap(np.nansum(values, 1)[:, None], (~np.isnan(values)).sum(1), confidence, resamples, seed)
        return float(low[0]), float(high[0])

    def less(self, other: "Scores") -> "Scores":
        """The differences from another method's values of the same samples: what both share cancels.

        NaN where either failed.

        Raises:
            ValueError: If the two are not of the same metric and as many samples.

        Examples:
            >>> own, other = (Scores("removal", torch.tensor(v).double(), ("", "")) for v in ([0.9, 0.2], [0.8, 0.1]))
            >>> round(own.less(other).mean, 3)
            0.1
        """
        mine, theirs = ((each.metric, len(each), each.unit) for each in (self, other))
        if mine != theirs:
            raise ValueError(f"{mine} and {theirs} (metric, samples, unit) cannot be compared: give scores of the same")
        return Scores(self.metric, self.values - other.values, ("",) * len(self), unit=self.unit)

    def curve(self, name: str = "curve") -> Tensor:
        """The mean over the samples that have a value, [K]."""
        return self.extras[name].double().nanmean(0)

    def curve_interval(self, name: str = "curve", confidence: float = 0.95, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Bootstrap interval of every point of the mean curve, [K] each."""
        curves = self.extras[name].double().numpy()
        valid = ~np.isnan(curves).any(1)
        low, high = _bootstrap(np.where(valid[:, None], curves, 0), valid.astype(int), confidence, 500, seed)
        return torch.from_numpy(low), torch.from_numpy(high)

    @staticmethod
    def join(parts: Sequence["Scores"]) -> "Scores":
        """Chunks of one measurement, in order."""
        first = parts[0]
        return Scores(
            first.metric,
            torch.cat([part.values for part in parts]),
            tuple(note for part in parts for note in part.notes),
            {name: torch.cat([part.extras[name] for part in parts]) for name in first.extras},
            first.points,
            first.unit,
        )


def _bootstrap(
    sums: np.ndarray, counts: np.ndarray, confidence: float, resamples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Of Σ sums [n, K] / Σ counts [n] over units drawn with replacement."""
    number = len(sums)
    if (counts > 0).sum() < 2:  # one observation says nothing of its spread
        return np.full(sums.shape[1], np.nan), np.full(sums.shape[1], np.nan)
    rng = np.random.default_rng(seed)
    means = []
    for start in range(0, resamples, RESAMPLES_AT_ONCE):
        drawn = rng.integers(0, number, (min(RESAMPLES_AT_ONCE, resamples - start), number))
        # how often each unit was drawn, [resamples, n]
        times = np.stack([np.bincount(row, minlength=number) for row in drawn])
        total = times @ counts
        with np.errstate(invalid="ignore"):
            means.append((times @ sums) / np.where(total == 0, np.nan, total)[:, None])
    tail = (1 - confidence) / 2
    low, high = np.nanquantile(np.concatenate(means), [tail, 1 - tail], axis=0)
    return low, high
