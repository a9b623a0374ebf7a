"""The card of a model, on pictures of plain colours whose answers are known."""

import re

import pytest
import torch

from codanet.data.corruption import CORRUPTIONS, Corruption
from codanet.data.pictures import Pictures
from codanet.data.split import MemorySplit, held_out
from codanet.models.network import CoDANet, Layer
from codanet.report.card import card, corrupted_images, reliability_figure
from codanet.report.findings import find
from codanet.report.sources import images
from colours import colour_model

COLOURS = torch.tensor([[230, 20, 20], [20, 230, 20], [20, 20, 230]], dtype=torch.uint8)
NAMES = ("red", "lime", "blue")


@pytest.fixture(scope="module")
def found():
    """Twenty pictures of each colour; five that are called blue are red."""
    labels = torch.arange(3).repeat_interleave(20)
    shown = labels.clone()
    shown[labels.nonzero()[-5:, 0]] = 0
    pictures = COLOURS[shown][:, :, None, None].expand(-1, -1, 8, 8).contiguous()
    return find(colour_model(), Pictures(MemorySplit(pictures, labels)), NAMES)


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_the_card_counts_by_class_and_tries_worse_pictures(found):
    heard = []
    text = words(card(colour_model(), found, images=12, done=heard.append))
    assert "red 20 100.0% 83.9% to 100.0% 80.0%" in text  # 20 of the 25 called red are
    assert "blue 20 75.0% 53.1% to 88.8% 100.0%" in text
    assert "Expected calibration error" in text
    assert "The same 12 images" in text
    for corruption in CORRUPTIONS:
        assert f"{corruption.name} {corruption.setting}" in text
    assert sum(heard) == corrupted_images(found, 12) == 12 * (1 + len(CORRUPTIONS))
    assert "too few images it is sure of for a grid" in text  # three classes do not fill four cells


def test_worse_pictures_are_those_that_the_model_sees(found, monkeypatch):
    """Black ones are as much of one class as of another, and the first is taken."""
    kept, black = Corruption("kept", "", lambda images: images), Corruption("black", "", lambda images: 0 * images)
    monkeypatch.setattr("codanet.report.card.CORRUPTIONS", (kept, black))
    text = words(card(colour_model(), found, images=60, done=[].append))
    shares = dict(re.findall(r"(as they are|kept|black) +([\d.]+%)", text))
    assert shares == {"as they are": "91.7%", "kept": "91.7%", "black": "33.3%"}


def test_no_worse_pictures_if_none_are_asked_for(found):
    text = words(card(colour_model(), found, images=0, done=[].append))
    assert "worse" not in text
    assert "Calibration" in text


def test_maps_are_localised_on_grids_where_there_are_enough_classes():
    torch.manual_seed(0)
    labels = torch.arange(4).repeat(3)
    split = MemorySplit(torch.randint(256, (12, 3, 8, 8), dtype=torch.uint8), labels)
    model = CoDANet([Layer(4, rank=3, kernel_size=1)], image_size=8, temperature=1e-3)
    certain = find(model, Pictures(split), tuple("abcd"))
    certain.predictions.logits[torch.arange(12), labels] = certain.predictions.log_odds[:] = 1e9
    text = words(card(model, certain, images=0, done=[].append))
    assert "3 grids, 95% interval" in text
    assert "On grids of 2x2 images" in text
    assert "chance is 25%" in text


def test_a_reliability_figure_has_the_bins_that_hold_decisions(found):
    from codanet.metrics.calibration import reliability

    measured = reliability(found.predictions.logits.sigmoid(), found.predictions.labels)
    upper, lower = reliability_figure(measured).axes
    assert upper.lines[1].get_xydata().shape == (15, 2)
    assert sum(bar.get_height() for bar in lower.patches) == 60


def test_the_report_of_a_run_looks_at_what_it_held_out_not_at_the_test_images():
    settings = {"data": "digits", "seed": 3, "holdout": 100}
    data = images(settings, None).data
    whole = images({**settings, "holdout": 0}, None).data
    assert data is not None
    assert whole is not None
    expected = held_out(whole, 100, 3)
    assert torch.equal(data.val.images, expected.val.images)
    assert len(data.train) + len(data.val) == len(whole.train)
