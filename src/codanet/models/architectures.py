"""The architectures by name: the paper's (its architecture table), ours for small pictures, and those you register.

Nothing here needs PyTorch, so that the command line can name the models without it.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from types import TracebackType

from .._support.messages import nearest
from .weight_files import list_shipped

USUAL_SIDE = 224  # in pixels, where neither a model nor its user says another


@dataclass(frozen=True)
class Layer:
    """A row of the paper's architecture table: one layer of Dynamic Alignment Units.

    Args:
        units: How many units there are, which is the number of channels of the layer's output. In the last layer they
            are the classes.
        rank: r, the dimensions of the space that a unit's weights are computed in. A layer's parameters and its cost
            grow in proportion to it.
        kernel_size: k, the side in pixels of the patches that the units look at.
        stride: Pixels from one patch to the next; 2 halves height and width.

    Examples:
        >>> Layer(units=16, rank=8, stride=2)
        Layer(units=16, rank=8, kernel_size=3, stride=2)
    """

    units: int
    rank: int
    kernel_size: int = 3
    stride: int = 1


@dataclass(frozen=True)
class Architecture:
    """What `create_model` builds a network from; `register_model` gives it a name.

    Args:
        layers: From the image to the classes. The units of the last layer are replaced by the number of classes.
        image_size: The side in pixels of the square images that the network is meant for. Others work too.
        temperature: T, by which the summed output is divided. The larger it is, the more the weights must align with
            the image to reach a large logit, and the sharper the explanations become.
        image_channels: 3 for RGB, 1 for grey.

    Examples:
        >>> Architecture((Layer(8, 4), Layer(10, 4)), image_size=32, temperature=100).image_channels
        3
    """

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
    "tiny_coda": Architecture(  # ours, for 64x64 pictures on a CPU: the first layer halves them, the ranks are low
        _layers(
            "16 32 32 64 64 64 64 64 200",
            "8 4 8 8 8 8 8 8 8",
            "5 3 3 3 3 3 3 3 1",
            "2 1 2 1 1 2 1 1 1",
        ),
        image_size=64,
        temperature=1000,
    ),
    "nano_coda": Architecture(  # ours, for 8x8 to 32x32 pictures on a laptop
        _layers("16 16 32 10", "8 8 8 8", "3 3 3 1", "1 1 2 1"),
        image_size=8,
        temperature=16,
    ),
}


# What the networks are called that CoDA-Nets are compared with (models/peers, which needs PyTorch).
PEER_NAMES = ("resnet20", "resnet56", "wrn_28_2", "vgg19_bn", "senn", "bcos_resnet20")


class Registration:
    """What `register_model` returns: forget the name again with `remove()`, or at the end of a `with` block."""

    def __init__(self, name: str):
        self.name = name

    def remove(self) -> None:
        ARCHITECTURES.pop(self.name, None)

    def __enter__(self) -> "Registration":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def register_model(name: str, architecture: Architecture) -> Registration:
    """Give an architecture of your own a name for `create_model`, `list_models` and training (`model: NAME`).

    Args:
        name: What to call it. A name that is taken is refused.
        architecture: Its layers, image size and temperature.

    Returns:
        A handle whose `remove()` forgets the name again; it also works as a context manager.

    Raises:
        ValueError: If the name is taken, also by a peer or by trained weights, or empty, or the architecture has no
            layers.

    Examples:
        >>> import codanet
        >>> mine = codanet.Architecture((codanet.Layer(8, 4), codanet.Layer(10, 4, kernel_size=1)), 32, temperature=100)
        >>> with codanet.register_model("mine", mine):
        ...     codanet.create_model("mine", num_classes=3).num_classes
        3
    """
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"a model was registered as {name!r}: give it a name, such as 'my_coda'")
    if name in ARCHITECTURES:
        raise ValueError(f"a model named {name!r} is registered already: choose another name, or remove that one first")
    if name in PEER_NAMES:
        raise ValueError(f"{name!r} is the name of a peer, which training would take instead: choose another name")
    if name in list_shipped():
        raise ValueError(f"{name!r} is the name of trained weights that come with the package: choose another name")
    if not isinstance(architecture, Architecture) or not architecture.layers:
        raise ValueError(f"{name!r} was registered as {architecture!r}: give a codanet.Architecture with layers")
    ARCHITECTURES[name] = architecture
    return Registration(name)


def architecture(name: str) -> Architecture:
    """The architecture of that name; an unknown one is answered with the nearest."""
    if name not in ARCHITECTURES:
        raise ValueError(f"unknown model {name!r}{nearest(name, ARCHITECTURES)}")
    return ARCHITECTURES[name]
