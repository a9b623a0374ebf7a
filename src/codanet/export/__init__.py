"""The explanation leaves Python: inside an ONNX graph, in a program of torch.export, and on a page without a server.

The room itself may be called: `codanet.export(model, "model.onnx")` is `codanet.export.export(...)`; and so may its
module `codanet.export.page`, which is imported on first use.
"""

from typing import TYPE_CHECKING, Any

from .._support.lazy import called, first_use
from .check import Differences
from .model import ExportedNet, load
from .write import FORMATS, Exported, export

if TYPE_CHECKING:
    from . import page as page

__all__ = ["FORMATS", "Differences", "Exported", "ExportedNet", "export", "load", "page"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return first_use(__name__, name, {"page": "page"})


called(__name__, export)
