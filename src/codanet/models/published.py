"""State dicts in the layout of the paper's published code."""

import functools
import os
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._support.files import expanded
from .architectures import ARCHITECTURES, Layer
from .network import CoDANet
from .weights import check_tensors
from .zoo import create_model

_PUBLISHED = re.compile(r"^(?P<layer>.*?)weighting_f\.(?P<part>0\.weight|1\.weight|1\.bias)$")


def import_state_dict(
    source: str | os.PathLike[str] | Mapping[str, Any], name: str | None = None, **options: Any
) -> CoDANet:
    """A model from a state dict in the layout of the paper's published code.

    Each layer has `weighting_f.0.weight` (B, [r, C, k, k]), `weighting_f.1.weight` (A, [d·units, r, 1, 1]) and
    `weighting_f.1.bias` (b, [d·units]), the latter two viewed as (d, units, …) with d over (channel, row, column).
    Layers stand where their names put them ("9.weight_mod." before "10.weight_mod."), in whichever order the state dict
    lists them; a file of a network trained in parallel ("module.0.…") is read like any other.

    Args:
        source: A mapping of names to tensors, or a file written by torch.save. A file may hold plain tensors only.
        name: One of `list_models()`; without it the one whose shapes fit is taken.
        **options: For `create_model`: temperature, rescale and the like, which a state dict does not tell; the
            number of classes it does.

    Returns:
        The model in evaluation mode, in float64 if the weights are, otherwise in float32.

    Raises:
        ValueError: If the file cannot be read as plain tensors, or has another layout or other shapes.

    Examples:
        >>> import codanet
        >>> codanet.import_state_dict("s_coda.pt", temperature=64)  # doctest: +SKIP
    """
    for key in ("num_classes", "pretrained"):
        if key in options:
            raise ValueError(f"{key} was given, but classes and weights are the state dict's own: leave it out")
    layers = _published_layers(_state_dict(source), source)
    table = [_layer_shape(B, A) for B, A, _ in layers]  # (units, rank, kernel size)
    if name is None:
        fitting = [key for key, value in ARCHITECTURES.items() if _same_shapes(value.layers, table)]
        if not fitting:
            raise ValueError(
                f"no registered model has layers (units, rank, kernel) {table}: pass name= of one that has"
            )
        name = fitting[0]
    classes, channels = table[-1][0], layers[0][0].shape[1] // 2
    bias = layers[0][2] is not None
    with torch.random.fork_rng(devices=[]):  # all that is drawn is replaced
        model = create_model(name, num_classes=classes, **{"image_channels": channels, "bias": bias, **options})
    converted = {}
    for index, (B, A, b) in enumerate(layers):
        rank, channels, kernel, _ = B.shape
        size = B[0].numel()

        def reorder(tensor: Tensor, channels: int = channels, kernel: int = kernel) -> Tensor:
            """(channel, row, column) to (row, column, channel) in the last dimension."""
            tensor = tensor.reshape(*tensor.shape[:-1], channels, kernel * kernel)
            return tensor.transpose(-1, -2).flatten(-2)

        columns = A.reshape(size, -1, rank).permute(2, 1, 0)  # [r, units, d]
        if b is not None:
            columns = torch.cat([columns, b.reshape(size, -1).t().unsqueeze(0)])
        converted[f"layers.{index}.B"] = reorder(B.reshape(rank, size)).contiguous()
        converted[f"layers.{index}.A"] = reorder(columns).contiguous()
    check_tensors("the state dict", model.state_dict(), converted)
    model.to(functools.reduce(torch.promote_types, (part.dtype for part in converted.values()), torch.float32))
    model.load_state_dict(converted)
    return model.eval()


def _state_dict(source: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        state: Any = source
    else:
        path = expanded(source)
        if not path.is_file():
            raise ValueError(f"{path} is not a file: give a state dict saved by torch.save, or a mapping")
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load raises whatever its unpickler meets
            raise ValueError(f"{source} cannot be read as plain tensors ({type(error).__name__}): refused") from None
    if not isinstance(state, Mapping):
        raise ValueError(f"{_label(source)} holds {type(state).__name__}: a mapping of names to tensors is needed")
    found = _published_in(state)
    if not found:
        raise ValueError(f"{_label(source)} has no weighting_f.0.weight: it is not in the published code's layout")
    if len(found) > 1:
        raise ValueError(f"{_label(source)} holds {len(found)} networks: give the state dict of one")
    return found[0]


def _published_in(state: Mapping[Any, Any], depth: int = 4) -> list[Mapping[str, Any]]:
    """The state dicts in it: itself, or what lies beside an epoch, an optimiser and the like."""
    if any(isinstance(key, str) and _PUBLISHED.match(key) for key in state):
        return [state]
    nested = [value for value in state.values() if isinstance(value, Mapping)] if depth else []
    return [found for value in nested for found in _published_in(value, depth - 1)]


def _label(source: object) -> str:
    return "the mapping" if isinstance(source, Mapping) else str(source)


def _published_layers(state: Mapping[str, Any], source: object) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    layers: dict[str, dict[str, Tensor]] = {}
    for key, value in state.items():
        match = _PUBLISHED.match(key) if isinstance(key, str) else None
        if match is None or not isinstance(value, Tensor):
            raise ValueError(f"{_label(source)} has an unexpected entry {key!r}: only weighting_f.* tensors are known")
        layers.setdefault(match["layer"], {})[match["part"]] = value
    for prefix, parts in layers.items():
        for part in ("0.weight", "1.weight"):
            if part not in parts or parts[part].ndim != 4:
                raise ValueError(f"{_label(source)} lacks {prefix}weighting_f.{part} with four dimensions")
        B, A, b = parts["0.weight"], parts["1.weight"], parts.get("1.bias")
        if 0 in B.shape or B.shape[2] != B.shape[3]:
            raise ValueError(
                f"{_label(source)} has {prefix}weighting_f.0.weight of shape {list(B.shape)}: it must be [r, C, k, k]"
            )
        size = B[0].numel()
        if A.shape[0] % size or A.shape[1:] != (B.shape[0], 1, 1) or (b is not None and b.shape != A.shape[:1]):
            shapes = ", ".join(str(list(part.shape)) for part in parts.values())
            raise ValueError(
                f"{_label(source)} has {prefix}weighting_f of shapes {shapes}, which do not fit each other"
            )
    ordered = [layers[prefix] for prefix in sorted(layers, key=_numbered)]
    return [(parts["0.weight"], parts["1.weight"], parts.get("1.bias")) for parts in ordered]


def _numbered(prefix: str) -> list[tuple[bool, int, str]]:
    """A key that sorts names as people count: layer 9 before layer 10."""
    parts = [part for part in re.split(r"(\d+)", prefix) if part]
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _layer_shape(B: Tensor, A: Tensor) -> tuple[int, int, int]:
    return A.shape[0] // B[0].numel(), B.shape[0], B.shape[-1]


def _same_shapes(layers: tuple[Layer, ...], table: list[tuple[int, int, int]]) -> bool:
    known = [(layer.units, layer.rank, layer.kernel_size) for layer in layers]
    return len(known) == len(table) and known[:-1] == table[:-1] and known[-1][1:] == table[-1][1:]
