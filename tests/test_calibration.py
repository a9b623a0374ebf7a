"""Calibration on decisions whose probabilities are known to come true, or not."""

import pytest
import torch

from codanet.metrics.calibration import reliability


def decisions(confidence: float, right: int, wrong: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes; the first is said with this probability, rightly so often and wrongly so often."""
    probabilities = torch.tensor([confidence, 1 - confidence]).repeat(right + wrong, 1)
    return probabilities, torch.tensor([0] * right + [1] * wrong)


def test_probabilities_that_come_true_have_no_error():
    likely, likely_labels = decisions(0.8, 80, 20)
    even, even_labels = decisions(0.6, 30, 20)
    measured = reliability(torch.cat([likely, even]), torch.cat([likely_labels, even_labels]))
    assert measured.error == pytest.approx(0, abs=1e-7)
    assert measured.counts.sum() == 150


def test_the_error_is_the_mean_gap_weighted_by_decisions():
    sure, sure_labels = decisions(0.95, 30, 30)  # 0.45 too sure
    modest, modest_labels = decisions(0.55, 20, 0)  # 0.45 too modest
    measured = reliability(torch.cat([sure, modest]), torch.cat([sure_labels, modest_labels]))
    assert measured.error == pytest.approx(0.45, abs=1e-6)
    assert measured.excess == pytest.approx((60 * 0.45 - 20 * 0.45) / 80, abs=1e-6)


def test_certainty_falls_into_the_last_bin():
    measured = reliability(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), bins=4)
    assert measured.counts.tolist() == [0, 0, 0, 1]
    assert measured.accuracy[0].isnan()


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"probabilities \[2, 3\] and labels \[3\]"):
        reliability(torch.rand(2, 3), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="at least one image"):
        reliability(torch.rand(0, 3), torch.zeros(0, dtype=torch.long))


def test_logits_are_no_probabilities():
    with pytest.raises(ValueError, match="probabilities run from -1 to 2.5: give numbers"):
        reliability(torch.tensor([[2.5, -1.0]]), torch.tensor([0]))
