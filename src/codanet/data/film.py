"""Moving pictures: the frames of a GIF or MP4 one at a time, within limits, and a GIF or MP4 written as they come."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from PIL import GifImagePlugin, Image

from .._support.errors import DataError
from .._support.extras import missing
from .._support.files import replacing
from .._support.messages import reason
from .film_length import STILL_SECONDS, Outline, film_outlines, gif_outlines
from .image import flatten, opened

MAX_PIXELS = 36_000_000  # in a frame: 8K, and some
MAX_FRAMES = 2000
MAX_TOTAL_PIXELS = 8_000_000_000  # over all frames, some 4000 of full HD
MAX_SECONDS = 3600
MAX_OUTLINES = 1_000_000  # frames passed over on the way to `start`
MAX_FILM_BYTES = 2 * 2**30
READ = "an animated GIF, or an MP4, MOV, WebM or MKV film"
WRITTEN = {".gif": "gif", ".mp4": "mp4"}
TICKS = 60_000  # per second, by which common frame rates divide; MPEG-4 counts to 65535 at most


@dataclass(frozen=True)
class Frame:
    image: Image.Image  # RGB
    seconds: float  # that it is shown


class Writer(Protocol):
    def write(self, image: Image.Image, seconds: float) -> None: ...


def frames(source: str | os.PathLike[str], *, start: float = 0.0, end: float | None = None) -> Iterator[Frame]:
    """The frames shown between `start` and `end`, in seconds, read as they are asked for.

    How many they are and how large is found and checked against the limits before the first is decoded.
    """
    if not start >= 0 or (end is not None and not end > start):
        raise DataError(f"the part from {start} to {end} seconds is empty: give a start of 0 or more and a later end")
    path, kind = Path(source), container(source)
    decoded = _gif_frames(path, start, end) if kind == "gif" else _film_frames(path, kind, start, end)
    clock, count, pixels = 0.0, 0, 0
    for frame in decoded:
        shown, clock = clock, clock + frame.seconds
        if clock <= start:
            continue
        if end is not None and shown >= end:
            break
        count, pixels = count + 1, pixels + frame.image.width * frame.image.height
        _check_sum(path, count, pixels, clock - max(start, 0))  # again, of what is there and not of what was claimed
        yield frame
    if not count:
        raise DataError(f"'{path}' has no frames from {start} seconds on: it is {clock:.2f} seconds long")


def check_outlines(path: Path, outlines: Iterator[Outline], start: float, end: float | None) -> None:
    """Refuse what is too much to decode: frames that are too large, too many, or too long."""
    count = pixels = 0
    for number, outline in enumerate(outlines):
        if outline.pixels > MAX_PIXELS:
            raise DataError(
                f"'{path}' has a frame of {outline.pixels / 1e6:.1f} million pixels, but frames of at most "
                f"{MAX_PIXELS // 10**6} million are decoded: save it smaller"
            )
        if number >= MAX_OUTLINES:
            raise DataError(f"'{path}' has more than {MAX_OUTLINES} frames before the part asked for: cut it first")
        if outline.shown + outline.seconds <= start or (end is not None and outline.shown >= end):
            continue
        count, pixels = count + 1, pixels + outline.pixels
        _check_sum(path, count, pixels, outline.shown + outline.seconds - start)


def _check_sum(path: Path, count: int, pixels: int, seconds: float) -> None:
    for amount, most, words in (
        (count, MAX_FRAMES, f"{MAX_FRAMES} frames"),
        (pixels, MAX_TOTAL_PIXELS, f"{MAX_TOTAL_PIXELS // 10**9} billion pixels"),
        (seconds, MAX_SECONDS, f"{MAX_SECONDS} seconds"),
    ):
        if amount > most:
            raise DataError(f"'{path}' has more than {words}: select a part of it with start and end, in seconds")


def is_moving(source: str | os.PathLike[str]) -> bool:
    """Whether a file is a film, or a GIF of more than one frame."""
    try:
        if container(source) != "gif":
            return True
        with opened(source) as (image, _):
            return bool(getattr(image, "is_animated", False))
    except Exception:  # what it is instead is said when it is read
        return False


def container(source: str | os.PathLike[str]) -> str:
    """ "gif", or the name of the only demuxer that may read the file, by its first bytes."""
    path = Path(source)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(f"'{path}' {what}: give the path of {READ}")
    try:
        with path.open("rb") as file:
            head, size = file.read(12), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise DataError(f"'{path}' cannot be opened ({reason(error)}): check its permissions") from None
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    kind = "mov" if head[4:8] == b"ftyp" else "matroska" if head.startswith(b"\x1a\x45\xdf\xa3") else None
    if kind is None:
        raise DataError(f"'{path}' is not a moving picture that can be read: give {READ}")
    if size > MAX_FILM_BYTES:
        raise DataError(f"'{path}' is larger than the {MAX_FILM_BYTES // 2**30} GiB allowed for a film: cut it")
    return kind


def _gif_frames(path: Path, start: float, end: float | None) -> Iterator[Frame]:
    check_outlines(path, gif_outlines(path), start, end)
    with opened(path) as (image, title):
        index = 0
        while True:
            try:
                image.seek(index)
                still = flatten(image, 3)
                milliseconds = float(image.info.get("duration") or 0)
            except EOFError:
                return
            except Exception as error:  # a decoder may raise anything on hostile bytes
                raise DataError(f"{title} is damaged at frame {index + 1} ({reason(error)}): replace it") from error
            yield Frame(still, milliseconds / 1000 if milliseconds > 0 else STILL_SECONDS)
            index += 1


@contextmanager
def _opened(path: Path, demuxer: str) -> Iterator[tuple[Any, Any]]:
    """The container and its first stream of pictures, of a size that is allowed."""
    # The open file, not its path, and one demuxer: nothing else on this machine or the network can be reached.
    with path.open("rb") as file, _av(path).open(file, format=demuxer) as film:
        if not film.streams.video:
            raise DataError(f"'{path}' has sound only: give a film with pictures")
        stream = film.streams.video[0]
        if stream.codec_context is None:
            raise DataError(f"'{path}' is damaged or in a form that cannot be read (no decoder): replace it")
        if (stream.width or 0) * (stream.height or 0) > MAX_PIXELS:
            raise DataError(
                f"'{path}' is {stream.width}x{stream.height}, but frames of at most {MAX_PIXELS // 10**6} million "
                "pixels are decoded: save it smaller"
            )
        yield film, stream


def _film_frames(path: Path, demuxer: str, start: float, end: float | None) -> Iterator[Frame]:
    av = _av(path)
    try:
        with _opened(path, demuxer) as (film, stream):
            check_outlines(path, film_outlines(film, stream), start, end)
        with _opened(path, demuxer) as (film, stream):
            usual = float(1 / stream.average_rate) if stream.average_rate else STILL_SECONDS
            waiting: tuple[Image.Image, float] | None = None
            for decoded in film.decode(stream):
                at = decoded.time
                if waiting is not None:
                    length = at - waiting[1] if at is not None and at > waiting[1] else usual
                    yield Frame(waiting[0], length)
                picture = decoded.to_image()
                turn = int(getattr(decoded, "rotation", 0) or 0) % 360
                if turn:
                    picture = picture.rotate(turn, expand=True)
                waiting = picture, (at if at is not None else (waiting[1] + usual if waiting else 0.0))
                last = float(decoded.duration * decoded.time_base) if decoded.duration else usual
            if waiting is not None:
                yield Frame(waiting[0], last)
    except av.FFmpegError as error:
        raise DataError(
            f"'{path}' is damaged or in a form that cannot be read ({reason(error)}): replace it"
        ) from error


def _av(path: Path) -> Any:
    try:
        import av
    except ImportError:
        raise DataError(f"'{path}' {missing('av')}, or use a GIF") from None
    return av


@contextmanager
def writing(
    target: str | os.PathLike[str], size: tuple[int, int], colours: Sequence[tuple[int, int, int]]
) -> Iterator[Writer]:
    """A GIF or MP4, by the suffix, of pictures of `size` = (width, height); all of it or nothing.

    `colours` are the at most 256 that a GIF has, the same in every frame, so that nothing flickers.
    """
    path = Path(target)
    kind = WRITTEN.get(path.suffix.lower())
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file, such as {path / 'why.gif'}")
    if kind is None:
        raise ValueError(f"{path} ends in {path.suffix!r}: a moving picture is saved as one of {', '.join(WRITTEN)}")
    if kind == "mp4":
        _av(path)
    try:
        with replacing(path) as part, part.open("wb") as file:
            if kind == "gif":
                gif = _Gif(file, size, colours)
                yield gif
                gif.close()
            else:
                film = _Film(file, size)
                yield film
                film.close()
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror or error}): choose another place") from None


class _Gif:
    """Frame by frame with one palette; Pillow's own writer keeps all frames in memory and gives each its own."""

    def __init__(self, file: BinaryIO, size: tuple[int, int], colours: Sequence[tuple[int, int, int]]):
        self.file, self.late = file, 0.0
        table = np.empty((256, 3), np.uint8)
        table[: len(colours)], table[len(colours) :] = colours, colours[-1]
        packed = _packed(table)
        self.order = np.argsort(packed, kind="stable")
        self.sorted = packed[self.order]
        self.palette = Image.new("P", (1, 1))
        self.palette.putpalette(table.tobytes())
        file.write(b"GIF89a" + struct.pack("<HHBBB", *size, 0xF7, 0, 0) + table.tobytes())
        file.write(b"!\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00")  # without end

    def write(self, image: Image.Image, seconds: float) -> None:
        exact = seconds * 100 + self.late
        hundredths = max(1, round(exact))
        self.late = exact - hundredths  # so that the rounding does not add up
        indexed = self.indexed(image)
        self.file.writelines(GifImagePlugin.getdata(indexed, duration=10 * min(hundredths, 65535)))

    def indexed(self, image: Image.Image) -> Image.Image:
        near = image.quantize(palette=self.palette, dither=Image.Dither.NONE)
        # Pillow looks a few steps beside the nearest colour; one that is in the palette stays itself, white above all.
        colours = _packed(np.asarray(image))
        place = np.searchsorted(self.sorted, colours).clip(max=255)
        exact = self.sorted[place] == colours
        near.frombytes(np.where(exact, self.order[place], np.asarray(near)).astype(np.uint8).tobytes())
        return near

    def close(self) -> None:
        self.file.write(b";")


