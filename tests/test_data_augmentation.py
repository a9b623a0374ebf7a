"""Augmentation against its slow, plain form; seeds; the caller's random state."""

import time

import pytest
import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from codanet.data import DataError
from codanet.data.augmentation import (
    CenterCrop,
    Compose,
    FlipCrop,
    RandAugment,
    RandomCrop,
    augmentation,
    erased,
    least_most_or_patches,
    list_augmentations,
    without_least,
)
from codanet.data.tiling import mosaics

pytestmark = pytest.mark.usefixtures("one_thread")


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def images(count: int = 12, channels: int = 3, side: int = 16) -> Tensor:
    return torch.rand(count, channels, side, side, generator=seeded(99))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", list_augmentations())
def test_every_augmentation(name: str, channels: int) -> None:
    given = images(channels=channels)
    before, state = given.clone(), torch.get_rng_state()
    step = augmentation(name, 14 if name in ("imagenet", "centre-crop") else 16)
    first, again, other = (step(given, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name in ("none", "centre-crop"))
    assert torch.equal(given, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.dtype == torch.float32
    assert first.shape == (12, channels, *([14, 14] if name in ("imagenet", "centre-crop") else [16, 16]))
    assert first.min() >= 0
    assert first.max() <= 1
    assert not list(step.parameters())
    assert not first.requires_grad


def test_generator_moves_on() -> None:
    generator, step = seeded(), FlipCrop()
    assert not torch.equal(step(images(), generator), step(images(), generator))


@pytest.mark.parametrize("flip", [False, True])
def test_flip_crop_is_a_window_of_the_padded_image(flip: bool) -> None:
    given = images(200)
    result = FlipCrop(4, flip=flip)(given, seeded())
    found = set()
    for before, after in zip(pad(given, [4] * 4), result, strict=True):
        matches = [
            (row, column, mirrored)
            for mirrored in (False, True)
            for row in range(9)
            for column in range(9)
            if torch.equal(after.flip(2) if mirrored else after, before[:, row : row + 16, column : column + 16])
        ]
        assert len(matches) == 1
        found.add(matches[0])
    assert {row for row, _, _ in found} == {column for _, column, _ in found} == set(range(9))
    assert {mirrored for _, _, mirrored in found} == ({False, True} if flip else {False})


def test_crops() -> None:
    given = images(side=20)
    assert torch.equal(CenterCrop(16)(given, seeded()), given[:, :, 2:18, 2:18])
    assert RandomCrop((16, 18))(given, seeded()).shape == (12, 3, 16, 18)
    assert torch.equal(RandomCrop(20)(given, seeded()), given)
    for crop in (CenterCrop(21), RandomCrop(21)):
        with pytest.raises(DataError, match="does not fit"):
            crop(given, seeded())


def test_rand_augment_draws_for_every_image() -> None:
    same = images(1).expand(64, -1, -1, -1)
    result = RandAugment(1, 9)(same, seeded())
    assert len({row.numpy().tobytes() for row in result}) >= 10


def test_rand_augment_magnitude_moves_more() -> None:
    moved = [(RandAugment(2, m)(images(64), seeded()) - images(64)).abs().mean() for m in (1, 9)]
    assert moved[1] > 0.05
    assert moved[0] > 0


def test_empty_and_single_batches() -> None:
    for name in list_augmentations():
        step = augmentation(name, 16)
        assert step(images(1), seeded()).shape == (1, 3, 16, 16)
        assert step(images(0), seeded()).shape == (0, 3, 16, 16)


def test_compose_in_order() -> None:
    result = Compose(CenterCrop(8), FlipCrop(2))(images(), seeded())
    assert torch.equal(result, FlipCrop(2)(images()[:, :, 4:12, 4:12], seeded()))


def test_bad_settings() -> None:
    with pytest.raises(DataError, match="did you mean 'flip-crop'"):
        augmentation("flipcrop", 32)
    for n, m in ((0, 9), (2, 0), (2, 30)):
        with pytest.raises(DataError, match="RandAugment"):
            RandAugment(n, m)
    with pytest.raises(DataError, match="padding"):
        FlipCrop(-1)


def test_flip_crop_is_fast() -> None:
    given, generator, step = torch.rand(512, 3, 32, 32), seeded(), FlipCrop()
    step(given, generator)
    times = []
    for _ in range(5):
        start = time.process_time()
        step(given, generator)
        times.append(time.process_time() - start)
    assert min(times) / 512 < 1e-4  # processor seconds per image


def test_the_least_contributing_pixels_go_first() -> None:
    images = torch.ones(50, 6, 8, 8)
    contributions = torch.rand(50, 8, 8, generator=seeded())
    out = without_least(images, contributions, torch.zeros(1, 6, 1, 1), seeded())
    kept = out[:, 0] == 1
    assert torch.equal(out, kept[:, None].expand_as(images).float())  # a pixel goes from all channels, or from none
    for own, some in zip(contributions, kept, strict=True):
        assert own[~some].max() < own[some].min() if not some.all() else True
    shares = 1 - kept.float().mean((1, 2))
    assert shares.max() <= 0.25 + 1 / 64
    assert shares.min() < 0.05
    assert 0.09 < shares.mean() < 0.16  # every share up to a quarter is as likely


def test_least_and_most_contributing_pixels_and_patches_go_equally_often() -> None:
    contributions = torch.rand(600, 12, 12, generator=seeded())
    gone = least_most_or_patches(contributions, seeded())
    shares = gone.float().mean((1, 2))
    assert shares.max() <= 0.25 + 1 / 144
    assert 0.11 < shares.mean() < 0.14  # every share up to a quarter is as likely
    some = shares > 0.1
    least = [own[away].max() < own[~away].min() for own, away in zip(contributions[some], gone[some], strict=True)]
    most = [own[away].min() > own[~away].max() for own, away in zip(contributions[some], gone[some], strict=True)]
    left = (~torch.tensor(least) & ~torch.tensor(most)).nonzero()[:, 0]
    for kind in (sum(least), sum(most), len(left)):
        assert 0.25 < kind / some.sum() < 0.42
    beside = (gone[some][left][:, :, 1:] & gone[some][left][:, :, :-1]).float().mean((1, 2))
    assert (beside > 2 * shares[some][left] ** 2).float().mean() > 0.9  # next to each other, unlike pixels at random


def test_erased_pixels_are_gone_from_all_channels() -> None:
    images = torch.rand(400, 6, 16, 16) + 0.1
    out = erased(images, 0.5, torch.zeros(1, 1, 1, 1), seeded())
    gone = (out == 0).all(1)  # [N, H, W]
    assert torch.equal(out, images * ~gone[:, None])
    shares = gone.float().mean((1, 2))
    assert shares.max() < 0.65  # the share is at most a half, of 256 pixels drawn one by one
    assert abs(shares.mean() - 0.25) < 0.03
    assert shares.std() > 0.1  # each image has its own
    assert torch.equal(out, erased(images, 0.5, torch.zeros(1, 1, 1, 1), seeded()))
    assert torch.equal(erased(images, 0.0, torch.zeros(1, 1, 1, 1), seeded()), images)


def test_mosaics() -> None:
    images = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 3, 4, 6).contiguous()
    pictures, labels = mosaics(images, torch.tensor([0, 1, 1, 2, 3, 3, 3, 3]), 5)
    assert pictures.shape == (2, 3, 8, 12)
    assert (pictures[1, :, :4, :6] == 4).all()
    assert (pictures[1, :, :4, 6:] == 5).all()
    assert (pictures[1, :, 4:, :6] == 6).all()
    assert (pictures[1, :, 4:, 6:] == 7).all()
    assert labels.tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 1, 0]]
    with pytest.raises(DataError, match="multiple of 4"):
        mosaics(images[:6], torch.zeros(6, dtype=torch.long), 5)
