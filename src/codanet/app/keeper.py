"""What the server keeps for visitors, bounded: events that wait, answers that nobody fetches, sockets that say nothing.

Gradio keeps every answer until its visitor listens, and every event with the picture in it until its turn. The keeper
stands before its queue, and goes round once in a while.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

from .memory import give_back

LISTENED, UNHEARD = 12, 3  # events of a visitor who listens, and of one who does not yet
UNHEARD_SESSIONS = 8  # of visitors who have not listened yet
UNREAD = 64  # answers not fetched, for all visitors together
WAITING_BYTES = 96 * 2**20  # for pictures on their way
PATIENCE = 60.0  # seconds that an answer waits to be fetched
SILENCE = 30.0  # seconds that a socket may be open without a request, or without taking what it asked for
SOCKETS = 512
ROUND = 5.0  # seconds
HASH = re.compile(r"[\w-]{1,64}")
BUSY = "The page is busy: try again in a moment."


class Answers(asyncio.Queue[Any]):
    """The messages to a visitor, and when one was last asked for."""

    def __init__(self, listened: Callable[[], None]) -> None:
        super().__init__()
        self.asked, self.listening, self.heard = time.monotonic(), 0, False
        self.listened = listened

    async def get(self) -> Any:
        self.asked, self.listening, self.heard = time.monotonic(), self.listening + 1, True
        self.listened()
        try:
            return await super().get()
        finally:
            self.listening -= 1

    def left(self, now: float) -> bool:
        """Nobody listens, or whoever does reads nothing."""
        return not self.listening and now - self.asked > PATIENCE


class Sessions(OrderedDict[str, Any]):
    """By visitor, the one used last at the end; Gradio takes the first away when they are too many.

    Before that goes one of a visitor who has never listened, if there are more than a few of them: those who only send
    would push all others out.
    """

    def __init__(self, listening: Callable[[str], bool]) -> None:
        super().__init__()
        self.listening, self.listened = listening, set[str]()

    def __setitem__(self, name: str, session: Any) -> None:
        super().__setitem__(name, session)
        self.listened.intersection_update(self)
        if self.listening(name):
            self.listened.add(name)

    def popitem(self, last: bool = True) -> tuple[str, Any]:
        unheard = [name for name in list(self)[:-1] if name not in self.listened]
        if last or len(unheard) < UNHEARD_SESSIONS:
            return super().popitem(last)
        return unheard[0], self.pop(unheard[0])


class Keeper:
    """Of a page's queue and server."""

    def __init__(self, page: Any, connections: Callable[[], set[Any]]) -> None:
        self.page, self.queue, self.connections = page, page._queue, connections
        self.push, self.queue.push = self.queue.push, self.joined
        # Gradio sums up its last 10,000 events by pandas after each one, for a page of statistics that is not served
        self.queue.ANALYTICS_MAX_EVENTS, self.queue.compute_analytics_summary = UNREAD, lambda records: {}
        self.silent: dict[int, tuple[int, float]] = {}  # sockets by id: bytes that are not taken, and since when
        self.gave_back = time.monotonic()
        self.sessions = Sessions(self.heard)

    def heard(self, name: str) -> bool:
        """Whether this visitor has listened for what waits."""
        answers = self.queue.pending_messages_per_session.get(name)
        return isinstance(answers, Answers) and answers.heard

    async def joined(self, body: Any, request: Any, username: Any) -> tuple[bool, Any, str]:
        """Gradio's push, for events that there are, of visitors within their bounds."""
        if body.fn_index not in self.page.fns or not HASH.fullmatch(str(body.session_hash)):
            return False, "There is no such event on this page.", "error"
        await self.drop_left()
        answers = self.queue.pending_messages_per_session.get(body.session_hash)
        waiting = {name: len(ids) for name, ids in self.queue.pending_event_ids_session.items()}
        bound = LISTENED if answers is not None and answers.listening else UNHEARD
        large = size(body) + sum(size(event.data) for event in list(self.queue.event_ids_to_events.values()))
        if waiting.get(body.session_hash, 0) >= bound or sum(waiting.values()) >= UNREAD or large > WAITING_BYTES:
            return False, BUSY, "queue_full"
        if answers is None:
            self.queue.pending_messages_per_session[body.session_hash] = Answers(
                partial(self.sessions.listened.add, body.session_hash)
            )
        found: tuple[bool, Any, str] = await self.push(body=body, request=request, username=username)
        return found

    async def drop_left(self) -> None:
        """Answers that were not fetched in time, and all else that belongs to their visitors."""
        now = time.monotonic()
        kept = self.queue.pending_messages_per_session
        for name in list(kept):
            answers = kept.get(name)
            if isinstance(answers, Answers) and answers.left(now):
                del kept[name]
                if name not in self.sessions.listened:
                    self.sessions.pop(name, None)
                await self.queue.clean_events(session_hash=name)
                self.queue.pending_event_ids_session.pop(name, None)
        for name in list(self.queue.pending_event_ids_session):
            if name not in kept:
                self.queue.pending_event_ids_session.pop(name, None)

    def close_silent(self) -> None:
        """Sockets that have sent no request in time, or taken nothing of its answer, and the newest of too many."""
        now, there, before = time.monotonic(), list(self.connections()), self.silent
        self.silent = {}
        for each in there:
            unsent = each.transport.get_write_buffer_size()
            if getattr(each, "cycle", None) is not None and not unsent:
                continue
            size, since = before.get(id(each), (-1, now))
            self.silent[id(each)] = unsent, since if size == unsent else now
            if now - self.silent[id(each)][1] > SILENCE:
                each.transport.abort() if unsent else each.transport.close()
        for each in there[SOCKETS:]:
            each.transport.close()

    async def go_round(self) -> None:
        while True:
            await asyncio.sleep(ROUND)
            await self.drop_left()
            self.close_silent()
            if time.monotonic() - self.gave_back > PATIENCE / 2:
                self.gave_back = time.monotonic()
                await asyncio.to_thread(give_back)


def size(body: Any) -> int:
    """Of the picture in an event."""
    data = getattr(body, "event_data", None)
    return sum(len(value) for value in data.values() if isinstance(value, str)) if isinstance(data, dict) else 0
