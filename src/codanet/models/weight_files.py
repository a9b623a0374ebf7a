"""Where trained weights are: those that come with the package, by name, and any other file."""

import os
from pathlib import Path

from .._support.files import expanded
from .._support.messages import nearest

SHIPPED = Path(__file__).parent / "shipped"


def list_shipped() -> list[str]:
    """The trained models that come with the package, by name."""
    return sorted(path.stem for path in SHIPPED.glob("*.safetensors"))


def weights_path(model: str | os.PathLike[str]) -> Path:
    """The file of a model that comes with the package, by its name, or of any other."""
    if isinstance(model, str) and model in list_shipped():
        return SHIPPED / f"{model}.safetensors"
    path = expanded(model)
    if not path.exists() and not path.suffix and len(path.parts) == 1:
        raise ValueError(
            f"no model {str(model)!r} comes with the package{nearest(str(model), list_shipped())}, or give a "
            ".safetensors file"
        )
    return path


def weights_file(model: str | os.PathLike[str]) -> Path:
    """The file of a model, which is there."""
    path = weights_path(model)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"{path} {what}: give a .safetensors file written by codanet.save")
    return path