def _packed(rgb: np.ndarray) -> np.ndarray:
    return rgb.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)


class _Film:
    def __init__(self, file: BinaryIO, size: tuple[int, int]):
        import av

        self.av, self.ticks = av, 0.0
        self.lengths: dict[int, int] = {}  # ticks of the frames still in the encoder, by their time
        self.container = av.open(file, "w", format="mp4")
        name = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        self.stream: Any = self.container.add_stream(name, rate=25)
        self.stream.width, self.stream.height, self.stream.pix_fmt = *size, "yuv420p"
        self.stream.codec_context.time_base = Fraction(1, TICKS)
        if name == "libx264":
            self.stream.options = {"crf": "16", "preset": "medium"}

    def write(self, image: Image.Image, seconds: float) -> None:
        frame: Any = self.av.VideoFrame.from_image(image)
        frame.pts, frame.time_base = round(self.ticks), Fraction(1, TICKS)
        self.ticks += seconds * TICKS
        self.lengths[frame.pts] = max(1, round(self.ticks) - frame.pts)
        self.mux(frame)

    def mux(self, frame: Any) -> None:
        for packet in self.stream.encode(frame):
            packet.duration = self.lengths.pop(packet.pts, 0)
            self.container.mux(packet)

    def close(self) -> None:
        self.mux(None)
        self.container.close()
