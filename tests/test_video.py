"""Clips made here: their frames, their times, and the colour of a map at a known place in every frame."""

import sys
import weakref

import numpy as np
import pytest
import torch
from PIL import Image

from codanet import CoDANet, plot
from codanet.data import DataError
from codanet.data import film as clip
from codanet.data.film import Frame, frames, is_moving, writing
from codanet.models.network import Layer
from codanet.plot import film as video
from codanet.plot.film import explain_video
from planted import RED, WHITE, planted

NAMES = ("dark", "light", "none")
LEVELS = (40, 60, 200, 230, 250)  # grey, a frame each: two dark, three light
LEFT, RIGHT, MIDDLE = 16 + 120, 16 + 240 + 14 + 120, 16 + 26 + 120  # the middle of either panel, in dots


class Planted:
    """Every pixel contributes its grey less a half; light frames are of class 1, dark ones of class 0."""

    image_size, image_channels, num_classes, class_names = (8, 8), 3, 3, NAMES
    device, dtype = torch.device("cpu"), torch.float32

    def __call__(self, images):
        light = images.mean((1, 2, 3)) - 0.5
        return torch.stack([-light, light, light * 0 - 9], 1)

    def explain(self, images, target):
        values = images.mean(1) - 0.5
        return planted(values, [target] * len(images), images, NAMES, self(images))


def grey(level, size=(32, 24)):
    return Image.new("RGB", size, (level, level, level))


@pytest.fixture
def gif(tmp_path):
    path = tmp_path / "clip.gif"
    stills = [grey(level) for level in LEVELS]
    stills[0].save(path, save_all=True, append_images=stills[1:], duration=[40, 60, 80, 100, 120], loop=0)
    return path


def near(found, expected, tolerance=0):
    return np.abs(np.asarray(found, int) - np.asarray(expected, int)).max() <= tolerance


@pytest.mark.parametrize(("suffix", "tolerance"), [(".gif", 6), (".mp4", 10)])
def test_frames_beside_their_maps_on_one_scale(gif, tmp_path, suffix, tolerance):
    made = explain_video(Planted(), gif, tmp_path / f"why{suffix}", progress=False)
    assert (made.frames, made.class_name, made.predicted) == (5, "light", 3)  # predicted most often
    assert made.seconds == pytest.approx(0.4)
    values = np.array(LEVELS) / 255 - 0.5
    assert made.scale == pytest.approx(plot.colour_scale(np.repeat(values, 64)), rel=1e-4)
    found = list(frames(made.path))
    assert [round(frame.seconds, 3) for frame in found] == [0.04, 0.06, 0.08, 0.1, 0.12]
    for frame, level, value in zip(found, LEVELS, values, strict=True):
        assert frame.image.size == (2 * 16 + 2 * 240 + 14, 2 * 16 + 2 * 26 + 240)
        assert near(frame.image.getpixel((LEFT, MIDDLE)), [level] * 3, tolerance)
        expected = plot.heatmap(np.full((1, 1), value), made.scale)[0, 0, 0]
        assert near(frame.image.getpixel((RIGHT, MIDDLE)), expected, tolerance)
        assert near(frame.image.getpixel((2, 2)), WHITE, 0 if suffix == ".gif" else 3)
    red, _, blue = found[0].image.getpixel((RIGHT, MIDDLE))
    assert blue > red + 80
    assert near(found[4].image.getpixel((RIGHT, MIDDLE)), RED, tolerance)


def test_a_class_of_ones_own_and_a_part_of_the_clip(gif, tmp_path):
    made = explain_video(Planted(), gif, tmp_path / "a.gif", target="dark", start=0.1, end=0.2, progress=False)
    assert (made.class_name, made.frames, made.predicted) == ("dark", 2, 0)  # shown from 0.10 and from 0.18 seconds
    for options, words in [
        ({"target": "drak"}, "did you mean 'dark'"),
        ({"target": "all"}, "unknown class 'all'"),
        ({"start": 9.0}, "has no frames from 9.0 seconds on: it is 0.40 seconds long"),
        ({"start": 0.2, "end": 0.1}, "is empty"),
        ({"palette": "blue"}, "unknown palette"),
        ({"scale": -1.0}, "scale is -1.0"),
    ]:
        with pytest.raises(ValueError, match=words):
            explain_video(Planted(), gif, tmp_path / "b.gif", progress=False, **options)
    assert not (tmp_path / "b.gif").exists()


