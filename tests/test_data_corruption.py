"""Corruptions by what they must do to pictures that are known."""

import pytest
import torch

from codanet.data.corruption import CORRUPTIONS, blur, brightness, jpeg, noise, shift


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda each: f"{each.name} {each.setting}")
def test_every_corruption_changes_pictures_and_keeps_their_shape_and_range(corruption, channels):
    images = torch.rand(2, channels, 20, 16)
    before = images.clone()
    worse = corruption.apply(images)
    assert worse.shape == images.shape
    assert worse.dtype == images.dtype
    assert 0 <= float(worse.min()) <= float(worse.max()) <= 1
    assert not torch.equal(worse, images)
    assert torch.equal(corruption.apply(images), worse)  # the same every time
    assert torch.equal(images, before)


def test_a_blur_keeps_a_plain_picture_and_spreads_a_dot_by_its_deviation():
    plain = torch.full((1, 3, 32, 32), 0.3)
    torch.testing.assert_close(blur(plain, 0.04), plain)
    dot = torch.zeros(1, 1, 65, 65)
    dot[0, 0, 32, 32] = 1
    spread = blur(dot, 0.04)[0, 0]
    places = torch.arange(65.0) - 32
    assert float(spread.sum()) == pytest.approx(1, abs=1e-5)
    assert float((spread.sum(0) * places.square()).sum()) ** 0.5 == pytest.approx(0.04 * 65, rel=0.03)


def test_noise_has_its_deviation():
    assert float(noise(torch.full((4, 3, 50, 50), 0.5), 0.08).std()) == pytest.approx(0.08, rel=0.02)


def test_a_shift_moves_and_repeats_the_edge():
    row = torch.arange(8.0).div(10).view(1, 1, 1, 8).expand(1, 1, 8, 8)
    moved = shift(row, 1 / 4)
    torch.testing.assert_close(moved[0, 0, 0], torch.tensor([0, 0, 0, 0.1, 0.2, 0.3, 0.4, 0.5]))


def test_brightness_is_cut_off_at_white():
    assert brightness(torch.tensor([[[[0.2, 0.9]]]]), 1.5).flatten().tolist() == pytest.approx([0.3, 1.0])


def test_more_compression_loses_more():
    images = torch.rand(1, 3, 32, 32)
    assert (jpeg(images, 15) - images).abs().mean() > (jpeg(images, 50) - images).abs().mean() > 0
