"""The explanation leaves Python: inside an ONNX graph, in a program of torch.export, and on a page without a server.

The room itself may be called: `codanet.export(model, "model.onnx")` is `codanet.export.export(...)`.
"""

import sys
from types import ModuleType
from typing import Any

from .check import Differences
from .model import ExportedNet, load
from .write import FORMATS, Exported, export

__all__ = ["FORMATS", "Differences", "Exported", "ExportedNet", "export", "load"]


class _Room(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Exported:
        return export(*arguments, **options)


sys.modules[__name__].__class__ = _Room
