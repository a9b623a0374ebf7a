"""`codanet.export`: a model and its explanation in one file that needs no codanet to run."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

import torch
from torch import nn

from .._support.extras import optional
from .._support.files import expanded, replacing
from .._support.messages import nearest, reason
from .._support.numbers import for_json
from .._support.version import __version__
from ..models.hybrid import HybridNet
from ..models.network import CoDANet, bare
from ..models.weights import check_sizes
from .check import Differences, Run, check_images, compare

FORMATS = ("onnx", "pt2")


@dataclass(frozen=True)
class Exported:
    """A file that was written, and what it was found to be."""

    path: Path
    bytes: int
    differences: Differences  # how far the file is from PyTorch
    half: Differences | None = None  # how far half precision is from the model


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    channels: bool = False,
    rows: bool = False,
    size: int | tuple[int, int] | None = None,
    half: bool = False,
) -> Exported:
    """Write the model and its explanation as one graph: ONNX, or a program of torch.export.

    The file takes `image` [N, C, H, W] in [0, 1] and `target` [N] (int64, -1 for the predicted class), and gives
    `logits` [N, classes] and `contributions` [N, H, W], which add up to the target's logit less b0; those of a hybrid
    are [N, h, w], one for every position of its features. It is compared with PyTorch, on pictures and noise, before
    it is kept. A file cannot refuse: for a target that is no class all contributions are 0, for a NaN in an image all
    its outputs are NaN, and values outside [0, 1] are computed with.

    Args:
        model: A CoDANet whose rescaling has a name; on any device, in any precision. The file computes in float32.
        path: Where to write, whole or not at all.
        format: "onnx" or "pt2"; by default what the path ends in.
        channels: Also give `channels` [N, 2C, H, W], the contributions of the encoded channels [x, 1-x].
        rows: Also give `rows` [N, 2C, H, W], the target's row of W / T.
        size: The only (height, width) the file shall take; any, if None.
        half: Keep the weights in half precision, in ONNX: half the bytes, the same speed.

    Raises:
        ValueError: for what cannot be exported or written, and if the file does not say what the model says.

    Examples:
        >>> import codanet
        >>> codanet.export(codanet.load("cifar10"), "cifar10.onnx").differences.small
        True
    """
    path, format = _checked_path(expanded(path), format, half)
    net = copy.deepcopy(exportable(model)).cpu().float().eval().requires_grad_(False)
    sides = _checked_size(size, net)
    images = check_images(net, sides)
    stored = _rounded(net) if half else net
    try:
        with replacing(path) as part:
            run = _write(stored, part, format, channels, rows, sides, half)
            check = compare(stored, run, images)
            if not check.small:
                raise ValueError(
                    f"{path} was not written, since it would differ from the model (logits {check.logits:.1g}, maps "
                    f"{check.maps:.1g}, sums {check.sums:.1g}): numbers this large or small do not fit float32"
                )
            size_in_bytes = part.stat().st_size
    except OSError as error:
        raise ValueError(f"{path} could not be written ({reason(error)}): make room or choose another place") from None
    return Exported(path, size_in_bytes, check, compare(net, run, images) if half else None)


def _write(
    model: CoDANet,
    path: Path,
    format: str,
    channels: bool,
    rows: bool,
    size: tuple[int, int] | None,
    half: bool,
) -> Run:
    """Write the file, and read it back as something to run."""
    if format == "onnx":
        from .digest import entry
        from .graph import build
        from .session import opened, runner

        graph = build(model, metadata(model), channels=channels, rows=rows, size=size, half=half)
        content = graph.SerializeToString()
        path.write_bytes(content + entry(content))
        return runner(opened(path))
    from .program import write

    write(model, path, metadata(model), channels=channels, rows=rows, size=size)
    program = torch.export.load(BytesIO(path.read_bytes())).module()

    def run(image, target):  # type: ignore[no-untyped-def]
        with torch.no_grad():
            logits, contributions, *_ = program(torch.from_numpy(image), torch.from_numpy(target))
        return logits.numpy(), contributions.numpy()

    return run


def metadata(model: CoDANet) -> dict[str, str]:
    """What a file says of itself: every value is JSON."""
    features = {"exact_for": model.exact_for, "stride": model.stride} if isinstance(model, HybridNet) else {}
    known = {
        "codanet": __version__,
        **features,
        "name": model.name,
        "layers": [asdict(layer) for layer in model.architecture],
        "bias": model.dau_layers[0].has_bias,
        "class_names": model.class_names,
        "image_size": model.image_size,
        "image_channels": model.image_channels,
        "temperature": model.temperature,
        "logit_bias": model.logit_bias,
        "rescale": model.rescale,
        "provenance": model.provenance,
    }
    try:
        return {name: json.dumps(for_json(value), allow_nan=False) for name, value in known.items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"the provenance cannot be written as JSON ({error}): give text, numbers and lists") from None


def _checked_path(path: Path, format: str | None, half: bool) -> tuple[Path, str]:
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file, such as {path / 'model.onnx'}")
    format = path.suffix.removeprefix(".").lower() if format is None else format
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r} for {path}{nearest(format, FORMATS)}")
    if format == "onnx":
        with optional():
            import onnx  # noqa: F401
            import onnxruntime  # noqa: F401 (whether they are there)
    if half and format != "onnx":
        raise ValueError("half precision was asked for in a .pt2 file: only .onnx files can hold it")
    return path, format


def exportable(model: nn.Module) -> CoDANet:
    """The model itself, if a graph can hold its explanation."""
    inner = bare(model)
    if not isinstance(inner, CoDANet):
        raise ValueError(f"a {type(inner).__name__} was given: only a CoDANet has its explanation in its graph")
    if not isinstance(inner.rescale, str):
        raise ValueError("this model rescales with a function, which a graph cannot hold: use 'sq', 'l2' or 'l1'")
    return inner


def _rounded(model: CoDANet) -> CoDANet:
    """With weights that half precision holds, in float32."""
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in rounded.named_parameters():
            parameter.copy_(parameter.half())
            if not parameter.isfinite().all():
                raise ValueError(f"{name} has numbers beyond 65504, which half precision ends at: export it in full")
    return rounded


def _checked_size(size: int | tuple[int, int] | None, model: CoDANet) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ValueError(f"size is {size!r}: give the height and width in pixels, or None for any")
    stride = model.stride if isinstance(model, HybridNet) else 1
    height, width = (-(-side // stride) for side in sides)  # that the layers see
    check_sizes([asdict(layer) for layer in model.architecture], (height, width))
    for layer in model.dau_layers:
        height, width = layer.output_size(height, width)
    return sides[0], sides[1]
