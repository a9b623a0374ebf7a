"""Ctrl-C: noted, raised between two steps, raised again if something swallowed it; and the handler before put back."""

import os
import signal
import threading
import time

import pytest

from codanet._support import interrupts as module
from codanet._support.interrupts import held, interrupts


def press():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)  # Python calls the handler between two lines


@pytest.fixture(autouse=True)
def handler():
    """The one that Python starts with; nothing of ours is left after a test."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    after = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    assert after is signal.default_int_handler
    assert not module._now


def swallowed():
    with pytest.raises(KeyboardInterrupt):
        press()


def test_one_is_raised_where_it_comes_and_noted():
    with pytest.raises(KeyboardInterrupt), interrupts() as heard:
        press()
    assert heard.came == 1


def test_one_that_was_swallowed_is_raised_again(monkeypatch):
    monkeypatch.setattr(module, "AGAIN", 0.1)
    with pytest.raises(KeyboardInterrupt), interrupts():  # noqa: PT012 (the second line is where it comes)
        swallowed()
        time.sleep(10)
    with interrupts() as heard:
        swallowed()
    time.sleep(0.3)  # nothing comes after the end
    assert heard.came == 1


def test_one_that_was_answered_is_not_raised_again(monkeypatch):
    monkeypatch.setattr(module, "AGAIN", 0.05)
    with interrupts() as heard:
        swallowed()
        heard.met()
        time.sleep(0.2)
        assert heard.came == 1
        swallowed()


def test_held_until_the_next_check():
    with interrupts() as outer:
        with pytest.raises(KeyboardInterrupt), held() as heard:  # noqa: PT012
            assert heard is outer
            heard.check()
            press()
            checked = True
            heard.check()
        assert checked
        swallowed()  # out of it, where it comes


def test_held_until_the_end_at_most():
    done = []
    with pytest.raises(KeyboardInterrupt), held():  # noqa: PT012
        press()
        done.append("the work")
    assert done == ["the work"]


def test_held_does_not_begin_what_was_stopped():
    with interrupts():
        swallowed()
        with pytest.raises(KeyboardInterrupt), held():
            pytest.fail("it began")


def test_the_second_is_not_held(monkeypatch):
    with pytest.raises(KeyboardInterrupt), held():  # noqa: PT012
        press()
        press()
        pytest.fail("it went on")
    monkeypatch.setattr(module, "AGAIN", 0.1)
    with pytest.raises(KeyboardInterrupt), held():  # noqa: PT012
        press()
        time.sleep(10)
        pytest.fail("no second one came by itself")


def test_handlers_are_put_back_after_an_error_and_after_lightning():
    with interrupts() as outer:
        with pytest.raises(ZeroDivisionError), held(), held():  # noqa: PT012
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # as Lightning does when it was interrupted
            raise ZeroDivisionError
        assert signal.getsignal(signal.SIGINT) == outer.hear
        assert not outer.holding


def test_handlers_of_others_and_other_threads_are_left_alone():
    came = []
    signal.signal(signal.SIGINT, lambda *_: came.append(1))
    with interrupts() as heard, held():
        press()
    assert came == [1]
    assert heard.came == 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    found = []

    def work():
        with interrupts() as heard, held():
            found.append((heard.came, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(0, signal.default_int_handler)]
