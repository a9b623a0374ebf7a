"""Pieces of HTML: words made harmless, pictures as data URIs."""

from base64 import b64decode, b64encode
from html import escape
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .messages import encodable


def text(words: object) -> str:
    """Words from anywhere as text: no tag, attribute or entity of theirs survives, nor what UTF-8 cannot hold."""
    return escape(encodable(words), quote=True)


def data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{b64encode(content).decode('ascii')}"


def picture_uri(picture: Image.Image | NDArray[np.uint8], kind: str = "PNG") -> str:
    """A picture, or RGB(A) [H, W, 3 or 4], as an address that holds it; PNG keeps every pixel, JPEG is smaller."""
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    stream = BytesIO()
    if kind == "JPEG":
        image.convert("RGB").save(stream, "JPEG", quality=88)
    else:
        image.save(stream, kind, optimize=True)
    return data_uri(stream.getvalue(), f"image/{kind.lower()}")


def uri_picture(uri: str) -> Image.Image:
    """The picture in an address that `picture_uri` made."""
    return Image.open(BytesIO(b64decode(uri.partition(",")[2])))


def signed(value: float, digits: int = 2) -> str:
    """'+1.25', '−0.30': with a true minus; a value that rounds to nothing has no sign."""
    rounded = f"{abs(value):.{digits}f}"
    if not rounded.strip("0."):
        return rounded
    return f"{'−' if value < 0 else '+'}{rounded}"
