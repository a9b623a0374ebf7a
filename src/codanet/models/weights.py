"""Weights in safetensors, with the configuration, class names and provenance in the header; never pickle.

A hybrid's file holds the stages of its backbone as well, so that nothing else is needed to load it.
"""

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .._support.files import expanded, replacing
from .._support.limits import parse_json, shown
from .._support.version import __version__
from .backbones import channels_last
from .digest import content_digest
from .hybrid import HybridNet
from .hybrid_file import described, halved, in_one_precision, read_features, untrained
from .network import CoDANet, Layer, bare
from .peer_file import PEER_FORMAT, described_peer, fill, untrained_peer
from .peers import Peer
from .weight_files import weights_file

FORMAT, HYBRID_FORMAT = 1, 2
HEADER, DIGEST = "codanet", "sha256"
STEPS_COUNTED = "num_batches_tracked"  # by a batch norm in training: of no use afterwards
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # that a model computes with
MOST_LAYERS = 1000
MOST_PRODUCTS = 2**30  # numbers that a layer makes of one picture on the way: 4 GiB in float32


def save(
    model: CoDANet,
    path: str | os.PathLike[str],
    provenance: Mapping[str, Any] | None = None,
    *,
    half_backbone: bool = False,
) -> Path:
    """Write a model to one file, all of it or nothing, with its architecture, class names and provenance.

    Args:
        model: A CoDANet whose `rescale` is a name, as a function cannot be kept in a file; or a peer. One inside
            torch.compile's wrapper is kept without it.
        path: Where to write, usually ending in .safetensors. A file that is there is replaced.
        provenance: Text, numbers and lists to keep in the header besides the model's own: data, settings, accuracy.
        half_backbone: Keep the filters of a hybrid's backbone in float16: half the size, and read back as float32.

    Returns:
        The path.

    Raises:
        ValueError: If the model is of another kind, the file cannot be written or the provenance is not JSON.

    Examples:
        >>> import codanet
        >>> codanet.save(codanet.create_model("nano_coda"), "model.safetensors")  # doctest: +SKIP
        PosixPath('model.safetensors')
    """
    path, model = expanded(path), cast(CoDANet, bare(model))
    if not isinstance(model, (CoDANet, Peer)):
        raise ValueError(
            f"a {type(model).__name__} was given: only a CoDANet, a hybrid or a peer is kept in such a file"
        )
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file, such as {path / 'model.safetensors'}")
    if half_backbone and not isinstance(model, HybridNet):
        raise ValueError("half_backbone is for hybrids, and this model has no backbone: leave it out")
    header = described_peer(model) if isinstance(model, Peer) else _described(model)
    header["provenance"] = {**model.provenance, **(provenance or {})}
    kept = model.state_dict() if isinstance(model, Peer) else _kept(model)
    tensors = _apart({key: value.detach().cpu().contiguous() for key, value in kept.items()})
    tensors = halved(tensors) if half_backbone else tensors
    try:
        words = json.dumps(header)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the provenance cannot be written as JSON ({error}): give text, numbers and lists") from None
    try:
        with replacing(path) as part:
            save_file(tensors, part, metadata={HEADER: words, DIGEST: content_digest(words, tensors)})
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} could not be written ({error}): make room or choose another place") from None
    return path


def _described(model: CoDANet) -> dict[str, Any]:
    """The header of a CoDA-Net, or of a hybrid."""
    if not isinstance(model.rescale, str):
        raise ValueError("this model rescales with a function, which a file cannot hold: use 'sq', 'l2' or 'l1'")
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
    }
    return header | {"format": HYBRID_FORMAT, "hybrid": described(model)} if isinstance(model, HybridNet) else header


