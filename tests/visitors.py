"""What visitors of the web page bring: pictures of every kind, good and bad."""

import base64
import io
import zlib

import numpy as np
from PIL import Image

from codanet import CoDANet
from codanet.models.network import Layer
from colours import halves


def random_model(classes: int = 5, names: tuple[str, ...] | None = None) -> CoDANet:
    return CoDANet([Layer(8, 2), Layer(classes, 2, stride=2)], image_size=16, class_names=names).eval()


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def given(content: bytes) -> str:
    return base64.b64encode(content).decode()


EXIF = Image.Exif()


EXIF[0x0112] = 6


SOURCES = {
    "png": encoded(halves()),
    "jpeg": encoded(halves(), "JPEG"),
    "webp": encoded(halves(), "WEBP"),
    "bmp": encoded(halves(), "BMP"),
    "animated gif": encoded(halves(), "GIF", save_all=True, append_images=[halves(160, "lime")]),
    "palette": encoded(halves().quantize(8)),
    "cmyk": encoded(halves().convert("CMYK"), "JPEG"),
    "transparent": encoded(halves().convert("RGBA")),
    "16 bits": encoded(Image.fromarray((np.arange(256 * 40).reshape(40, 256) * 6).astype(np.uint16))),
    "turned": encoded(halves(), "JPEG", exif=EXIF),
    "1x1": encoded(Image.new("RGB", (1, 1), "red")),
    "20000 wide": encoded(Image.new("RGB", (20000, 60), "blue")),
}


def bomb() -> bytes:
    """A PNG header that promises 60000 x 60000 pixels."""
    content = bytearray(encoded(Image.new("L", (2, 2))))
    content[16:24] = (60000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


BAD = {
    "empty": (b"", "file is empty"),
    "truncated": (encoded(halves(), "JPEG")[:700], "damaged or cut short"),
    "text": (b"hello, I am a picture", "not a picture that can be read"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture that can be read"),
    "html": (b"<!doctype html><script>alert(1)</script>", "not a picture that can be read"),
    "bomb": (bomb(), "at most 50 million"),
    "tiff": (encoded(halves(), "TIFF"), "not a picture that can be read"),
}
