"""Folders of pictures with real faults, splits and batches."""

import os
import time
import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image

from codanet.data import DataError, FolderSplit, MemorySplit, Shuffle, batches, folder, load_data
from codanet.data.cache import fingerprint


def write_picture(path: Path, shade: int = 100, size: tuple[int, int] = (12, 10)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, 0, 255 - shade)).save(path)
    return path


def write_classes(root: Path, classes: dict[str, int], **options: tuple[int, int]) -> Path:
    for number, (name, count) in enumerate(classes.items()):
        for index in range(count):
            write_picture(root / name / f"{index:03}.png", 40 * number + index, **options)
    return root


def refused(words: str, name: object, **options: object) -> None:
    with pytest.raises(DataError, match=words) as error:
        load_data(name, **options)  # type: ignore[arg-type]
    assert not str(error.value).endswith(".")
    assert "\n" not in str(error.value)


def test_folder_with_train_and_val(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"cat": 6, "dog": 4})
    for name in ("val", "valid", "test"):
        write_classes(tmp_path / name, {"cat": 2, "dog": 1})
    data = load_data(tmp_path)
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.val), data.image_size, data.channels) == (10, 3, (10, 12), 3)
    assert data.train.labels.tolist() == [0] * 6 + [1] * 4
    assert data.train[6][0][:, 0, 0].tolist() == [40, 0, 215]
    assert data.name == tmp_path.name
    assert not data.drawn
    assert load_data(str(tmp_path), size=8).image_size == (8, 8)


def test_folder_with_seeded_split(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "pets", {"cat": 20, "dog": 10, "owl": 1})
    first, again, other = load_data(root), load_data(root), load_data(root, seed=3)
    assert first.val.labels.bincount(minlength=3).tolist() == [4, 2, 0]
    assert first.train.labels.bincount().tolist() == [16, 8, 1]
    assert first.checksum == again.checksum != other.checksum
    assert first.drawn
    only_train = load_data(write_classes(tmp_path / "p" / "train", {"cat": 20, "dog": 10}).parent)
    assert len(only_train.val) == 6


def test_classes_called_like_splits(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "vehicles", {"bus": 5, "train": 5})
    assert load_data(root).classes == ("bus", "train")


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "pets", {"cat": 5, "dog": 5, ".git": 1, "__MACOSX": 1})
    for name in (".DS_Store", "Thumbs.db", "._001.png"):
        (root / "cat" / name).write_text("junk")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_data(root)
    assert data.classes == ("cat", "dog")
    assert data.skipped == ()


def test_unreadable_files_are_named_and_skipped(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "pets", {"cat": 30, "dog": 30})
    (root / "cat" / "notes.txt").write_text("hello")
    (root / "dog" / "empty.png").touch()
    picture = write_picture(root / "dog" / "cut.png", size=(12, 10))
    picture.write_bytes(picture.read_bytes()[:45])
    with pytest.warns(UserWarning, match=r"3 of 63 files .*notes\.txt"):
        data = load_data(root)
    assert set(data.skipped) == {"cat/notes.txt", "dog/empty.png", "dog/cut.png"}
    assert len(data.train) + len(data.val) == 60
    for name in ("a", "b", "c", "d"):
        (root / "dog" / f"{name}.jpg").write_text("no picture")
    refused("7 of 67 files.*at most 10% are skipped", root)
    refused("7 of 67 files", root, size=8)


def test_one_bad_file_is_always_tolerated(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "pets", {"cat": 3, "dog": 3})
    (root / "cat" / "bad.png").touch()
    with pytest.warns(UserWarning, match="skipped"):
        assert load_data(root).skipped == ("cat/bad.png",)


def test_refused_folders(tmp_path: Path) -> None:
    refused("only one class", write_classes(tmp_path / "one", {"cat": 3}))
    (tmp_path / "one" / "dog").mkdir()
    refused("has no readable picture", tmp_path / "one")
    flat = tmp_path / "flat"
    write_picture(flat / "a.png")
    refused("has no class folders: put pictures in train/<class>/", flat)
    (tmp_path / "nothing").mkdir()
    refused("has no class folders", tmp_path / "nothing")
    refused("is not a folder", write_picture(tmp_path / "file.png"))
    refused("single picture", write_classes(tmp_path / "single", {"cat": 1, "dog": 1}))
    refused("neither root nor source", tmp_path / "one", root=tmp_path)


def test_classes_that_differ(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"cat": 3, "dog": 3, "owl": 3})
    write_classes(tmp_path / "val", {"cat": 3, "dog": 3})
    with pytest.warns(UserWarning, match="owl"):
        assert len(load_data(tmp_path).classes) == 3
    write_classes(tmp_path / "val", {"fox": 1})
    refused(r"training lacks \(fox\)", tmp_path)


def test_mixed_sizes_and_modes(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "pets", {"cat": 3, "dog": 3})
    write_picture(root / "cat" / "wide.png", size=(300, 40))
    for mode in ("L", "P", "RGBA", "LA", "1", "I;16"):
        Image.new(mode, (30, 50)).save(root / "dog" / f"mode {mode.replace(';', '')}.png")
    Image.new("CMYK", (20, 20)).save(root / "dog" / "cmyk.jpg")
    data = load_data(root)
    assert data.image_size == (20, 20)  # the median of the shorter sides
    assert len(data.train) + len(data.val) == 14
    assert {tuple(images.shape[1:]) for images, _ in batches(data.train, 5)} == {(3, 20, 20)}
    large = write_classes(tmp_path / "large", {"cat": 2, "dog": 2}, size=(400, 300))
    assert load_data(large).image_size == (224, 224)


