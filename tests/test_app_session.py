"""What a visitor does: boxes, classes, pictures good and bad, another model, a multi-image."""

import pytest
import torch

import codanet
from codanet import CoDANet
from codanet.app import answers, session, start
from codanet.app.session import Gallery, Session
from codanet.data import ImageData, MemorySplit, load_data
from codanet.data.examples import PHOTOGRAPHS, examples
from codanet.export.page import page
from codanet.models.network import Layer
from colours import colour_model, halves
from visitors import BAD, SOURCES, encoded, given, random_model


@pytest.mark.parametrize(
    ("box", "clipped"),
    [
        ([9, 8, 2, 3], (2, 3, 9, 8)),
        ([-5, -5, 99, 99], (0, 0, 16, 16)),
        ([4, 4, 4, 4], (4, 4, 5, 5)),
        ([16, 16, 16, 16], (15, 15, 16, 16)),
    ],
)
def test_boxes_are_brought_inside(box, clipped, opened):
    assert session.choose_box(opened, box).box == clipped


@pytest.mark.parametrize("box", ["all", [1, 2, 3], [1, 2, 3, float("nan")], [1, 2, 3, "4"], {"path": "x"}])
def test_bad_boxes(box, opened):
    with pytest.raises(ValueError, match="box"):
        session.choose_box(opened, box)


@pytest.mark.parametrize("number", [-1, 3, True, 1.5, "0", None, {}])
def test_bad_classes(number, opened):
    with pytest.raises(ValueError, match="not a class of this model"):
        session.choose_class(opened, number)


def test_class_and_its_opposite(opened):
    chosen = session.choose_versus(session.choose_class(opened, 2), 0)
    assert (chosen.target, chosen.versus) == (2, 0)
    assert session.choose_versus(chosen, -1).versus is None
    assert session.choose_versus(chosen, 2).versus is None  # not against itself
    assert session.choose_class(chosen, 0).versus is None


@pytest.mark.parametrize("kind", SOURCES)
def test_a_picture_is_what_read_image_makes_of_it(kind, gallery):
    found = session.take_upload(gallery, Session("colours"), given(SOURCES[kind]), kind)
    wanted = codanet.read_image(SOURCES[kind], gallery.models["colours"])
    assert torch.allclose(found.read.image, wanted, atol=1.5 / 255)
    assert found.shown == ("upload-1",)
    assert found.photo.startswith("data:image/")
    if kind == "turned":  # red is above blue, not left of it
        assert found.read.image[0, :6].mean() > 0.9 > 0.1 > found.read.image[0, 10:].mean()


@pytest.mark.parametrize("kind", BAD)
def test_bad_files(kind, gallery, opened):
    content, words = BAD[kind]
    with pytest.raises(ValueError, match=words) as said:
        session.take_upload(gallery, opened, given(content), "x.png")
    assert "bytes given" not in str(said.value)
    assert "/" not in str(said.value)  # no path of the server


@pytest.mark.parametrize("content", [None, 7, {"path": "/etc/passwd"}, "no base64!", "data:image/png;base64,AAAA"])
def test_what_is_no_file(content, gallery):
    with pytest.raises(ValueError, match="picture|damaged"):
        session.take_upload(gallery, Session("colours"), content, "x")


def test_large_files(gallery, monkeypatch):
    monkeypatch.setattr(session, "MOST_BYTES", 2**20)
    with pytest.raises(ValueError, match="larger than the 1 MiB"):
        session.take_upload(gallery, Session("colours"), "A" * (2**21))


def test_only_the_last_uploads_are_kept(gallery):
    now = Session("colours")
    for number in range(session.MOST_UPLOADS + 3):
        now = session.take_upload(gallery, now, given(encoded(halves(20 + number))), f"{number}")
    assert len(now.uploads) == session.MOST_UPLOADS
    assert now.uploads[0].title == str(session.MOST_UPLOADS + 2)
    with pytest.raises(ValueError, match="no longer here"):
        session.open_picture(gallery, now, "upload-1")


def test_another_model_keeps_the_visitors_picture(gallery, opened):
    other = random_model()
    examples_of = {"other": (session.seen_by("example-0", "red", halves(), {"other": other}),)}
    both = Gallery({**gallery.models, "other": other}, {**gallery.pictures, **examples_of})
    upload = session.take_upload(both, Session("colours"), given(encoded(halves())), "mine")
    assert session.open_model(both, upload, "other").shown == ("upload-1",)
    assert len(session.open_model(both, upload, "other").read.logits) == 5
    example = session.open_picture(both, upload, "example-1")
    assert session.open_model(both, example, "other").shown == ("upload-1",)  # the first of what there is
    with pytest.raises(ValueError, match="not on this page"):
        session.open_model(both, upload, "../secret")


def test_multi_image_finds_each_class(gallery):
    keys = ["example-2", "example-0", "example-1", "example-3"]  # blue, red, green, white
    now = Session("colours")
    for key in keys:
        now = session.toggle_mixed(gallery, now, key)
    assert now.mixed == tuple(keys)
    assert session.toggle_mixed(gallery, now, "example-0").mixed == ("example-2", "example-1", "example-3")
    now = session.mix(gallery, now, 2)
    assert now.cells == 2
    assert now.read.size == (32, 32)
    finds = session.finds(gallery, now)
    assert [target for target, _, _ in finds[:3]] == [2, 0, 1]
    assert [round(part, 6) for _, _, part in finds[:3]] == [1.0, 1.0, 1.0]
    shown = answers.found_classes(gallery, now)
    assert shown.count("100% inside") == 3
    assert "Evenly spread it would be 25%" in shown
    with pytest.raises(ValueError, match="3 x 3 needs 9 pictures and there are 4"):
        session.mix(gallery, now, 3)
    with pytest.raises(ValueError, match="not offered"):
        session.mix(gallery, now, 40)


def test_examples():
    digits = CoDANet(
        [Layer(10, 1, kernel_size=1)], image_channels=1, image_size=8, class_names=tuple("0123456789")
    ).eval()
    assert list(examples(digits)) == list("0123456789")
    photographs = examples(random_model())
    assert list(photographs) == list(PHOTOGRAPHS)
    assert all(photograph.mode == "RGB" for photograph in photographs.values())
    images = torch.zeros(6, 3, 16, 16, dtype=torch.uint8)
    split = MemorySplit(images, torch.tensor([0, 1, 2, 3, 4, 4]))
    data = ImageData("mine", tuple("abcde"), split, split, (16, 16), 3, "")
    assert list(examples(random_model(), data)) == list("abcde")
    assert list(examples(digits, load_data("digits"))) == list("0123456789")
    assert list(examples(colour_model(), data)) == list(PHOTOGRAPHS)  # the data have another number of classes
    for shown in (lambda models: start(models, data=data), lambda models: page(models, "why.html", data=data)):
        with pytest.raises(ValueError, match="the examples are of 5 classes and the models have 3: give"):
            shown({"colours": colour_model()})