def test_the_home_of_a_user(gif, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert explain_video(Planted(), gif, "~/why.gif", progress=False).path == tmp_path / "why.gif"
    assert not (tmp_path / "~").exists()


def test_a_real_model_and_every_style(gif, tmp_path):
    model = CoDANet([Layer(8, 2), Layer(3, 2)], image_size=(8, 12), class_names=NAMES).eval()
    for style in plot.STYLES:
        made = explain_video(model, gif, tmp_path / f"{style}.gif", style=style, progress=False)
        first = next(frames(made.path)).image
        assert first.size[0] == 2 * 16 + 2 * 240 + 14
        assert first.getpixel((1, 1)) == WHITE
    grey_model = CoDANet([Layer(3, 2)], image_channels=1).eval()
    assert explain_video(grey_model, gif, tmp_path / "grey.gif", progress=False).frames == 5


def test_film_to_gif(tmp_path):
    with writing(tmp_path / "a.mp4", (64, 48), []) as film:
        for level in LEVELS:
            film.write(grey(level, (64, 48)), 0.05)
    made = explain_video(Planted(), tmp_path / "a.mp4", tmp_path / "b.gif", progress=False)
    back = list(frames(made.path))
    assert len(back) == 5
    assert sum(frame.seconds for frame in back) == pytest.approx(0.25)
    assert near(back[3].image.getpixel((LEFT, MIDDLE)), [LEVELS[3]] * 3, 8)


def test_films_without_x264(tmp_path, monkeypatch):
    av = pytest.importorskip("av")
    monkeypatch.setattr(av, "codecs_available", av.codecs_available - {"libx264"})
    with writing(tmp_path / "a.mp4", (64, 48), []) as film:
        for level in LEVELS:
            film.write(grey(level, (64, 48)), 0.05)
    back = list(frames(tmp_path / "a.mp4"))
    assert [round(frame.seconds, 4) for frame in back] == [0.05] * 5
    assert near(back[3].image.getpixel((32, 24)), [LEVELS[3]] * 3, 8)
    with av.open(str(tmp_path / "a.mp4")) as film:
        assert film.streams.video[0].codec_context.name == "mpeg4"


def test_a_gif_keeps_its_colours_in_every_frame(gif, tmp_path):
    path = explain_video(Planted(), gif, tmp_path / "why.gif", progress=False).path
    content, place, locals_ = path.read_bytes(), 13 + 768, 0
    assert content[10] == 0xF7  # one global table of 256 colours
    while content[place : place + 1] != b";":
        if content[place : place + 1] == b"!":
            place += 2
        else:
            assert content[place : place + 1] == b","
            locals_ += content[place + 9] >> 7
            place += 11
        while content[place]:
            place += content[place] + 1
        place += 1
    assert locals_ == 0
    assert place == len(content) - 1


def test_odd_times_do_not_drift(tmp_path):
    with writing(tmp_path / "a.gif", (8, 8), [(0, 0, 0)]) as file:
        for _ in range(30):
            file.write(grey(0, (8, 8)), 1 / 30)
    assert sum(frame.seconds for frame in frames(tmp_path / "a.gif")) == pytest.approx(1.0, abs=0.01)


def test_memory_is_bounded(tmp_path, monkeypatch):
    alive = most = 0

    def gone():
        nonlocal alive
        alive -= 1

    def endless(source, *, start=0.0, end=None):
        nonlocal alive, most
        for index in range(80):
            image = grey(index % 256)
            weakref.finalize(image, gone)
            alive += 1
            most = max(most, alive)
            yield Frame(image, 0.02)

    monkeypatch.setattr(video, "frames", endless)
    monkeypatch.setattr(video, "SAMPLES", 8)
    made = explain_video(Planted(), "any", tmp_path / "a.gif", progress=False)
    assert made.frames == 80
    assert most <= 3  # one that is made, one that is fitted, one that is just let go


def test_the_sample_is_spread_evenly():
    sample = video._Sample()
    for index in range(1000):
        sample.add(grey(0, (1, 1)), torch.tensor(index))
    kept = [int(picture) for picture in sample.pictures]
    assert 32 <= len(kept) <= 64
    assert set(np.diff(kept)) == {16}
    assert kept[0] == 0


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.gif", b"", "is not a moving picture that can be read: give an animated GIF"),
        ("text.gif", b"hello, this is text", "is not a moving picture"),
        ("list.mp4", b"#EXTM3U\n#EXTINF:1,\nhttp://localhost/x.ts\n", "is not a moving picture"),
        ("cut.mp4", b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", "damaged or in a form that cannot be read"),
        ("cut.mkv", b"\x1a\x45\xdf\xa3" + bytes(20), "damaged or in a form that cannot be read"),
        ("head.gif", b"GIF89a\x01", "not a picture that can be read"),
    ],
)
def test_what_is_no_clip(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        explain_video(Planted(), tmp_path / name, tmp_path / "why.gif", progress=False)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "why.gif").exists()


