"""Names that are imported on first use, so that a package costs only what is used of it."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def first_use(package: str, name: str, homes: Mapping[str, str]) -> Any:
    """What a package's `__getattr__` answers: `name` from the module of `homes` that holds it.

    A home that ends in the name itself, as in {"plot": "plot"}, is the module.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module = import_module(f"{package}.{homes[name]}")
    return module if homes[name] == name else getattr(module, name)