def _kept(model: CoDANet) -> dict[str, Tensor]:
    """What of a model belongs into a file."""
    return {key: value for key, value in model.state_dict().items() if not key.endswith(STEPS_COUNTED)}


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each in memory of its own, as a file needs it: a backbone may have one tensor under two names."""
    places: set[int] = set()
    apart = {}
    for key, value in tensors.items():
        place = value.untyped_storage().data_ptr()
        apart[key] = value.clone() if place in places else value
        places.add(place)
    return apart


def _read(path: Path) -> tuple[Any, dict[str, Tensor], dict[str, str]]:
    """The header, the tensors, and the digest with what it is of."""
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if HEADER not in metadata:
                raise ValueError(
                    f"{path} is a safetensors file without a codanet header: give one written by codanet.save, or use "
                    "codanet.import_state_dict for the layout of the paper's code"
                )
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as safetensors ({error}): it is damaged or of another kind") from None
    try:
        return parse_json(metadata[HEADER]), tensors, metadata
    except ValueError as error:
        raise ValueError(f"{path} has a header that cannot be read ({error}): save the model again") from None


def load(path: str | os.PathLike[str], *, compile: bool = False, backbone: nn.Module | None = None) -> CoDANet:
    """A trained model, ready to use: one that comes with the package, by name, or one in a file written by `save`.

    Args:
        path: One of `list_models(pretrained=True)`, such as "cifar10", or the path of a .safetensors file.
        compile: Compile forward passes and explanations with torch.compile on their first use. That takes a while
            once for every kind of input, and pays off over many images; it needs a C++ compiler on a CPU.
        backbone: Of a hybrid on a network of one's own, that network, which a file cannot hold; its weights are taken
            from the file. The backbones that this package knows need nothing.

    Returns:
        The model in evaluation mode, on the CPU, in the precision it was saved in.

    Raises:
        ValueError: If there is no such model or file, or the file is damaged or of another kind.

    Examples:
        >>> import codanet
        >>> codanet.load("cifar10").image_size
        (32, 32)
    """
    with torch.inference_mode(False):  # what is made under it could never be trained
        return _loaded(weights_file(path), compile, backbone)


def _loaded(path: Path, compile: bool, backbone: nn.Module | None) -> CoDANet:
    if path.suffix.lower() == ".onnx":
        raise ValueError(f"{path} is an exported graph: open it with codanet.export.load, which takes both kinds")
    header, tensors, metadata = _read(path)
    if not isinstance(header, Mapping):
        raise ValueError(f"{path} has a header that is not a mapping: it is damaged, so save the model again")
    if header.get("format") not in (FORMAT, HYBRID_FORMAT, PEER_FORMAT):
        raise ValueError(
            f"{path} has format {header.get('format')!r}, this version reads {FORMAT}, {HYBRID_FORMAT} and "
            f"{PEER_FORMAT}: update codanet"
        )
    if header["format"] != HYBRID_FORMAT and backbone is not None:
        raise ValueError(f"{path} holds no hybrid, so it stands on no backbone: leave backbone out")
    if header["format"] == PEER_FORMAT:
        if compile:
            raise ValueError(f"{path} holds a peer, and only CoDA-Nets are compiled here: leave compile out")
        peer = untrained_peer(path, header)
        check_tensors(path, peer.state_dict(), tensors)
        _check_digest(path, metadata, tensors)
        return cast(CoDANet, fill(peer, tensors))  # used as one: it takes images and explains what it can
    features = read_features(path, header.get("hybrid"), backbone) if header["format"] == HYBRID_FORMAT else None
    try:
        model = _untrained(header, features, tensors)
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"{path} has a header that makes no model ({shown(error, 240)}): save the model again"
        ) from None
    check_tensors(path, _kept(model), tensors)
    _check_digest(path, metadata, tensors)
    if isinstance(model, HybridNet):
        tensors = in_one_precision(tensors)
    model.load_state_dict(tensors, assign=True, strict=False)  # all that is missing counts steps
    if isinstance(model, HybridNet):
        channels_last(model.backbone)
    if compile:
        model.compile()
    model.layers.requires_grad_()
    return model.eval()


def _untrained(header: Mapping[str, Any], features: nn.Module | None, tensors: Mapping[str, Tensor]) -> CoDANet:
    size, names = header["image_size"], header["class_names"]
    stride = 1 if features is None else max(1, int(header["hybrid"]["stride"]))
    check_sizes(header["layers"], size and [side // stride for side in size])
    options: dict[str, Any] = {
        "layers": [Layer(**layer) for layer in header["layers"]],
        "image_channels": header["image_channels"],
        "image_size": tuple(size) if size else None,
        "temperature": header["temperature"],
        "logit_bias": header["logit_bias"],
        "class_names": tuple(names) if names else None,
        "name": header["name"],
        "provenance": header["provenance"],
    }
    if features is not None:
        return untrained(features, header["hybrid"], options, tensors)
    with torch.device("meta"):
        return CoDANet(rescale=header["rescale"], bias=header["bias"], **options)


def _check_digest(path: Path, metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    if DIGEST not in metadata:
        warnings.warn(
            f"{path} was written before weights had a digest, so that damage to it would not be noticed: save it again "
            "with codanet.save",
            stacklevel=4,  # the line that called load
        )
    elif metadata[DIGEST] != content_digest(metadata[HEADER], tensors):
        raise ValueError(f"{path} has changed since it was written (its digest differs): fetch or save it again")


def check_sizes(layers: Sequence[Mapping[str, Any]], image_size: Sequence[int] | None) -> None:
    """Refuse a header that claims more than any machine should be asked for, before anything is made of it."""
    if len(layers) > MOST_LAYERS:
        raise ValueError(f"{len(layers)} layers, of which at most {MOST_LAYERS} are allowed")
    height, width = (int(side) for side in (image_size or (1, 1)))
    for number, layer in enumerate(layers):
        height, width = (-(-side // max(1, int(layer["stride"]))) for side in (height, width))
        products = height * width * int(layer["units"]) * (int(layer["rank"]) + 1)
        if products > MOST_PRODUCTS:
            raise ValueError(
                f"pictures of {image_size} make {products:.2g} numbers in layer {number}, of which at most "
                f"{MOST_PRODUCTS:.2g} are allowed"
            )


def check_tensors(path: object, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Refuse missing or extra keys, other shapes, and numbers that are not finite, before anything is loaded."""
    missing, extra = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    if missing or extra:
        raise ValueError(
            f"{path} does not fit the model: missing {missing or 'nothing'}, unexpected {extra or 'nothing'}"
        )
    for key, wanted in expected.items():
        if given[key].shape != wanted.shape:
            shape = list(given[key].shape)
            raise ValueError(f"{path} has {key} of shape {shape}: the model needs {list(wanted.shape)}")
        floats = given[key].dtype in FLOATS
        if floats != wanted.is_floating_point() or (floats and not given[key].isfinite().all()):
            raise ValueError(
                f"{path} has {key} with numbers that are not finite floats: it is damaged, so save it again"
            )
