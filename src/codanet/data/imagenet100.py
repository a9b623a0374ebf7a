"""ImageNet-100: the first 100 classes, by sorted WordNet id, of an ImageNet folder that you have."""

from __future__ import annotations

from pathlib import Path

from codanet._support.errors import DataError
from codanet.data.folder import assemble, listing, visible_folders
from codanet.data.split import ImageData
from codanet.data.wordnet import WNID, class_words

CLASS_COUNT = 100
SIDE = 256  # training cuts 240 out of it
LAYOUT = "pass as root a folder with train/<wnid>/*.JPEG and val/<wnid>/*.JPEG"


def load_imagenet100(
    root: Path | None = None, *, size: int | None = None, seed: int = 0, source: str = "auto"
) -> ImageData:
    """The first 100 classes of the ImageNet folder `root`, shorter side resized to 256 and cut square."""
    if root is None or source != "auto":
        raise DataError(f"ImageNet cannot be downloaded without an account: {LAYOUT}, and leave source out")
    for part in ("train", "val"):
        if not (root / part).is_dir():
            raise DataError(f"'{root}' has no folder '{part}': {LAYOUT}")
    wnids = [folder.name for folder in visible_folders(root / "train") if WNID.fullmatch(folder.name)][:CLASS_COUNT]
    if len(wnids) < CLASS_COUNT:
        raise DataError(
            f"'{root / 'train'}' has {len(wnids)} ImageNet classes instead of {CLASS_COUNT} or more: {LAYOUT}"
        )
    missing = [wnid for wnid in wnids if not (root / "val" / wnid).is_dir()]
    if missing:
        raise DataError(f"'{root / 'val'}' lacks {len(missing)} class folders ({', '.join(missing[:3])}, …): {LAYOUT}")
    train, val = listing(root / "train", wnids), listing(root / "val", wnids)
    return assemble("imagenet100", class_words(root, wnids), train, val, root, size or SIDE)
