"""Exported files in onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .check import Run


def opened(path: Path) -> Any:
    """An onnxruntime session of the file, with as many threads as PyTorch has."""
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors: it warns of shapes that are free on purpose
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def runner(session: Any) -> Run:
    def run(image: NDArray[np.float32], target: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        logits, contributions = session.run(["logits", "contributions"], {"image": image, "target": target})
        return logits, contributions

    return run
