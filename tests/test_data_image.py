"""Pictures of every kind, made here, and files that are not pictures."""

import io
import struct
import threading
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from codanet.data import DataError, decode, read_image, to_image
from codanet.data import image as image_module
from codanet.data.image import fit, header

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def gradient(width: int = 40, height: int = 24) -> Image.Image:
    rows, columns = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([columns * 6, rows * 10, columns + rows], -1).astype(np.uint8))


def png_claiming(width: int, height: int) -> bytes:
    """A PNG whose header promises more pixels than its few bytes hold."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def sentence(error: pytest.ExceptionInfo[DataError]) -> str:
    """Errors are one sentence, and carry nothing of a decoder's internals."""
    text = str(error.value)
    assert not text[:1].isupper()
    assert not text.endswith(".")
    assert "\n" not in text
    assert ": " in text
    return text


@pytest.mark.parametrize("kind", FORMATS)
def test_formats(kind: str) -> None:
    pixels = read_image(encoded(gradient(), kind))
    assert pixels.shape == (3, 24, 40)
    assert pixels.dtype == torch.float32
    expected = torch.from_numpy(np.array(gradient())).permute(2, 0, 1) / 255
    assert (pixels - expected).abs().mean() < 0.06
    if kind in ("PNG", "BMP"):
        assert torch.equal(pixels, expected)


def test_sources_agree(tmp_path: Path) -> None:
    content = encoded(gradient())
    path = tmp_path / "a picture.png"
    path.write_bytes(content)
    expected = read_image(content)
    with path.open("rb") as file:
        for source in (path, str(path), file, io.BytesIO(content), gradient()):
            assert torch.equal(read_image(source), expected)


def test_given_image_is_left_alone() -> None:
    given = gradient().convert("P")
    read_image(given, size=8)
    assert given.mode == "P"
    assert given.size == (40, 24)


@dataclass
class Model:
    image_size: tuple[int, int] | None
    image_channels: int


def test_model_decides_size_and_channels() -> None:
    assert read_image(gradient(), Model((16, 12), 1)).shape == (1, 16, 12)
    assert read_image(gradient(), Model(None, 3)).shape == (3, 24, 40)
    assert read_image(gradient(), Model((16, 12), 3), size=8).shape == (3, 8, 8)


def test_fit_cuts_the_centre() -> None:
    picture = Image.new("RGB", (90, 30), "red")
    picture.paste("blue", (30, 0, 60, 30))
    middle = read_image(picture, size=10)
    assert torch.allclose(middle[:, 2:-2, 2:-2], torch.tensor([0.0, 0, 1])[:, None, None].expand(3, 6, 6))
    tall = read_image(picture.transpose(Image.Transpose.ROTATE_90), size=(10, 10))
    assert torch.allclose(tall[2, 2:-2, 2:-2], torch.ones(6, 6))


def test_fit_antialiases() -> None:
    checker = Image.fromarray((np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8))
    assert (read_image(checker, size=8, channels=1) - 0.5).abs().max() < 0.05


def test_one_pixel_and_very_wide() -> None:
    assert torch.equal(read_image(Image.new("RGB", (1, 1), "red"), size=5)[0], torch.ones(5, 5))
    assert read_image(encoded(Image.new("RGB", (20_000, 3), "green")), size=32).shape == (3, 32, 32)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation(kind: str, orientation: int) -> None:
    # what a camera held so writes: undoing the tag's rotation gives the upright picture
    upright = Image.new("RGB", (48, 32), "white")
    upright.paste("red", (0, 0, 24, 16))
    undo = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}[orientation]
    written = upright if undo is None else upright.transpose(Image.Transpose(undo))
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(written, kind, exif=exif)
    assert header(content) == (32, 48)
    pixels = read_image(content)
    assert torch.equal(read_image(decode(content)), pixels)  # turned once, not twice
    assert pixels.shape == (3, 32, 48)
    assert pixels[1, 4:12, 4:20].max() < 0.1
    assert pixels[1, 20:, 28:].min() > 0.9


def test_sixteen_bits() -> None:
    levels = np.linspace(0, 65535, 256).round().astype(np.uint16)[None].repeat(4, 0)
    pixels = read_image(encoded(Image.fromarray(levels)), channels=1)
    assert torch.allclose(pixels[0, 0], torch.linspace(0, 1, 256), atol=1 / 500)
    assert read_image(encoded(Image.fromarray(levels))).shape == (3, 4, 256)
    assert torch.equal(read_image(Image.fromarray(levels.astype(np.int32))), pixels.expand(3, -1, -1))


