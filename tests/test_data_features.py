"""The cache of features: complete, checked, resumable, bounded."""

import numpy as np
import pytest
import torch

from codanet._support.errors import DataError
from codanet.data.features import FeatureCache, extract, views_within

SHAPE = (2, 3, 3)
MADE_OF = {"backbone": "stranger", "layer": "join", "seed": 0}


def opened(folder, **changes) -> FeatureCache:
    return FeatureCache(folder / "features", {**MADE_OF, **changes}, views=2, pictures=5, shape=SHAPE)


def maps(view: int, picture: int) -> torch.Tensor:
    return torch.full(SHAPE, 10.0 * view + picture + 1)


def values(cache: FeatureCache) -> list[float]:
    views, pictures = torch.arange(2).repeat_interleave(5), torch.arange(5).repeat(2)
    return cache.read(views, pictures)[:, 0, 0, 0].tolist()


FULL = [1.0, 2, 3, 4, 5, 11, 12, 13, 14, 15]


def test_what_was_computed_is_read(tmp_path):
    cache = opened(tmp_path)
    assert len(cache.missing()) == 10
    told = []
    extract(cache, maps, told.append, workers=2)
    assert cache.missing() == []
    assert values(cache) == FULL
    assert sum(told) == 10


def test_an_interrupted_extraction_goes_on(tmp_path):
    calls = []

    def until_the_fourth(view, picture):
        if len(calls) == 4:
            raise KeyboardInterrupt
        calls.append((view, picture))
        return maps(view, picture)

    with pytest.raises(KeyboardInterrupt):
        extract(opened(tmp_path), until_the_fourth, workers=1)
    cache = opened(tmp_path)
    assert len(cache.missing()) == 6
    extract(cache, maps)
    assert values(cache) == FULL


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path):
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "mine.csv").write_text("kept")
    with pytest.raises(DataError, match=r"holds 'mine.csv', which is no feature"):
        opened(tmp_path)
    assert (tmp_path / "features" / "mine.csv").read_text() == "kept"


def test_features_that_cannot_be_opened_now_are_kept(tmp_path, monkeypatch):
    extract(opened(tmp_path), maps)

    def no_memory(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(np, "memmap", no_memory)
    with pytest.raises(DataError, match="Cannot allocate memory"):
        opened(tmp_path)
    with pytest.raises(DataError, match="Cannot allocate memory"):
        opened(tmp_path / "new")
    assert not (tmp_path / "new" / "features").exists()  # nothing was in it
    monkeypatch.undo()
    assert values(opened(tmp_path)) == FULL


def test_damaged_entries_are_computed_again(tmp_path):
    extract(opened(tmp_path), maps)
    path = tmp_path / "features" / "features.bin"
    numbers = np.fromfile(path, np.uint8)
    numbers[-1] ^= 255
    numbers.tofile(path)
    cache = opened(tmp_path)
    assert cache.missing() == [(1, 4)]
    extract(cache, maps)
    assert values(cache) == FULL


@pytest.mark.parametrize("damage", ["truncated", "no index", "no json"])
def test_a_folder_that_is_not_whole_is_made_again(tmp_path, damage):
    extract(opened(tmp_path), maps)
    folder = tmp_path / "features"
    if damage == "truncated":
        (folder / "features.bin").write_bytes(b"abc")
        cache = opened(tmp_path)
    else:
        if damage == "no index":
            (folder / "index.json").unlink()
        else:
            (folder / "index.json").write_text("{")
        with pytest.warns(UserWarning, match="made again"):
            cache = opened(tmp_path)
    assert len(cache.missing()) == 10


def test_features_of_other_settings_are_made_again(tmp_path):
    extract(opened(tmp_path), maps)
    with pytest.warns(UserWarning, match="of other settings and are made again"):
        cache = opened(tmp_path, layer="left")
    assert len(cache.missing()) == 10


def test_threads_are_put_back(tmp_path):
    before = torch.get_num_threads()
    extract(opened(tmp_path), maps)
    assert torch.get_num_threads() == before


def test_features_beyond_half_precision_are_refused(tmp_path):
    with pytest.raises(DataError, match="not finite or beyond 65504"):
        extract(opened(tmp_path), lambda view, picture: torch.full(SHAPE, 1e6))


def test_nothing_is_left_after_removal(tmp_path):
    cache = opened(tmp_path)
    cache.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"the features need .* MiB in .*make room"):
        FeatureCache(tmp_path / "file" / "features", MADE_OF, 1, 1, SHAPE)


@pytest.mark.parametrize(("limit", "views"), [(0, 1), (36 * 10, 1), (36 * 20, 2), (36 * 39, 3), (10**9, 8)])
def test_the_cache_is_bounded(limit, views):
    assert views_within(limit, 10, SHAPE, 8) == views


def test_what_is_validated_with_counts_among_what_is_kept():
    assert [views_within(36 * 40, 10, SHAPE, 8, others) for others in (0, 1, 10, 11, 100)] == [4, 3, 3, 2, 1]
