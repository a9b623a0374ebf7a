"""An exported file as a model: its graph runs in onnxruntime, and PyTorch does what a graph cannot."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._support.extras import optional
from .._support.limits import parse_json, shown
from ..models import weights
from ..models.architectures import Layer
from ..models.explanation import Explanation, Target, resolve_targets
from ..models.network import CoDANet
from ..models.weight_files import weights_file
from .digest import intact

SUFFIX = ".onnx"
PIXELS_AT_ONCE = 1 << 16  # through the graph, classes of one picture counted: 64 of 32x32


class ExportedNet(CoDANet):
    """A CoDANet whose logits and explanations are computed by the graph of an .onnx file; `load` makes it.

    The parameters in the file are the model's own. So what the graph does not do works as ever, in PyTorch: gradients,
    traces, encoded inputs, hooks, a size other than the file's only one, another device or precision, and, once a
    parameter has changed, everything. A copy computes in PyTorch, too.
    """

    _session: Any = None
    _held: tuple[int, ...] = ()  # the versions of the parameters that the graph holds
    _only_size: tuple[int, int] | None = None

    def run_in(self, session: Any, only_size: tuple[int, int] | None) -> None:
        self._session, self._only_size, self._held = session, only_size, self._versions()

    def _versions(self) -> tuple[int, ...]:
        return tuple(number for each in self.parameters() for number in (each._version, each.data_ptr()))

    def _in_graph(self, images: Tensor) -> bool:
        """Whether the graph computes just what is asked."""
        plain = isinstance(images, Tensor) and images.ndim == 4 and images.shape[1] == self.image_channels
        return (
            plain
            and self._session is not None
            and not torch.is_grad_enabled()
            and self._only_size in (None, tuple(images.shape[2:]))
            and self._versions() == self._held
            and not any(module._forward_hooks or module._forward_pre_hooks for module in self.modules())
        )

    def forward(self, images: Tensor) -> Tensor:
        if not self._in_graph(images):
            return super().forward(images)
        from .session import run

        images = self._checked_images(images)
        targets = torch.zeros(len(images), dtype=torch.int64)
        parts = zip(images.split(self._at_once(images)), targets.split(self._at_once(images)), strict=True)
        return torch.cat([run(self._session, ["logits"], *part)[0] for part in parts])

    @torch.no_grad()
    def explain(self, images: Tensor, target: Target = None) -> Explanation:
        """As `CoDANet.explain`."""
        if not self._in_graph(images):
            return super().explain(images, target)
        from .session import run

        encoded = self.encode(images)
        images = encoded[:, : self.image_channels]
        wanted, several = resolve_targets(target, len(images), self.num_classes, self.class_names)
        targets = torch.full((len(images), 1), -1) if wanted is None else wanted
        together = self._at_once(images)
        parts = []
        if targets.shape[1] == 1:
            for some, classes in zip(images.split(together), targets[:, 0].split(together), strict=True):
                logits, rows = run(self._session, ["logits", "rows"], some, classes)
                parts.append((logits, rows[:, None]))
        else:  # the way in once for each picture
            for image, classes in zip(images, targets, strict=True):
                answers = [
                    run(self._session, ["logits", "rows"], image[None], some) for some in classes.split(together)
                ]
                parts.append((answers[0][0], torch.cat([rows for _, rows in answers])[None]))
        logits, rows = (torch.cat(part) for part in zip(*parts, strict=True))
        targets = torch.where(targets < 0, logits.argmax(1, keepdim=True), targets)
        return Explanation.of(self, encoded, logits, targets, rows, several)

    def _at_once(self, images: Tensor) -> int:
        return max(1, PIXELS_AT_ONCE // (images.shape[2] * images.shape[3]))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_session": None}


def load(path: str | os.PathLike[str]) -> CoDANet:
    """As `codanet.load`, of an .onnx file written by `codanet.export`, too: its graph then computes, in onnxruntime.

    Args:
        path: One of `list_models(pretrained=True)`, a .safetensors file, or an .onnx file.

    Raises:
        ValueError: If there is no such file, or it is damaged or of another kind.

    Examples:
        >>> import codanet, torch
        >>> codanet.export(codanet.load("cifar10"), "cifar10.onnx").path
        PosixPath('cifar10.onnx')
        >>> codanet.export.load("cifar10.onnx").explain(torch.rand(1, 3, 32, 32)).pixels.shape
        torch.Size([1, 32, 32])
    """
    file = weights_file(path)
    if file.suffix.lower() != SUFFIX:
        return weights.load(path)
    with torch.inference_mode(False):  # what is made under it could never be trained
        return _read(file)


def _read(path: Path) -> ExportedNet:
    with optional():
        import onnx
        import onnxruntime  # noqa: F401 (whether it is there)
        from onnx import numpy_helper
    from .session import opened

    content = path.read_bytes()
    try:
        graph = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's own kinds of error
        raise ValueError(
            f"{path} cannot be read as ONNX ({shown(error, 120)}): it is damaged or of another kind"
        ) from None
    facts = {entry.key: entry.value for entry in graph.metadata_props}
    if "codanet" not in facts or "layers" not in facts:
        raise ValueError(f"{path} is an ONNX file of another kind: give one written by codanet export")
    if any(each.data_location == onnx.TensorProto.EXTERNAL for each in graph.graph.initializer):
        raise ValueError(f"{path} takes weights from other files, as none of ours does: export the model again")
    try:
        header = {name: parse_json(words) for name, words in facts.items()}
        model = _untrained(header)
        stored = {each.name: torch.from_numpy(numpy_helper.to_array(each).copy()) for each in graph.graph.initializer}
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"{path} has metadata that make no model ({shown(error, 240)}): export the model again"
        ) from None
    if "feature_scale" in stored:
        raise ValueError(f"{path} holds a hybrid, which only other programs run: give its .safetensors file")
    tensors = {}
    for name, wanted in model.state_dict().items():
        filters = stored.get(name, stored.get(f"{name}_half"))  # [·, C, k, k]
        if filters is not None:
            tensors[name] = filters.float().permute(0, 2, 3, 1).reshape(-1, wanted.shape[-1]).reshape(wanted.shape)
    weights.check_tensors(path, model.state_dict(), tensors)
    model.load_state_dict(tensors, assign=True)
    model.eval().requires_grad_(False)
    if "rows" not in [each.name for each in graph.graph.output]:
        graph.graph.output.append(onnx.helper.make_tensor_value_info("rows", onnx.TensorProto.FLOAT, None))
    try:
        session = opened(graph.SerializeToString())
    except Exception as error:  # onnxruntime's own kinds of error
        raise ValueError(f"{path} does not run in onnxruntime ({shown(error, 240)}): export the model again") from None
    if not intact(content):
        raise ValueError(f"{path} has changed since it was written (its digest differs): export the model again")
    sides = tuple(size.dim_value for size in graph.graph.input[0].type.tensor_type.shape.dim[2:])
    model.run_in(session, (sides[0], sides[1]) if all(sides) else None)
    return model


def _untrained(header: Mapping[str, Any]) -> ExportedNet:
    size, names = header["image_size"], header["class_names"]
    weights.check_sizes(header["layers"], size)
    with torch.device("meta"):
        return ExportedNet(
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
