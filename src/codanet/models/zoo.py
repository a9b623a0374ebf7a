"""The paper's networks by name (its architecture table), and ours for small pictures."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from .._support.messages import nearest
from .._support.numbers import check_whole
from ..dau import Rescale
from .network import CoDANet, Layer


@dataclass(frozen=True)
class Architecture:
    layers: tuple[Layer, ...]
    image_size: int
    temperature: float
    image_channels: int = 3


def _layers(units: str, ranks: str, kernels: str, strides: str) -> tuple[Layer, ...]:
    columns = [[int(number) for number in column.split()] for column in (units, ranks, kernels, strides)]
    return tuple(Layer(*row) for row in zip(*columns, strict=True))


def _ranked(architecture: Architecture, factor: Fraction) -> Architecture:
    """All ranks times the factor (supplement B, model size)."""
    return replace(
        architecture,
        layers=tuple(replace(layer, rank=int(layer.rank * factor)) for layer in architecture.layers),
    )


_S = Architecture(
    _layers(
        "16 16 32 32 32 64 64 64 10",
        "32 32 64 64 64 64 64 64 64",
        "3 3 3 3 3 3 3 3 1",
        "1 1 2 1 1 2 1 1 1",
    ),
    image_size=32,
    temperature=1000,
)

ARCHITECTURES = {
    "s_coda": _S,
    "s_coda_r1_8": _ranked(_S, Fraction(1, 8)),
    "s_coda_r1_4": _ranked(_S, Fraction(1, 4)),
    "s_coda_r1_2": _ranked(_S, Fraction(1, 2)),
    "s_coda_r9_2": _ranked(_S, Fraction(9, 2)),
    "m_coda": Architecture(
        _layers(
            "16 16 32 32 32 64 64 64 10",
            "64 64 128 128 128 256 256 256 256",
            "3 3 3 3 3 3 3 3 1",
            "1 1 2 1 1 2 1 1 1",
        ),
        image_size=32,
        temperature=64,
    ),
    "l_coda": Architecture(
        _layers(
            "16 32 32 64 64 64 64 64 100",
            "64 64 64 128 128 128 256 256 256",
            "7 3 3 3 3 3 3 3 3",
            "3 1 1 2 1 1 2 1 1",
        ),
        image_size=240,
        temperature=1e5,
    ),
    "xl_coda": Architecture(
        _layers(
            "16 32 32 64 64 64 64 64 200",
            "64 64 128 128 128 256 256 256 256",
            "5 3 3 3 3 3 3 3 3",
            "1 1 2 1 1 2 1 1 2",
        ),
        image_size=64,
        temperature=6400,
    ),
    "nano_coda": Architecture(  # ours, for 8x8 to 32x32 pictures on a laptop
        _layers("16 16 32 10", "8 8 8 8", "3 3 3 1", "1 1 2 1"),
        image_size=8,
        temperature=16,
    ),
}


def list_models() -> list[str]:
    return list(ARCHITECTURES)


def create_model(
    name: str,
    num_classes: int | None = None,
    *,
    image_channels: int | None = None,
    image_size: tuple[int, int] | int | None = None,
    temperature: float | None = None,
    rescale: Rescale = "sq",
    bias: bool = True,
    recompute: bool = False,
    class_names: tuple[str, ...] | None = None,
) -> CoDANet:
    """A network of the paper, untrained. What is not given is as in the paper: classes, T, and the usual image size."""
    if name not in ARCHITECTURES:
        raise ValueError(f"unknown model {name!r}{nearest(name, ARCHITECTURES)}")
    architecture = ARCHITECTURES[name]
    if num_classes is None:
        num_classes = len(class_names) if class_names else architecture.layers[-1].units
    check_whole(1, num_classes=num_classes)
    layers = (*architecture.layers[:-1], replace(architecture.layers[-1], units=num_classes))
    options: dict[str, Any] = {"rescale": rescale, "bias": bias, "recompute": recompute, "class_names": class_names}
    return CoDANet(
        layers,
        name=name,
        image_channels=architecture.image_channels if image_channels is None else image_channels,
        image_size=image_size or (architecture.image_size, architecture.image_size),
        temperature=architecture.temperature if temperature is None else temperature,
        **options,
    )
