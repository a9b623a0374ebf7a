"""Whose session a request belongs to: one step of it at a time, and none of a session that is gone."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from .session import Session

MOST_KNOWN = 100_000


class Turn:
    """A visitor's; a plain lock cannot be referred to weakly."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Visitors:
    """Who has been here: a visitor whose session is a new one had an old one, which is gone.

    Sessions belong to Gradio, and go after an hour, or when there are too many of them. What a page still shows of one
    must not be answered from another picture. Gradio reads a session before its step has its turn: the newest one
    counts, or an upload would be lost to a step that began before it.
    """

    def __init__(self) -> None:
        self.known: dict[str, None] = {}
        self.newest: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self.turns: WeakValueDictionary[str, Turn] = WeakValueDictionary()
        self.guard = threading.Lock()

    def session(self, whose: str | None, old: Session, anew: bool) -> Session:
        """As it is now; `old` is what Gradio has read. A step that opens a picture `anew` may begin another one."""
        now = self.newest.get(whose or "", old)
        if not anew and not now.begun and whose in self.known:
            raise ValueError("your picture is no longer kept here: give it again, or choose one of the others")
        return now

    @contextmanager
    def turn(self, whose: str | None) -> Iterator[None]:
        with self.guard:
            turn = self.turns.setdefault(whose, Turn()) if whose else Turn()
        with turn.lock:
            yield

    def remember(self, whose: str | None, new: Session | None) -> None:
        if whose is None:
            return
        self.known[whose] = None
        while len(self.known) > MOST_KNOWN:
            self.known.pop(next(iter(self.known)), None)
        if new is not None:
            self.newest[whose] = new


def remembering(
    function: Callable[..., Any], visitors: Visitors, asking: Callable[[], str | None], anew: bool
) -> Callable[..., Any]:
    """A step of the session of whoever is `asking`, if it is still there; one that opens a picture may begin `anew`."""

    @functools.wraps(function)
    def answer(old: Session, *arguments: Any) -> Any:
        whose = asking()
        with visitors.turn(whose):
            outcome, new = function(visitors.session(whose, old, anew), *arguments), None
            if isinstance(outcome, tuple) and isinstance(outcome[0], Session):
                new = replace(outcome[0], begun=True)
                outcome = new, *outcome[1:]
            visitors.remember(whose, new)
        return outcome

    @functools.wraps(function)
    def stream(old: Session, *arguments: Any) -> Iterator[Any]:
        yield from function(visitors.session(asking(), old, anew), *arguments)

    return stream if inspect.isgeneratorfunction(function) else answer
