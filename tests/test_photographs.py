"""Folders of photographs as people have them: what is odd is said in a sentence, and nothing is lost."""

import shutil

import pytest
from PIL import Image

from codanet._support.errors import DataError
from codanet.data.photographs import load_photographs, usual_shape
from test_training_photos import COLOURS, photograph


@pytest.fixture
def folder(tmp_path):
    for number, (name, colour) in enumerate(COLOURS.items()):
        for index in range(15):
            photograph(tmp_path / name / f"{index}.png", colour, 100 * number + index)
    return tmp_path


def loaded(folder, **options):
    return load_photographs(folder, side=32, **options)


def test_a_sound_folder_says_nothing(folder, recwarn):
    data = loaded(folder)
    assert not recwarn.list
    assert (len(data.train), len(data.val), data.classes) == (24, 6, ("blue", "red"))


def test_one_class_is_none(folder):
    shutil.rmtree(folder / "red")
    with pytest.raises(DataError, match=r"has only one class \('blue'\)"):
        loaded(folder)


def test_a_folder_without_pictures(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "dog").mkdir()
    with pytest.raises(DataError, match=r"2 class folders of .* \(cat, dog\) have no readable picture"):
        loaded(tmp_path)


@pytest.mark.parametrize("suffix", [".HEIC", ".dng", ".nef"])
def test_what_cameras_write_is_named_and_left_out(folder, suffix):
    (folder / "red" / f"IMG_0001{suffix}").write_bytes(b"\0\0\0\x18ftypheic")
    with pytest.warns(UserWarning, match=rf"1 files .* are {suffix.lower()}, which are not read .*export them as JPEG"):
        assert len(loaded(folder).train) == 24


def test_broken_pictures_are_left_out(folder):
    (folder / "red" / "3.png").write_bytes((folder / "red" / "3.png").read_bytes()[:20])
    with pytest.warns(UserWarning, match=r"1 of 30 files .* are skipped: red/3.png"):
        data = loaded(folder)
    assert len(data.train) + len(data.val) == 29


def test_many_broken_pictures_are_refused(folder):
    for index in range(6):
        (folder / "red" / f"{index}.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"6 of 30 files .* are not readable pictures .*repair or remove them"):
        loaded(folder)


def test_a_single_pixel_is_a_picture(folder):
    photograph(folder / "red" / "dot.png", COLOURS["red"], size=(1, 1))
    data = loaded(folder)
    images = data.train.__getitems__(range(len(data.train)))[0]
    assert images.shape[1:] == (3, *data.image_size)


def test_a_hundred_megapixels_are_too_many(folder):
    Image.new("1", (12_500, 8_000)).save(folder / "red" / "poster.png")
    with pytest.warns(UserWarning, match=r"skipped: red/poster.png"):
        data = loaded(folder)
    assert len(data.train) + len(data.val) == 30


def test_the_same_photograph_in_both_parts_is_a_leak(folder):
    shutil.copytree(folder / "red", folder / "val" / "red")
    shutil.copytree(folder / "blue", folder / "val" / "blue")
    for name in COLOURS:
        shutil.move(folder / name, folder / "train" / name)
    with pytest.warns(UserWarning, match=r"30 validation photographs are among the training ones as well .*flattered"):
        loaded(folder)


def test_a_class_of_three_is_said_to_be_small(folder):
    for index in range(3):
        photograph(folder / "green" / f"{index}.png", (30, 200, 40), index)
    with pytest.warns(UserWarning, match=r"few photographs to learn from \(green 2\): expect little"):
        data = loaded(folder)
    assert data.val.labels.bincount().tolist() == [3, 1, 3]


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ([(300, 400)] * 3, (224, 288)),
        ([(400, 300)] * 2 + [(300, 400)], (288, 224)),
        ([(500, 500)], (224, 224)),
        ([(100, 1000)], (224, 288)),
    ],
)
def test_photographs_are_taken_in_their_usual_shape(sizes, shape):
    assert usual_shape(sizes, 224) == shape
