"""Exported files in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._support.limits import shown
from .check import Run


def opened(source: Path | bytes, threads: int | None = None) -> Any:
    """An onnxruntime session of a file or its content, with as many threads as PyTorch has if not given."""
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3  # errors: it warns of shapes that are free on purpose
    content = source if isinstance(source, bytes) else source.read_bytes()  # of a path that may not be UTF-8
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def runner(session: Any) -> Run:
    def run(image: NDArray[np.float32], target: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        logits, contributions = answers(session, ["logits", "contributions"], {"image": image, "target": target})
        return logits, contributions

    return run


def run(session: Any, outputs: Sequence[str], images: Tensor, targets: Tensor) -> list[Tensor]:
    """Some outputs of the graph, and no more work than they need."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.only_execute_path_to_fetches = True
    inputs = {"image": images.contiguous().numpy(), "target": targets.contiguous().numpy()}
    return [torch.from_numpy(values) for values in answers(session, list(outputs), inputs, options)]


def answers(session: Any, *question: Any) -> Any:
    try:
        return session.run(*question)
    except Exception as error:  # onnxruntime's own kinds of error
        raise ValueError(f"the graph does not run in onnxruntime ({shown(error, 240)}): export another model") from None
