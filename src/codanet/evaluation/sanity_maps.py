"""The maps of a sanity check, kept beside the records for its picture."""

import re
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from .._support.files import replacing
from ..metrics import SanityCheck

SANITY_IMAGES = 4  # in the picture of maps


def keep_sanity_maps(folder: Path, model: str, method: str, images: Tensor, check: SanityCheck) -> None:
    """Of the first images, whole or not at all."""
    tensors = {"images": images[:SANITY_IMAGES].cpu().contiguous(), "maps": check.maps[:SANITY_IMAGES].float()}
    with replacing(folder / f"sanity-{file_name(model, method)}.safetensors") as part:
        save_file(tensors, part, {"steps": "\n".join(check.steps)})


def read_sanity_maps(folder: Path, model: str, method: str) -> tuple[Tensor, Tensor, tuple[str, ...]] | None:
    """Images [n, C, H, W], maps [n, 1 + steps, H, W] and the steps' names; None if the file is gone."""
    path = folder / f"sanity-{file_name(model, method)}.safetensors"
    if not path.is_file():
        return None
    with safe_open(path, framework="pt") as file:
        steps = tuple(file.metadata()["steps"].split("\n"))
        return file.get_tensor("images"), file.get_tensor("maps"), steps


def file_name(model: str, method: str) -> str:
    """What a model and a method are called in the names of files."""
    return re.sub(r"[^\w.=-]+", "_", f"{model}-{method}")