def test_cmyk() -> None:
    pixels = read_image(encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG"))
    assert pixels[0].min() > 0.9
    assert pixels[1:].max() < 0.15


def test_palette_and_bilevel() -> None:
    picture = Image.new("RGB", (8, 8), (200, 30, 60))
    assert torch.allclose(read_image(encoded(picture.quantize(4))) * 255, read_image(picture) * 255, atol=1.01)
    assert read_image(encoded(Image.new("1", (8, 8), 1))).min() == 1


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_alpha_over_white(mode: str) -> None:
    picture = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    picture.paste((0, 0, 0, 255), (0, 0, 4, 8))
    pixels = read_image(picture.convert(mode))
    assert pixels[:, :, :4].max() == 0
    assert pixels[:, :, 4:].min() == 1
    half = read_image(Image.new("RGBA", (2, 2), (0, 0, 0, 128)), channels=1)
    assert half.mean().item() == pytest.approx(0.5, abs=0.01)


def test_transparent_gif_and_png_palette() -> None:
    picture = Image.new("P", (4, 4), 0)
    picture.putpalette([0, 0, 0, 255, 0, 0])
    for kind in ("GIF", "PNG"):
        assert read_image(encoded(picture, kind, transparency=0)).min() == 1


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animation_gives_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    pixels = read_image(encoded(frames[0], kind, save_all=True, append_images=frames[1:]))
    assert pixels[0].min() > 0.9
    assert pixels[2].max() < 0.1


@pytest.mark.parametrize("kind", FORMATS)
def test_truncated_at_every_length(kind: str, tmp_path: Path) -> None:
    """A cut file is refused in words, or (where the format allows it) read; nothing else escapes."""
    content = encoded(gradient(), kind)
    refused = 0
    for length in range(1, len(content), max(1, len(content) // 60)):
        try:
            assert read_image(content[:length]).shape == (3, 24, 40)
        except DataError:
            refused += 1
    assert refused > 30
    path = tmp_path / f"half.{kind.lower()}"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="half") as error:
        read_image(path)
    sentence(error)


def test_random_damage_never_escapes() -> None:
    generator = np.random.default_rng(0)
    read = 0
    for kind in FORMATS:
        content = np.frombuffer(encoded(gradient(), kind), np.uint8)
        for _ in range(60):
            damaged = content.copy()
            places = generator.integers(8, len(content), 4)
            damaged[places] = generator.integers(0, 256, 4)
            with suppress(DataError):
                read += read_image(damaged.tobytes(), size=8).shape == (3, 8, 8)
    assert 0 < read < 60 * len(FORMATS)


def test_not_pictures(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.jpg").write_text("not a picture\n" * 20)
    (tmp_path / "page.png").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    for source, words in {
        tmp_path / "empty.png": "is empty",
        tmp_path / "text.jpg": "not a picture",
        tmp_path / "page.png": "not a picture",
        tmp_path / "none.png": "does not exist",
        tmp_path: "is a folder",
        "https://example.org/cat.jpg": "web address",
        b"": "is empty",
        b"GIF89a": "not a picture",
        "\0": "does not exist",
    }.items():
        with pytest.raises(DataError, match=words) as error:
            read_image(source)
        sentence(error)
    for source in (3, None, io.StringIO("text")):
        with pytest.raises(DataError) as error:
            read_image(source)  # type: ignore[arg-type]
        sentence(error)


def test_other_formats_are_refused() -> None:
    for kind in ("TIFF", "PPM", "ICO", "PDF"):
        with pytest.raises(DataError, match="PNG, JPEG, WebP, BMP or GIF"):
            read_image(encoded(gradient(), kind))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [7100, 10_000, 60_000])
def test_bomb_is_refused_before_decoding(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(DataError, match="million") as error:
        read_image(png_claiming(side, side))
    sentence(error)


def test_real_bomb() -> None:
    content = encoded(Image.new("1", (9000, 9000)))
    assert len(content) < 50_000
    with pytest.raises(DataError, match="9000x9000 pixels"):
        read_image(content)


def test_byte_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_module, "MAX_BYTES", 100)
    path = tmp_path / "large.png"
    path.write_bytes(encoded(gradient()))
    for source in (path, path.read_bytes(), io.BytesIO(path.read_bytes())):
        with pytest.raises(DataError, match="larger than"):
            read_image(source)


def test_bad_settings() -> None:
    assert read_image(gradient(), size=np.int64(8)).shape == (3, 8, 8)  # type: ignore[arg-type]
    for size in (0, -3, (8, 0), (1, 2, 3), 10**6, 8.0, (8.9, 8)):
        with pytest.raises(DataError, match="size") as error:
            read_image(gradient(), size=size)  # type: ignore[arg-type]
        sentence(error)
    for channels in (0, 2, 4):
        with pytest.raises(DataError, match="channels"):
            read_image(gradient(), channels=channels)
    with pytest.raises(DataError, match="mode F"):
        read_image(Image.new("F", (4, 4)))


@pytest.mark.parametrize("kind", ["JPEG", "MPO"])  # the second as phones write it, with another picture behind
def test_hint_reduces_large_jpeg_only(kind: str) -> None:
    large = gradient(800, 800)
    content = encoded(large, kind, **({"save_all": True, "append_images": [gradient()]} if kind == "MPO" else {}))
    assert decode(content).size == (800, 800)
    assert decode(content, hint=(64, 64)).size == (200, 200)  # a quarter: an eighth would be less than twice 64
    assert decode(encoded(large), hint=(64, 64)).size == (800, 800)
    full = fit(decode(content), (64, 64))
    reduced = fit(decode(content, hint=(64, 64)), (64, 64))
    assert np.abs(np.asarray(full, int) - np.asarray(reduced, int)).mean() < 3


def test_to_image_round_trip() -> None:
    pixels = read_image(gradient())
    assert torch.equal(read_image(to_image(pixels)), pixels)
    assert to_image(pixels[:1]).mode == "L"
    assert to_image(torch.full((2, 3), 7.0)).getpixel((0, 0)) == 255
    assert to_image(torch.zeros(1, 3, 4, 5, dtype=torch.uint8)).size == (5, 4)
    with pytest.raises(DataError, match="shape"):
        to_image(torch.zeros(6, 4, 4))


def test_threads_share_nothing(tmp_path: Path) -> None:
    path = tmp_path / "one.jpg"
    path.write_bytes(encoded(gradient(), "JPEG"))
    expected = read_image(path)
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(torch.equal(read_image(path), expected))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8
