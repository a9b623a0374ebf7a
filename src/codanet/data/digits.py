"""scikit-learn's handwritten digits: 1797 grey images of 8x8, on disk wherever scikit-learn is; no download."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import torch

from codanet._support.errors import DataError
from codanet._support.extras import optional
from codanet.data.cache import checksum
from codanet.data.split import ImageData, MemorySplit, resized, stratified

CLASSES = tuple("0123456789")
HELD_OUT_FRACTION = 0.2
LEVELS = 16


def load_digits(root: Path | None = None, *, size: int | None = None, seed: int = 0, source: str = "auto") -> ImageData:
    """Digits with a seeded, stratified fifth held out; levels 0 to 16 become 0 to 255."""
    if root is not None or source != "auto":
        raise DataError("the digits come with scikit-learn, so they take neither root nor source: leave both out")
    with optional():
        digits = import_module("sklearn.datasets").load_digits()
    images = torch.from_numpy(digits.images).mul(255 / LEVELS).round().to(torch.uint8)[:, None]  # [N, 1, 8, 8]
    images = resized(images, size)
    labels = torch.from_numpy(digits.target).long()
    kept, held = stratified(labels, HELD_OUT_FRACTION, seed)
    train = MemorySplit(images[kept], labels[kept])
    val = MemorySplit(images[held], labels[held])
    shape = (images.shape[2], images.shape[3])
    return ImageData("digits", CLASSES, train, val, shape, 1, checksum(train.images, train.labels), drawn=True)
