"""Ctrl-C, heard once and for all.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a destructor, a callback of C++ or another's
`except:` it is lost; between two lines of a queue or a lock it leaves a thread waiting for what will not come. So every
Ctrl-C is noted as well, one that is not followed by the end is raised again, and work that goes on for hours beside
threads of others (`held`) meets it between two steps only.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN = 5.0  # seconds until a Ctrl-C that has not ended anything is raised again


class Interrupts:
    """The Ctrl-Cs that have come since `interrupts` was entered."""

    def __init__(self) -> None:
        self.came, self.holding, self.over = 0, 0, False

    def hear(self, number: int, frame: object) -> None:
        """The handler of the signal, which Python calls in the main thread."""
        self.came += 1
        if self.came == 1:
            # not threading.Thread: its start takes locks that the main thread may hold at this moment
            _thread.start_new_thread(self._remind, ())
        if not self.holding or self.came > 1:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raise what has come: to be called where nothing is half done."""
        if self.came:
            raise KeyboardInterrupt

    def met(self) -> None:
        """The first has been answered: what is left to do may take its time, unless another comes."""
        self.over = True

    def _remind(self) -> None:
        while True:
            time.sleep(AGAIN)
            if self.over:
                return
            if hasattr(signal, "pthread_kill"):  # wakes the main thread, too
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            else:
                _thread.interrupt_main()


_now: list[Interrupts] = []  # those in the main thread, the innermost last


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Hear every Ctrl-C while the block runs, and hear it again until the block has ended.

    Nested, it is the outer one that hears. In other threads than the main one, and where somebody else has a handler or
    ignores the signal, everything stays as it is and nothing is heard. The handler before is put back.

    Examples:
        >>> with interrupts() as heard:
        ...     heard.came
        0
    """
    if threading.current_thread() is not threading.main_thread():
        yield Interrupts()
        return
    before = signal.getsignal(signal.SIGINT)
    if _now and before == _now[-1].hear:
        yield _now[-1]
        return
    heard = Interrupts()
    if before is not signal.default_int_handler:
        yield heard
        return
    _now.append(heard)
    try:
        signal.signal(signal.SIGINT, heard.hear)
        yield heard
    finally:
        heard.over = True
        _now.remove(heard)
        signal.signal(signal.SIGINT, before)


@contextmanager
def held() -> Iterator[Interrupts]:
    """A block that meets a Ctrl-C where it calls `check`, or at its end; only a second one is raised where it comes.

    If no `check` follows within a few seconds, as in a long compilation, the second one comes by itself.
    """
    with interrupts() as heard:
        handler = signal.getsignal(signal.SIGINT)
        heard.holding += 1
        try:
            heard.check()  # one that came before, and was lost
            yield heard
        finally:
            heard.holding -= 1
            if heard in _now:
                signal.signal(signal.SIGINT, handler)  # Lightning ignores the signal after the first
        heard.check()
