"""Networks by name: untrained, or with trained weights."""

import os
from dataclasses import replace
from typing import Any

import torch

from .._support.numbers import check_whole
from ..dau import Rescale
from .architectures import ARCHITECTURES, architecture
from .hybrid import HybridNet
from .network import CoDANet, Layer
from .peers import Peer
from .weight_files import list_shipped
from .weights import load


def list_models(pretrained: bool = False) -> list[str]:
    """The names that `create_model` knows.

    Args:
        pretrained: Only the names of trained models that come with the package, which `load` takes as well.

    Examples:
        >>> import codanet
        >>> codanet.list_models(pretrained=True)
        ['cifar10', 'tiny-imagenet-20', 'waste']
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
    """A network by name, untrained or with trained weights.

    What is not given is as the architecture, or the trained weights, have it.

    Args:
        name: One of `list_models()`; with `pretrained=True` also one of `list_models(pretrained=True)`.
        pretrained: False for random weights; True for those that come with the package; or the path of a file written
            by `save`, whose layers must be those of `name`.
        num_classes: The units of the last layer. If trained weights have another number, the last layer starts at
            random, and all others keep what they have learnt.
        image_channels: 3 for RGB, 1 for grey.
        image_size: The side, or (height, width), of the images the network is meant for.
        temperature: T, by which the summed output is divided; larger values press harder for alignment.
        rescale: How the weights of a unit are bounded: "sq" (the default), "l2" or "l1", or a function of the norm.
        bias: Whether w = g(A B x + b) has its b; by default it has.
        recompute: Compute activations again in the backward pass instead of keeping them: less memory, more time.
        class_names: One for each class, for explanations and tables.

    Returns:
        The network: in training mode if it is untrained, ready to use (`eval()`) if it has trained weights.

    Raises:
        ValueError: If the name is unknown, there are no such weights, or they do not fit what was asked for.

    Examples:
        >>> import codanet
        >>> codanet.create_model("nano_coda", num_classes=3).num_classes
        3
        >>> codanet.create_model("s_coda_r1_4", pretrained=True).class_names[3]
        'cat'
    """
    if not isinstance(pretrained, (bool, str, os.PathLike)):
        raise ValueError(
            f"pretrained is {pretrained!r}: give True, False or the path of a file; classes are num_classes="
        )
    if num_classes is not None:
        check_whole(1, num_classes=num_classes)
    options: dict[str, Any] = {
        "image_channels": image_channels,
        "image_size": image_size,
        "temperature": temperature,
        "rescale": rescale,
        "bias": bias,
        "class_names": class_names,
    }
    options = {key: value for key, value in options.items() if value is not None}
    if num_classes is None and class_names:
        num_classes = len(class_names)
    if pretrained is False:
        if name in list_shipped():
            raise ValueError(f"{name!r} names trained weights: pass pretrained=True, or use codanet.load({name!r})")
        return _untrained(name, num_classes, recompute, options)
    trained = _shipped(name) if pretrained is True else load(pretrained)
    if isinstance(trained, Peer):
        raise ValueError(f"{pretrained} holds a peer, {trained.name!r}, which is no CoDA-Net: use codanet.load")
    if isinstance(trained, HybridNet):
        if num_classes not in (None, trained.num_classes) or recompute or options:
            raise ValueError(f"{name!r} is a hybrid, which is taken as it was trained: leave the options out")
        return trained
    if name not in list_shipped() and _inner(architecture(name).layers) != _inner(trained.architecture):
        raise ValueError(
            f"the weights of {pretrained} have other layers than {name!r}: create {trained.name!r} instead"
        )
    return _with_weights(trained, num_classes, recompute, options)


def _untrained(name: str, num_classes: int | None, recompute: bool, options: dict[str, Any]) -> CoDANet:
    known = architecture(name)
    defaults = {
        "image_channels": known.image_channels,
        "image_size": known.image_size,
        "temperature": known.temperature,
    }
    layers = _ending_in(num_classes, known.layers)
    return CoDANet(layers, name=name, recompute=recompute, **{**defaults, **options})


def _shipped(name: str) -> CoDANet:
    """The shipped model of that name, or of the architecture of that name."""
    if name in list_shipped():
        return load(name)
    architecture(name)  # refuses an unknown name
    for trained in map(load, list_shipped()):
        if trained.name == name:
            return trained
    raise ValueError(
        f"no trained weights of {name!r} come with the package: there are {', '.join(list_shipped())}; pass "
        "pretrained=PATH for a file of your own"
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
    with torch.random.fork_rng(devices=[], enabled=same_classes):  # nothing that is drawn stays but a new last layer
        model = CoDANet(
            _ending_in(num_classes, trained.architecture),
            name=trained.name,
            logit_bias=trained.logit_bias,
            recompute=recompute,
            provenance=trained.provenance if same_classes else {"backbone": trained.provenance},
            **{**defaults, **options},
        ).to(trained.dtype)
    last = f"layers.{len(trained.layers) - 1}."
    kept = {key: value for key, value in trained.state_dict().items() if same_classes or not key.startswith(last)}
    model.load_state_dict(kept, strict=same_classes)
    return model.eval()


def _ending_in(num_classes: int | None, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    return layers if num_classes is None else (*layers[:-1], replace(layers[-1], units=num_classes))


def _inner(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layers without the number of classes."""
    return _ending_in(1, layers)
