"""Names that are imported on first use, so that a package costs only what is used of it; and modules to be called."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def first_use(package: str, name: str, homes: Mapping[str, str]) -> Any:
    """What a package's `__getattr__` answers: `name` from the module of `homes` that holds it.

    A home that ends in the name itself, as in {"plot": "plot"}, is the module.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module = import_module(f"{package}.{homes[name]}")
    return module if homes[name] == name else getattr(module, name)


def called(module: str, function: Callable[..., Any]) -> None:
    """From now on the module may be called, as the function of the same name that it holds."""

    class Called(ModuleType):
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            return function(*arguments, **options)

    sys.modules[module].__class__ = Called
