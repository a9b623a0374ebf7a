"""Steps of one session, asked for at the same time."""

import gc
import threading

import pytest

from codanet.app.session import Session
from codanet.app.visitors import Visitors, remembering

ASKING = threading.local()


def asked_by(whose, step, old):
    ASKING.name = whose
    return step(old)


def step_of(visitors, function, anew=True):
    return remembering(function, visitors, lambda: ASKING.name, anew)


def counted(old, *, wait=None, begun=None):
    if begun:
        begun.set()
    if wait:
        wait.wait(10)
    return Session(old.model, number=old.number + 1), "shown"


def test_a_step_that_began_before_another_ended_loses_nothing():
    visitors, go_on, running, kept = Visitors(), threading.Event(), threading.Event(), []
    first = step_of(visitors, lambda old: counted(old, wait=go_on, begun=running))
    second = step_of(visitors, counted)
    read = Session("colours")  # by Gradio, before either step
    threads = [threading.Thread(target=lambda: kept.append(asked_by("me", first, read)))]
    threads[0].start()
    assert running.wait(10)
    threads.append(threading.Thread(target=lambda: kept.append(asked_by("me", second, read))))
    threads[1].start()
    other = asked_by("another", second, read)  # does not wait for them
    assert other[0].number == 1
    assert not kept
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert [each[0].number for each in kept] == [1, 2]
    assert all(each[0].begun for each in kept)


def test_a_session_that_gradio_has_dropped_is_gone():
    visitors = Visitors()
    step, later = step_of(visitors, counted), step_of(visitors, counted, anew=False)
    shown = asked_by("me", step, Session("colours"))
    shown = asked_by("me", later, shown[0])
    assert shown[0].number == 2
    del shown
    gc.collect()
    with pytest.raises(ValueError, match="no longer kept here"):
        asked_by("me", later, Session("colours"))
    assert asked_by("me", step, Session("colours"))[0].number == 1