def test_cut_short_in_the_middle(gif, tmp_path):
    noise = [Image.effect_noise((64, 64), 90).convert("RGB") for _ in range(3)]
    noise[0].save(gif, save_all=True, append_images=noise[1:], duration=50)
    content = gif.read_bytes()
    gif.write_bytes(content[: len(content) // 2])  # within the second of three frames of about the same length
    with pytest.raises(DataError, match="damaged at frame"):
        list(frames(gif))
    for missing in (tmp_path / "none.gif", tmp_path):
        with pytest.raises(DataError, match="give the path of an animated GIF"):
            list(frames(missing))


def test_limits(gif, monkeypatch, tmp_path):
    monkeypatch.setattr(clip, "MAX_FRAMES", 4)
    with pytest.raises(DataError, match="more than 4 frames: select a part of it with start and end"):
        list(frames(gif))
    assert len(list(frames(gif, end=0.2))) == 4
    monkeypatch.setattr(clip, "MAX_FRAMES", 100)
    monkeypatch.setattr(clip, "MAX_TOTAL_PIXELS", 3 * 32 * 24)
    with pytest.raises(DataError, match="billion pixels"):
        list(frames(gif))
    with writing(tmp_path / "a.mp4", (64, 48), []) as film:
        film.write(grey(9, (64, 48)), 0.05)
    monkeypatch.setattr(clip, "MAX_PIXELS", 1000)
    with pytest.raises(DataError, match="is 64x48, but frames of at most"):
        list(frames(tmp_path / "a.mp4"))
    monkeypatch.setattr(clip, "MAX_FILM_BYTES", 10)
    with pytest.raises(DataError, match="larger than"):
        list(frames(tmp_path / "a.mp4"))


def bomb(path, frames, size=(7000, 7000)):
    """A GIF of a few bytes a frame: a page of any size, and frames that change one pixel of it."""
    still = b"!\xf9\x04\x04\x04\x00\x00\x00,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0"
    head = b"GIF89a" + size[0].to_bytes(2, "little") + size[1].to_bytes(2, "little") + b"\x80\0\0\0\0\0\xff\xff\xff"
    path.write_bytes(head + still * frames + b";")
    return path


def test_limits_are_checked_before_any_work(tmp_path, monkeypatch, gif):
    """Frames that are too large, too many, too long or grow on the way are refused before one is decoded."""
    monkeypatch.setattr(clip, "flatten", lambda *_: pytest.fail("a frame was decoded"))
    for frames_, size, words in (
        (40, (7000, 7000), "frame of 49.0 million pixels, but frames of at most 36 million"),
        (2100, (20, 20), "more than 2000 frames"),
        (1000, (5000, 5000), "more than 8 billion pixels"),
    ):
        with pytest.raises(DataError, match=words):
            explain_video(Planted(), bomb(tmp_path / "bomb.gif", frames_, size), tmp_path / "why.gif", progress=False)
    content = bytearray(bomb(tmp_path / "grown.gif", 3, (20, 20)).read_bytes())
    content[content.index(b",") + 5 : content.index(b",") + 9] = b"\xff\xff\xff\xff"
    (tmp_path / "grown.gif").write_bytes(content)
    with pytest.raises(DataError, match="million pixels"):
        next(frames(tmp_path / "grown.gif"))
    monkeypatch.setattr(clip, "MAX_SECONDS", 0.3)
    with pytest.raises(DataError, match="more than 0.3 seconds"):
        next(frames(gif))


def test_films_are_measured_before_they_are_decoded(tmp_path, monkeypatch):
    with writing(tmp_path / "a.mp4", (64, 48), []) as film:
        for _ in range(12):
            film.write(grey(9, (64, 48)), 0.05)
    assert len(list(frames(tmp_path / "a.mp4"))) == 12
    monkeypatch.setattr(clip, "MAX_FRAMES", 4)
    with pytest.raises(DataError, match="more than 4 frames"):
        next(frames(tmp_path / "a.mp4"))
    assert len(list(frames(tmp_path / "a.mp4", start=0.2, end=0.4))) == 4


def test_without_pyav(gif, tmp_path, monkeypatch):
    with writing(tmp_path / "a.mp4", (64, 48), []) as film:
        film.write(grey(9, (64, 48)), 0.05)
    monkeypatch.setitem(sys.modules, "av", None)
    assert explain_video(Planted(), gif, tmp_path / "why.gif", progress=False).frames == 5  # GIFs need none of it
    for source, target in [(gif, "why.mp4"), (tmp_path / "a.mp4", "b.gif")]:
        with pytest.raises(DataError, match=r"pip install 'codanet\[video\]'"):
            explain_video(Planted(), source, tmp_path / target, progress=False)


def test_all_or_nothing(gif, tmp_path, monkeypatch):
    target = tmp_path / "why.gif"
    target.write_bytes(b"old")

    class Failing(Planted):
        calls = 0

        def explain(self, images, target):
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("half-way")
            return super().explain(images, target)

    with pytest.raises(RuntimeError, match="half-way"):
        explain_video(Failing(), gif, target, progress=False)
    assert target.read_bytes() == b"old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["clip.gif", "why.gif"]
    for name, words in [("why.avi", "one of .gif, .mp4"), ("clip.gif/a.gif", "cannot be written")]:
        with pytest.raises(ValueError, match=words):
            explain_video(Planted(), gif, tmp_path / name, progress=False)
    (tmp_path / "folder.gif").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        explain_video(Planted(), gif, tmp_path / "folder.gif", progress=False)


def test_what_moves(gif, tmp_path):
    grey(3).save(tmp_path / "still.gif")
    grey(3).save(tmp_path / "still.png")
    assert is_moving(gif)
    assert not is_moving(tmp_path / "still.gif")
    assert not is_moving(tmp_path / "still.png")
    assert not is_moving(tmp_path / "none.gif")


def test_transparent_and_timeless_frames(tmp_path):
    still = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    still.save(tmp_path / "a.gif", save_all=True, append_images=[Image.new("RGBA", (8, 8), (0, 0, 255, 255))])
    found = list(frames(tmp_path / "a.gif"))
    assert found[0].image.getpixel((0, 0)) == WHITE
    assert [frame.seconds for frame in found] == [clip.STILL_SECONDS] * 2


def test_pictures_that_nothing_decodes(tmp_path):
    with writing(tmp_path / "a.mp4", (64, 48), []) as film:
        film.write(grey(9, (64, 48)), 0.05)
    whole = (tmp_path / "a.mp4").read_bytes()
    kind = next(kind for kind in (b"avc1", b"mp4v") if kind in whole[whole.index(b"stsd") :])
    place = whole.index(kind, whole.index(b"stsd"))
    (tmp_path / "b.mp4").write_bytes(whole[:place] + b"zzzz" + whole[place + 4 :])
    with pytest.raises(DataError, match="b.mp4' is damaged or in a form that cannot be read .*: replace it"):
        list(frames(tmp_path / "b.mp4"))
