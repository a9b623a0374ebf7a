"""What the server keeps for visitors, bounded: events that wait, answers that nobody fetches, sockets that say nothing.

Gradio keeps every answer until its visitor listens, and every event with the picture in it until its turn. The keeper
stands before its queue, and goes round once in a while. Who has never listened is not answered: their events wait,
take no time of the model, and no picture of those who do listen is forgotten for them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

from .._support.allocator import give_back

LISTENED, UNHEARD = 12, 3  # events of a visitor who listens, and of one who does not yet
NEW = 40  # events of visitors who have not listened yet, all together
UNREAD = 64  # answers not fetched, for all visitors together
WAITING_BYTES = 96 * 2**20  # for pictures on their way
PATIENCE = 60.0  # seconds that an answer waits to be fetched
GRACE = 2.0  # seconds in which a new visitor begins to listen; then others may have the place
SILENCE = 30.0  # seconds that a socket may be open without a request, or without taking what it asked for
SOCKETS = 512
ROUND = 5.0  # seconds
HASH = re.compile(r"[\w-]{1,64}")
BUSY = "The page is busy: try again in a moment."


class Answers(asyncio.Queue[Any]):
    """The messages to a visitor, and when one was last asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.listening, self.heard = time.monotonic(), 0, False

    async def get(self) -> Any:
        self.asked, self.listening, self.heard = time.monotonic(), self.listening + 1, True
        try:
            return await super().get()
        finally:
            self.listening -= 1

    def left(self, now: float, patience: float) -> bool:
        """Nobody listens, or whoever does reads nothing."""
        return not self.listening and now - self.asked > patience


class Keeper:
    """Of a page's queue and server."""

    def __init__(self, page: Any, connections: Callable[[], set[Any]]) -> None:
        self.page, self.queue, self.connections = page, page._queue, connections
        self.push, self.queue.push = self.queue.push, self.joined
        # Gradio sums up its last 10,000 events by pandas after each one, for a page of statistics that is not served
        self.queue.ANALYTICS_MAX_EVENTS, self.queue.compute_analytics_summary = UNREAD, lambda records: {}
        self.events, self.queue.get_events = self.queue.get_events, self.next_events
        self.silent: dict[int, tuple[int, float]] = {}  # sockets by id: bytes that are not taken, and since when
        self.met: dict[Any, None] = {}  # sockets as they came
        self.gave_back = time.monotonic()

    def heard(self, name: str) -> bool:
        """Whether this visitor has ever listened: for what waits, or for what made a session of it."""
        answers = self.queue.pending_messages_per_session.get(name)
        return name in self.page.state_holder or (isinstance(answers, Answers) and answers.heard)

    def next_events(self) -> Any:
        """Gradio's choice of what is next, without the events of those who have never listened."""
        queues = list(self.queue.event_queue_per_concurrency_id.values())
        apart = [[event for event in each.queue if not self.heard(event.session_hash)] for each in queues]
        for each, events in zip(queues, apart, strict=True):
            each.queue = [event for event in each.queue if event not in events]
        try:
            return self.events()
        finally:
            for each, events in zip(queues, apart, strict=True):
                each.queue += events

    async def joined(self, body: Any, request: Any, username: Any) -> tuple[bool, Any, str]:
        """Gradio's push, for events that there are, of visitors within their bounds."""
        name = body.session_hash
        if body.fn_index not in self.page.fns or not HASH.fullmatch(str(name)):
            return False, "There is no such event on this page.", "error"
        await self.drop_left()
        while (self.heavy(body) or (self.crowded(name) and not self.heard(name))) and await self.make_room():
            pass
        answers = self.queue.pending_messages_per_session.get(name)
        bound = LISTENED if answers is not None and answers.listening else UNHEARD
        own = len(self.queue.pending_event_ids_session.get(name, ()))
        if own >= bound or self.crowded(name) or self.heavy(body):
            return False, BUSY, "queue_full"
        if answers is None:
            self.queue.pending_messages_per_session[name] = Answers()
        found: tuple[bool, Any, str] = await self.push(body=body, request=request, username=username)
        return found

    def heavy(self, body: Any) -> bool:
        """Whether this event's picture would be more than may wait."""
        waiting = sum(size(each.data) for each in list(self.queue.event_ids_to_events.values()))
        return size(body) + waiting > WAITING_BYTES

    def crowded(self, name: str) -> bool:
        """Whether there is no place for another event of those like this visitor."""
        heard = self.heard(name)
        return self.waiting(heard=heard) >= (UNREAD if heard else NEW)

    def waiting(self, *, heard: bool) -> int:
        """Events not answered, or answers not fetched, of those who have listened or of those who have not."""
        events = self.queue.pending_event_ids_session
        return sum(len(ids) for name, ids in list(events.items()) if self.heard(name) == heard)

    async def make_room(self) -> bool:
        """The place of the one that has been silent for longest, if it has had time to; whether there was one."""
        now, kept = time.monotonic(), self.queue.pending_messages_per_session
        silent = {name: each for name, each in list(kept.items()) if isinstance(each, Answers) and not each.heard}
        name = min(silent, key=lambda name: silent[name].asked, default=None)
        if name is None or not silent[name].left(now, GRACE):
            return False
        await self.drop(name)
        return True

    async def drop(self, name: str) -> None:
        """A visitor's answers, and events that wait."""
        self.queue.pending_messages_per_session.pop(name, None)
        await self.queue.clean_events(session_hash=name)
        self.queue.pending_event_ids_session.pop(name, None)

    async def drop_left(self) -> None:
        """Answers that were not fetched in time, and all else that belongs to their visitors."""
        now = time.monotonic()
        kept = self.queue.pending_messages_per_session
        for name in list(kept):
            answers = kept.get(name)
            if isinstance(answers, Answers) and answers.left(now, PATIENCE):
                await self.drop(name)
        for name in list(self.queue.pending_event_ids_session):
            if name not in kept:
                self.queue.pending_event_ids_session.pop(name, None)

    def close_silent(self) -> None:
        """Sockets that have sent no request in time, or taken nothing of its answer, and the newest of too many."""
        now, there, before = time.monotonic(), self.connections(), self.silent
        self.silent = {}
        self.met = dict.fromkeys([*(each for each in self.met if each in there), *there])
        for each in self.met:
            unsent = each.transport.get_write_buffer_size()
            if getattr(each, "cycle", None) is not None and not unsent:
                continue
            size, since = before.get(id(each), (-1, now))
            self.silent[id(each)] = unsent, since if size == unsent else now
            if now - self.silent[id(each)][1] > SILENCE:
                each.transport.abort() if unsent else each.transport.close()
        for each in list(self.met)[SOCKETS:]:
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
