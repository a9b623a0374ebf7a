"""Networks by name: untrained, or with trained weights."""

import os
from dataclasses import replace
from typing import Any

from .._support.numbers import check_whole
from ..dau import Rescale
from .architectures import ARCHITECTURES, architecture
from .network import CoDANet, Layer
from .weight_files import list_shipped
from .weights import load


def list_models(pretrained: bool = False) -> list[str]:
    """The names that `create_model` knows.

    Args:
        pretrained: Only the names of trained models that come with the package, which `load` takes as well.

    Example:
        >>> import codanet
        >>> codanet.list_models(pretrained=True)
        ['cifar10']
    """
    return list_shipped() if pretrained else list(ARCHITECTURES)


def create_model(
    name: str,
    pretrained: bool | str | os.PathLike[str] = False,
    *,
    num_classes: int | None = None,
    image_channels: int | None = None,
    image_size: tuple[int, int] | int | None = None,
    temperature: float | None = None,
    rescale: Rescale | None = None,
    bias: bool | None = None,
    recompute: bool = False,
    class_names: tuple[str, ...] | None = None,
) -> CoDANet:
from .._support.numbers import check_whole
    )


def _with_weights(trained: CoDANet, num_classes: int | None, recompute: bool, options: dict[str, Any]) -> CoDANet:
    fixed = {
        "image_channels": trained.image_channels,
        "rescale": trained.rescale,
        "bias": trained.layers[0].has_bias,
    }
    for key, value in fixed.items():
        if options.get(key, value) != value:
            raise ValueError(
                f"{key} is {options[key]!r}, but the trained weights were made with {value!r}: leave it out"
            )
    same_classes = num_classes in (None, trained.num_classes)
    defaults: dict[str, Any] = {
        **fixed,
        "image_size": trained.image_size,
        "temperature": trained.temperature,
        "class_names": trained.class_names if same_classes else None,
    }
    model = CoDANet(
        _ending_in(num_classes, trained.architecture),
        name=trained.name,
        logit_bias=trained.logit_bias,
        recompute=recompute,
        provenance=trained.provenance if same_classes else {"backbone": trained.provenance},
        **{**defaults, **options},
    )
    last = f"layers.{len(trained.layers) - 1}."
    kept = {key: value for key, value in trained.state_dict().items() if same_classes or not key.startswith(last)}
    model.load_state_dict(kept, strict=same_classes)
    return model.eval()


def _ending_in(num_classes: int | None, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    return layers if num_classes is None else (*layers[:-1], replace(layers[-1], units=num_classes))


def _inner(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layers without the number of classes."""
    return _ending_in(1, layers)
