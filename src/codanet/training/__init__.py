"""Training on Lightning: `train("digits")`, `train("my/pictures")`; stopped, it goes on where it stopped.

What brings Lightning along is imported on first use: settings, recipes and the names of a run's files are light.
"""

from typing import TYPE_CHECKING, Any

from .._support.extras import optional
from .._support.lazy import first_use
from .run_files import BEST, LAST, MODEL

if TYPE_CHECKING:
    from .callbacks import Divergence
    from .module import Classification
    from .run import Result, train, train_all

__all__ = ["BEST", "LAST", "MODEL", "Classification", "Divergence", "Result", "train", "train_all"]

_HOMES = {"Classification": "module", "Divergence": "callbacks", "Result": "run", "train": "run", "train_all": "run"}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        with optional():
            return first_use(__name__, name, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
