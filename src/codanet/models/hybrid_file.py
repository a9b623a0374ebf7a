"""What a file says of a hybrid besides its layers: the backbone, where it is cut, and the weights of its stages."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .backbones import BACKBONES, UpTo, cut
from .hybrid import HybridNet
from .network import CoDANet

MOST_PIXELS = 2**21  # in a picture that a backbone is asked for


def described(model: HybridNet) -> dict[str, Any]:
    return {
        "backbone": model.backbone_name,
        "layer": model.layer,
        "stride": model.stride,
        "encoding": model.encoding,
        "cut_by_name": isinstance(model.backbone, UpTo),
    }


def halved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With the backbone's filters in float16."""
    half = {key: value.half() if _is_filter(key, value) else value for key, value in tensors.items()}
    for key, value in half.items():
        if not value.isfinite().all():
            raise ValueError(f"{key} has numbers beyond 65504, where float16 ends: leave half_backbone out")
    return half


def in_one_precision(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With the backbone's filters as precise as the layers."""
    kind = tensors["layers.0.A"].dtype
    return {key: value.to(kind) if _is_filter(key, value) else value for key, value in tensors.items()}


def _is_filter(key: str, value: Tensor) -> bool:
    """Norms and biases are few, and their range is wide."""
    return key.startswith("backbone.") and value.ndim > 1 and value.is_floating_point()


def read_features(path: Path, about: Any, given: nn.Module | None) -> nn.Module:
    """The backbone as far as its layer, its weights still to be read."""
    try:
        name, layer, by_name = str(about["backbone"]), str(about["layer"]), bool(about["cut_by_name"])
    except (KeyError, TypeError):
        raise ValueError(f"{path} does not say what its backbone is: it is damaged, so save the model again") from None
    if given is not None:
        whole = by_name or callable(getattr(given, "up_to", None))
        return cut(deepcopy(given), layer) if whole else deepcopy(given)
    if name not in BACKBONES:
        raise ValueError(
            f"{path} stands on {name}, a network of one's own that a file cannot hold: pass it, as in "
            f"codanet.load(path, backbone={name}())"
        )
    with torch.random.fork_rng(devices=[]):
        return cut(BACKBONES[name].build(False), layer)


def check_layers(options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse layers that the file's tensors do not fill, before memory is taken for them."""
    with torch.device("meta"):
        claimed = CoDANet(**options).state_dict()
    channels = 2 * options["image_channels"]
    for key, wanted in claimed.items():
        shape, held = list(wanted.shape), list(tensors[key].shape) if key in tensors else []
        if key.startswith("layers.0.") and held and shape[-1] // channels <= held[-1]:  # it sees features instead
            shape[-1] = held[-1]
        if shape != held:
            raise ValueError(f"{key} is said to be {shape}, the file has {held or 'none'}")


def untrained(
    features: nn.Module, about: Mapping[str, Any], options: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> HybridNet:
    """options: of any CoDANet; tensors: what is to be read into it."""
    check_layers(options, tensors)
    height, width = options["image_size"]
    if height * width > MOST_PIXELS:
        raise ValueError(f"pictures of {height}x{width}, of which at most {MOST_PIXELS} pixels are allowed")
    with torch.random.fork_rng(devices=[]):  # not on "meta": a network of one's own may make tensors as it runs
        model = HybridNet(
            features, encoding=about["encoding"], backbone=about["backbone"], layer=about["layer"], **options
        )
    if model.stride != about["stride"]:  # by which the sizes were checked
        raise ValueError(f"a stride of {about['stride']}, where {about['layer']} has {model.stride}")
    return model
