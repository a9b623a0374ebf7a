"""Reading one picture: any common file in, RGB or grey in [0, 1] out, hostile files refused before decoding."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import BytesIO
from numbers import Integral
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from codanet._support.errors import DataError
from codanet._support.messages import reason
from codanet.models.architectures import USUAL_SIDE

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
JPEGS = ("JPEG", "MPO")  # the second with more pictures behind the first, as phones write them
MAX_BYTES = 64 * 2**20
MAX_PIXELS = 50_000_000
ALLOWED = "a PNG, JPEG, WebP, BMP or GIF file"

Source = str | os.PathLike[str] | bytes | BinaryIO | Image.Image

ORIENTATION_TAG = 0x0112
ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

USUAL_SIZE = USUAL_SIDE, USUAL_SIDE  # for a model that takes pictures of any size


class ImageModel(Protocol):
    """What a picture is fitted to: the input size (any, if None) and the number of image channels of a model."""

    @property
    def image_size(self) -> tuple[int, int] | None: ...

    @property
    def image_channels(self) -> int: ...


def size_for(model: ImageModel) -> tuple[int, int]:
    """(H, W) that pictures of any size are fitted to: the model's own, or the usual one if it takes any."""
    return model.image_size or USUAL_SIZE


def read_image(
    source: Source, model: ImageModel | None = None, *, size: int | tuple[int, int] | None = None, channels: int = 3
) -> Tensor:
    """A picture as float32 [C, H, W] in [0, 1], fitted to a model or a size.

    Fitting scales the shorter side and cuts the centre out. A rotation in EXIF is applied, transparency is laid over
    white, and the first frame of an animation is taken.

    Args:
        source: A path, bytes, an open file or a PIL image: PNG, JPEG, WebP, BMP or GIF.
        model: Whose image size and channels to take, such as a CoDANet.
        size: The side, or (height, width), to fit to; the model's, or else the picture's own, if not given.
        channels: 3 for RGB, 1 for grey; the model's, if one is given.

    Raises:
        DataError: A ValueError, if the file is missing, damaged, too large or of another kind.

    Examples:
        >>> import codanet
        >>> from PIL import Image
        >>> codanet.read_image(Image.new("RGB", (60, 40)), size=32).shape
        torch.Size([3, 32, 32])
    """
    if model is not None:
        channels = model.image_channels
        size = model.image_size if size is None else size
    shape = None if size is None else size_pair(size)
    image = decode(source, channels)
    return to_tensor(image if shape is None else fit(image, shape)).float().div_(255)


def decode(
    source: Source, channels: int = 3, *, hint: tuple[int, int] | None = None, name: str | None = None
) -> Image.Image:
    """Decode a picture to mode RGB (3 channels) or L (1 channel).

    `hint` is the size (H, W) the picture will be fitted to: a JPEG more than twice as large is decoded reduced.
    `name` is what errors call a picture that is given as bytes.
    """
    if channels not in (1, 3):
        raise DataError(f"{channels} image channels were asked for, but pictures have 1 (grey) or 3 (RGB): pass either")
    with opened(source, name) as (image, title):
        try:
            if hint is not None and image.format in JPEGS:
                image.draft(image.mode, (2 * max(hint), 2 * max(hint)))
            image.load()
            turn = ORIENTATIONS.get(orientation(image))
            image = flatten(image, channels)
        except DataError:
            raise
        except Exception as error:  # a decoder may raise anything on hostile bytes
            raise DataError(
                f"{title} is damaged or cut short ({reason(error)}): replace it by a complete {ALLOWED[2:]}"
            ) from error
        upright = image.transpose(turn) if turn is not None else image
        upright.info = {}  # among it the orientation, which has been used
        return upright


def header(source: Source) -> tuple[int, int]:
    """The size (H, W) a picture will have once decoded, read from its header alone."""
    with opened(source) as (image, _):
        width, height = image.size
        return (width, height) if orientation(image) >= 5 else (height, width)


