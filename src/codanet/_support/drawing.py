"""Who draws an explanation: the package says so, since the room that draws stands above the one that explains."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Drawing(Protocol):
    """What an explanation asks of the room that draws it."""

    def picture(
        self, explanation: Any, /, *, palette: str = ..., style: str | None = ..., scale: float | None = ...
    ) -> Any: ...

    def save(self, figure: Any, path: str | os.PathLike[str], /) -> Path: ...

    def png(self, figure: Any, /) -> bytes: ...


_rooms: list[Callable[[], Drawing]] = []


def drawn_by(room: Callable[[], Drawing]) -> None:
    """From now on `room()`, called on first use, is what draws."""
    _rooms[:] = [room]


def drawing() -> Drawing:
    return _rooms[0]()
