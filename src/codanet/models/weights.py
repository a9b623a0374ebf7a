"""Weights in safetensors, with the configuration, class names and provenance in the header; never pickle."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .._support.files import replacing
from .._support.messages import nearest
from .._support.version import __version__
from .network import CoDANet, Layer
from .zoo import ARCHITECTURES, create_model

FORMAT = 1
HEADER = "codanet"
SHIPPED = Path(__file__).parent / "shipped"


def save(model: CoDANet, path: str | os.PathLike[str], provenance: Mapping[str, Any] | None = None) -> Path:
    """Write the model to one file, all of it or nothing."""
    if not isinstance(model.rescale, str):
        raise ValueError("this model rescales with a function, which a file cannot hold: use 'sq', 'l2' or 'l1'")
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file, such as {path / 'model.safetensors'}")
    header = {
        "format": FORMAT,
        "version": __version__,
        "name": model.name,
        "layers": [asdict(layer) for layer in model.architecture],
        "image_channels": model.image_channels,
        "image_size": model.image_size,
        "temperature": model.temperature,
        "logit_bias": model.logit_bias,
        "rescale": model.rescale,
        "bias": model.layers[0].has_bias,
        "class_names": model.class_names,
        "provenance": {**model.provenance, **(provenance or {})},
    }
    tensors = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    try:
        words = json.dumps(header)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the provenance cannot be written as JSON ({error}): give text, numbers and lists") from None
    try:
        with replacing(path) as part:
            save_file(tensors, part, metadata={HEADER: words})
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} could not be written ({error}): make room or choose another place") from None
    return path


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"{path} {what}: give a .safetensors file written by codanet.save")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if HEADER not in metadata:
                raise ValueError(
                    f"{path} is a safetensors file without a codanet header: give one written by codanet.save, or use "
                    "codanet.import_state_dict for the layout of the paper's code"
                )
            header = json.loads(metadata[HEADER])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as safetensors ({error}): it is damaged or of another kind") from None
    return header, tensors


def list_shipped() -> list[str]:
    """The trained models that come with the package, by name."""
    return sorted(path.stem for path in SHIPPED.glob("*.safetensors"))


def weights_path(model: str | os.PathLike[str]) -> Path:
    """The file of a model that comes with the package, by its name, or of any other."""
    if isinstance(model, str) and model in list_shipped():
        return SHIPPED / f"{model}.safetensors"
    path = Path(model)
    if not path.exists() and not path.suffix and len(path.parts) == 1:
        raise ValueError(
            f"no model {str(model)!r} comes with the package{nearest(str(model), list_shipped())}, or give a "
            ".safetensors file"
        )
    return path


def load(path: str | os.PathLike[str]) -> CoDANet:
    """A model that comes with the package, by name ("cifar10"), or one in a file written by `save`; ready to use."""
    path = weights_path(path)
    header, tensors = _read(path)
    if not isinstance(header, Mapping):
        raise ValueError(f"{path} has a header that is not a mapping: it is damaged, so save the model again")
    if header.get("format") != FORMAT:
        raise ValueError(f"{path} has format {header.get('format')!r}, this version reads {FORMAT}: update codanet")
    try:
        size, names = header["image_size"], header["class_names"]
        with torch.device("meta"):
            model = CoDANet(
                [Layer(**layer) for layer in header["layers"]],
                image_channels=header["image_channels"],
                image_size=tuple(size) if size else None,
                temperature=header["temperature"],
                logit_bias=header["logit_bias"],
                rescale=header["rescale"],
                bias=header["bias"],
                class_names=tuple(names) if names else None,
                name=header["name"],
                provenance=header["provenance"],
            )
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path} has a header that makes no model ({error!r}): save the model again") from None
    check_tensors(path, {key: value.shape for key, value in model.state_dict().items()}, tensors)
    model.load_state_dict(tensors, assign=True)
    return model.requires_grad_().eval()


def check_tensors(path: object, expected: Mapping[str, torch.Size], given: Mapping[str, Tensor]) -> None:
    """Refuse missing or extra keys, other shapes, and numbers that are not finite, before anything is loaded."""
    missing, extra = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    if missing or extra:
        raise ValueError(
            f"{path} does not fit the model: missing {missing or 'nothing'}, unexpected {extra or 'nothing'}"
        )
    for key, shape in expected.items():
        if given[key].shape != shape:
            raise ValueError(f"{path} has {key} of shape {list(given[key].shape)}: the model needs {list(shape)}")
        if not given[key].is_floating_point() or not given[key].isfinite().all():
            raise ValueError(
                f"{path} has {key} with numbers that are not finite floats: it is damaged, so save it again"
            )


_PUBLISHED = re.compile(r"^(?P<layer>.*?)weighting_f\.(?P<part>0\.weight|1\.weight|1\.bias)$")


def import_state_dict(
    source: str | os.PathLike[str] | Mapping[str, Any], name: str | None = None, **options: Any
) -> CoDANet:
    """A model from a state dict in the layout of the paper's published code, given as a mapping or a file.

    Each layer has `weighting_f.0.weight` (B, [r, C, k, k]), `weighting_f.1.weight` (A, [d·units, r, 1, 1]) and
    `weighting_f.1.bias` (b, [d·units]), the latter two viewed as (d, units, …) with d over (channel, row, column).
    `name` is one of `list_models()`; without it the one whose shapes fit is taken. `options` go to `create_model`.
    """
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
    model = create_model(name, classes, **{"image_channels": channels, "bias": bias, **options})
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
    check_tensors("the state dict", {key: value.shape for key, value in model.state_dict().items()}, converted)
    model.load_state_dict(converted)
    return model.eval()


def _state_dict(source: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        found: Any = source
    else:
        if not Path(source).is_file():
            raise ValueError(f"{source} is not a file: give a state dict saved by torch.save, or a mapping")
        try:
            found = torch.load(source, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load raises whatever its unpickler meets
            raise ValueError(f"{source} cannot be read as plain tensors ({type(error).__name__}): refused") from None
    while isinstance(found, Mapping) and not any(isinstance(key, str) and _PUBLISHED.match(key) for key in found):
        nested = [value for value in found.values() if isinstance(value, Mapping)]
        if len(nested) != 1:
            raise ValueError(f"{_label(source)} has no weighting_f.0.weight: it is not in the published code's layout")
        found = nested[0]
    if not isinstance(found, Mapping):
        raise ValueError(f"{_label(source)} holds {type(found).__name__}: a mapping of names to tensors is needed")
    return found


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
        size = B[0].numel()
        if A.shape[0] % size or A.shape[1:] != (B.shape[0], 1, 1) or (b is not None and b.shape != A.shape[:1]):
            shapes = ", ".join(str(list(part.shape)) for part in parts.values())
            raise ValueError(
                f"{_label(source)} has {prefix}weighting_f of shapes {shapes}, which do not fit each other"
            )
    return [(parts["0.weight"], parts["1.weight"], parts.get("1.bias")) for parts in layers.values()]


def _layer_shape(B: Tensor, A: Tensor) -> tuple[int, int, int]:
    return A.shape[0] // B[0].numel(), B.shape[0], B.shape[-1]


def _same_shapes(layers: tuple[Layer, ...], table: list[tuple[int, int, int]]) -> bool:
    known = [(layer.units, layer.rank, layer.kernel_size) for layer in layers]
    return len(known) == len(table) and known[:-1] == table[:-1] and known[-1][1:] == table[-1][1:]