def test_large_sets_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MEMORY_BYTES", 1000)
    root = write_classes(tmp_path / "pets", {"cat": 15, "dog": 15})
    (root / "cat" / "bad.png").write_text("no picture")
    with pytest.warns(UserWarning, match="skipped"):
        data = load_data(root, size=8)
    assert isinstance(data.train, FolderSplit)
    assert len(data.train) + len(data.val) == 30
    kept = [images for images, _ in batches(data.train, 7, workers=2)]
    assert sum(map(len, kept)) == len(data.train)
    monkeypatch.setattr(folder, "MEMORY_BYTES", 10**9)
    with pytest.warns(UserWarning, match="skipped"):
        in_memory = load_data(root, size=8)
    assert isinstance(in_memory.train, MemorySplit)
    assert torch.equal(torch.cat(kept), in_memory.train.images)
    assert in_memory.checksum == data.checksum


def test_file_that_breaks_later_is_left_out(tmp_path: Path) -> None:
    paths = [write_picture(tmp_path / f"{index}.png") for index in range(4)]
    split = FolderSplit(paths, torch.arange(4), 8)
    paths[1].write_bytes(paths[1].read_bytes()[:40])
    with pytest.warns(UserWarning, match=r"left out: .*1\.png"):
        images, labels = split.__getitems__([0, 1, 3])
    assert images.shape == (2, 3, 8, 8)
    assert labels.tolist() == [0, 3]
    with pytest.warns(UserWarning, match="left out"):
        images, labels = split.__getitems__([1])  # alone in its batch
    assert (images.shape, labels.shape) == ((0, 3, 8, 8), (0,))
    with pytest.raises(DataError, match="picture 1 cannot be read"), pytest.warns(UserWarning, match="left out"):
        split[1]
    paths[2].unlink()
    with pytest.raises(DataError, match="none of the 2"), pytest.warns(UserWarning, match="left out"):
        split.__getitems__([1, 2])


def test_names_that_are_not_utf8_tell_files_apart(tmp_path: Path) -> None:
    """As an old disk has them: Müller.png in Latin-1."""
    paths = [tmp_path / os.fsdecode(name) for name in (b"M\xfcller.png", b"M\xf6ller.png")]
    for path in paths:
        path.write_bytes(b"x")
        os.utime(path, (0, 0))
    one, other = (FolderSplit([path], torch.zeros(1, dtype=torch.long), 8).digest() for path in paths)
    assert one != other
    assert fingerprint(paths[:1]) != fingerprint(paths[1:])


def test_camera_formats_are_left_out_at_once(tmp_path: Path) -> None:
    """With the labels of what stays; and ten thousand files are no matter of minutes."""
    paths = [tmp_path / f"{index}.{kind}" for index in range(5000) for kind in ("jpg", "HEIC")]
    start = time.process_time()
    with pytest.warns(UserWarning, match="5000 files .* are .heic"):
        rest = folder.without_camera_formats(folder.Listing(paths, torch.arange(10_000)), tmp_path)
    assert time.process_time() - start < 5
    assert rest.paths == paths[::2]
    assert rest.labels.tolist() == list(range(0, 10_000, 2))


# splits and batches


def numbered(count: int = 50) -> MemorySplit:
    images = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2).contiguous()
    return MemorySplit(images, torch.arange(count))


def test_batches_in_order() -> None:
    found = list(batches(numbered(), 16))
    assert [len(images) for images, _ in found] == [16, 16, 16, 2]
    assert torch.cat([labels for _, labels in found]).tolist() == list(range(50))
    assert all(torch.equal(images[:, 0, 0, 0].long(), labels) for images, labels in found)
    assert len(batches(numbered(), 16, drop_last=True)) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffled_batches(workers: int) -> None:
    state = torch.get_rng_state()

    def orders(seed: int) -> list[list[int]]:
        loader = batches(numbered(), 16, shuffle=True, seed=seed, workers=workers)
        return [torch.cat([labels for _, labels in loader]).tolist() for _ in range(2)]

    first, again, other = orders(1), orders(1), orders(2)
    assert first == again
    assert first[0] != first[1] != other[1]
    assert sorted(first[0]) == list(range(50))
    assert torch.equal(torch.get_rng_state(), state)


def test_epoch_decides_the_order() -> None:
    through = Shuffle(numbered(), 5)
    epochs = [list(through) for _ in range(4)]
    resumed = Shuffle(numbered(), 5)
    resumed.set_epoch(2)
    assert [list(resumed), list(resumed)] == epochs[2:]


def test_single_items_and_bad_splits() -> None:
    image, label = numbered()[7]
    assert image.shape == (3, 2, 2)
    assert label == 7
    with pytest.raises(IndexError):
        numbered()[50]
    for images, labels in (
        (torch.zeros(3, 3, 2, 2), torch.arange(3)),
        (torch.zeros(3, 3, 2, 2, dtype=torch.uint8), torch.arange(4)),
        (torch.zeros(3, 3, 2, 2, dtype=torch.uint8), torch.arange(3.0)),
    ):
        with pytest.raises(DataError):
            MemorySplit(images, labels)
    with pytest.raises(DataError, match="boxes"):
        MemorySplit(torch.zeros(3, 3, 2, 2, dtype=torch.uint8), torch.arange(3), torch.zeros(2, 4))
    with pytest.raises(DataError, match="batch size 0"):
        batches(numbered(), 0)
