"""Models, methods and metrics in; a table, its figures and where they come from out: `evaluate(...)`."""

from .models import load_models
from .records import Records
from .results import Results
from .run import METHODS_OF_THE_PAPER, METRICS_OF_THE_PAPER, evaluate
from .table import Row

__all__ = ["METHODS_OF_THE_PAPER", "METRICS_OF_THE_PAPER", "Records", "Results", "Row", "evaluate", "load_models"]