def fit(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize the shorter side to fill `size` = (H, W) and cut the centre, in one antialiased step."""
    height, width = size
    if image.size == (width, height):
        return image
    # The largest centred box of the target's aspect ratio; resizing only it never makes a huge intermediate picture.
    scale = min(image.width / width, image.height / height)
    left, top = (image.width - width * scale) / 2, (image.height - height * scale) / 2
    box = (
        max(0.0, left),
        max(0.0, top),
        min(image.width, left + width * scale),
        min(image.height, top + height * scale),
    )
    return image.resize((width, height), Image.Resampling.BICUBIC, box=box)


def to_tensor(image: Image.Image) -> Tensor:
    """uint8 [C, H, W] of an RGB or L picture."""
    pixels = np.array(image)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


def to_image(tensor: Tensor) -> Image.Image:
    """A picture of uint8, or float in [0, 1], [C, H, W] or [H, W] with 1 or 3 channels; floats outside are clamped."""
    pixels = tensor.detach().cpu()
    if pixels.ndim == 4 and len(pixels) == 1:
        pixels = pixels[0]
    pixels = pixels[None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        raise DataError(f"a tensor of shape {list(tensor.shape)} is not a picture: pass [C, H, W] with 1 or 3 channels")
    if pixels.is_floating_point():
        pixels = pixels.float().nan_to_num(0.0).clamp(0, 1).mul(255).round()
    array = pixels.to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)


def size_pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """`size` as (H, W), checked."""
    pair = tuple(size) if isinstance(size, Sequence) else (size, size)
    whole = all(isinstance(side, Integral) and side >= 1 for side in pair)
    if len(pair) != 2 or not whole or pair[0] * pair[1] > MAX_PIXELS:
        raise DataError(
            f"image size {size!r} is not allowed: pass one side or (height, width), whole numbers of at least 1, "
            f"of at most {MAX_PIXELS // 10**6} million pixels"
        )
    return int(pair[0]), int(pair[1])


@contextmanager
def opened(source: Source, name: str | None = None) -> Iterator[tuple[Image.Image, str]]:
    """The picture with its header read and its limits checked, not yet decoded; and a name for error messages."""
    with ExitStack() as stack:
        if isinstance(source, Image.Image):
            image, title = source, "the picture given"
        else:
            stream, title = byte_stream(source, stack, name)
            try:
                image = stack.enter_context(Image.open(stream, formats=FORMATS))
            except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
                raise DataError(pixel_limit(title, None)) from error
            except Exception as error:  # a parser may raise anything on hostile bytes
                raise DataError(f"{title} is not a picture that can be read: give {ALLOWED}") from error
        if image.width * image.height > MAX_PIXELS:
            raise DataError(pixel_limit(title, image.size))
        if image.width * image.height == 0:
            raise DataError(f"{title} has no pixels: give a picture of at least 1x1")
        yield image, title


def byte_stream(
    source: str | os.PathLike[str] | bytes | BinaryIO, stack: ExitStack, name: str | None = None
) -> tuple[BinaryIO, str]:
    if isinstance(source, str | os.PathLike):
        return file_stream(source, stack)
    if isinstance(source, bytes | bytearray | memoryview):
        content, title = bytes(source), name or "the picture given as bytes"
    elif hasattr(source, "read"):
        content, title = source.read(MAX_BYTES + 1), "the picture given as a file object"
        if not isinstance(content, bytes):
            raise DataError("the file object given holds text, not a picture: open the file in binary mode ('rb')")
    else:
        raise DataError(
            f"a picture cannot be read from {type(source).__name__}: pass a path, bytes, a binary file or a PIL image"
        )
    check_bytes(len(content), title)
    return BytesIO(content), title


def file_stream(source: str | os.PathLike[str], stack: ExitStack) -> tuple[BinaryIO, str]:
    title = f"'{os.fspath(source)}'"
    if "://" in str(source):
        raise DataError(f"{title} is a web address, but only files are read: download the picture and pass its path")
    try:
        status = os.stat(source)
    except (OSError, ValueError) as error:
        raise DataError(f"{title} does not exist or cannot be reached: check the path of the picture") from error
    if stat.S_ISDIR(status.st_mode):
        raise DataError(f"{title} is a folder, not a picture: pass the path of {ALLOWED} in it")
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{title} is not an ordinary file: pass the path of {ALLOWED}")
    check_bytes(status.st_size, title)
    try:
        return stack.enter_context(Path(source).open("rb")), title
    except OSError as error:
        raise DataError(f"{title} cannot be opened ({reason(error)}): check its permissions") from error


def check_bytes(count: int, title: str) -> None:
    if count == 0:
        raise DataError(f"{title} is empty (0 bytes): give {ALLOWED}")
    if count > MAX_BYTES:
        raise DataError(f"{title} is larger than the {MAX_BYTES // 2**20} MiB allowed for a picture: save it smaller")


def pixel_limit(title: str, size: tuple[int, int] | None) -> str:
    pixels = "too many" if size is None else f"{size[0]}x{size[1]}"
    return f"{title} has {pixels} pixels, but at most {MAX_PIXELS // 10**6} million are decoded: save it smaller"


def orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION_TAG, 1))
    except Exception:  # damaged EXIF: the picture itself may be fine
        return 1


def flatten(image: Image.Image, channels: int) -> Image.Image:
    """Any mode to RGB or L: 16 bits scaled to 8, transparency laid over white."""
    mode = "RGB" if channels == 3 else "L"
    if image.mode.startswith("I"):
        # 16 bits: 65535 = 257 * 255
        levels = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
        image = Image.fromarray(((levels + 128) // 257).astype(np.uint8))
    elif image.mode == "F":
        raise DataError("a PIL image of mode F has no defined range: convert it to 8 bits (mode L or RGB) first")
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)
