"""How many frames a film has, how large and how long they are, read from its structure: nothing is decoded."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

STILL_SECONDS = 0.1  # for a frame without a duration, as in browsers
IMAGE, EXTENSION, END, TIMES = b",", b"!", b";", 0xF9  # the blocks of a GIF


class Outline(NamedTuple):
    """A frame before it is decoded."""

    shown: float  # seconds from the beginning
    seconds: float
    pixels: int


def gif_outlines(path: Path) -> Iterator[Outline]:
    """Block by block; what is cut or damaged ends it, and is told when it is decoded."""
    with path.open("rb") as file:
        try:
            yield from _gif_blocks(file)
        except (struct.error, IndexError):
            return


def _gif_blocks(file: BinaryIO) -> Iterator[Outline]:
    width, height, flags = struct.unpack("<6xHHB2x", file.read(13))
    file.seek(_palette(flags), 1)
    clock, hundredths = 0.0, 0
    while (kind := file.read(1)) not in (b"", END):
        if kind == EXTENSION:
            label = file.read(1)[0]
            content = _sub_blocks(file)
            if label == TIMES:
                (hundredths,) = struct.unpack_from("<H", content, 1)
        elif kind == IMAGE:
            left, top, wide, high, flags = struct.unpack("<HHHHB", file.read(9))
            file.seek(_palette(flags) + 1, 1)
            _sub_blocks(file)
            width, height = max(width, left + wide), max(height, top + high)  # a frame may enlarge the page
            seconds = hundredths / 100 or STILL_SECONDS
            yield Outline(clock, seconds, width * height)
            clock, hundredths = clock + seconds, 0


def _palette(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _sub_blocks(file: BinaryIO) -> bytes:
    """The first of them; the others are passed over."""
    first = b""
    while length := file.read(1)[0]:
        if first:
            file.seek(length, 1)
        else:
            first = file.read(length)
    return first


def film_outlines(film: Any, stream: Any) -> Iterator[Outline]:
    """Of an open container: its packets, in the order in which they lie in the file."""
    tick, pixels = float(stream.time_base or 0), (stream.width or 0) * (stream.height or 0)
    usual = float(1 / stream.average_rate) if stream.average_rate else STILL_SECONDS
    first = (stream.start_time or 0) * tick
    clock = 0.0
    for packet in film.demux(stream):
        if not packet.size:
            continue
        seconds = packet.duration * tick if packet.duration else usual
        shown = packet.pts * tick - first if packet.pts is not None else clock
        yield Outline(shown, seconds, pixels)
        clock = shown + seconds
