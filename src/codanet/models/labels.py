"""Short names for models that stand beside each other on a page or in a table."""

import os
from collections.abc import Sequence
from pathlib import Path

from .resnet import RESNETS


def short_name(name: str, names: Sequence[str]) -> str:
    """The last parts of a path, as many as tell it from the others; model.safetensors goes by its folder."""
    if names.count(name) > 1:
        raise ValueError(f"{name} was given twice: give every model once")
    kind = name.partition(":")[0]
    if kind in RESNETS and [other.partition(":")[0] for other in names].count(kind) == 1:
        return kind
    paths = [_telling(each) for each in (name, *names)]
    for count in range(1, len(paths[0]) + 1):
        endings = [path[-count:] for path in paths]
        if endings.count(endings[0]) == 2:  # it and itself
            return "/".join(endings[0])
    return name


def _telling(name: str) -> tuple[str, ...]:
    """The parts of a path that tell what it is: runs/digits/model.safetensors is runs/digits."""
    path = Path(os.path.abspath(name) if ".." in Path(name).parts else name)  # .. tells nothing
    parts = path.with_suffix("").parts
    return parts[:-1] if len(parts) > 1 and parts[-1] == "model" else parts
