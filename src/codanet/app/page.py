"""The layout of the page and what its events do. Gradio is imported here and nowhere else."""

import copy
import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import gradio as gr
import torch
from gradio.context import LocalContext
from gradio.state_holder import SessionState, StateHolder

from .._support.html import text
from .._support.threads import torch_threads
from .._support.web import HEAD, script, styles
from ..attribution import METHODS
from . import answers, views
from . import session as steps
from .session import MOST_BYTES, Gallery, Session
from .visitors import Visitors, remembering

HERE = Path(__file__).parent
CSS = styles() + (HERE / "gradio.css").read_text(encoding="utf-8")
FADE = 0.5  # where the slider begins: the map over the picture
USUAL = ("contributions", "ixg", "intgrad", "gradcam")
HOUR = 3600
QUEUES = {"read": 2, "mix": 1, "compare": 1}  # requests answered at once
NOTHING = ("no other class", -1)
SLIDE = "(s) => document.documentElement.style.setProperty('--fade', s)"
AS_SEEN = "(seen) => document.documentElement.style.setProperty('--seen', Number(seen))"

logger = logging.getLogger(__name__)


class Page(gr.Blocks):
    """Blocks that take words and numbers from a browser, never the path or address of a file."""

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], state: Any, explicit_call: bool = False) -> Any:
        for value in inputs:
            for each in value if isinstance(value, list) else [value]:
                if not isinstance(each, str | int | float | None):
                    raise gr.Error("That is not something this page takes.", print_exception=False)
        try:
            return await super().preprocess_data(block_fn, inputs, state, explicit_call)
        except gr.Error as error:  # a choice that is not offered: no fault of ours, and nothing for the log
            error.print_exception = False
            raise


class Sessions(StateHolder):
    """Those of visitors who have listened; one that has not is given a session for the moment, and none is forgotten.

    Gradio makes a session of every event that comes in, before it is known whether anybody waits for the answer.
    """

    def __init__(self, heard: Callable[[str], bool]) -> None:
        super().__init__()
        self.heard = heard

    def __getitem__(self, name: str) -> SessionState:
        return super().__getitem__(name) if self.heard(name) else SessionState(self.blocks)

    def delete_state(self, session_id: str, expired_only: bool = False) -> None:
        """With what the page last showed of it: Gradio keeps that for longer, a visitor's picture among it."""
        kept = self.session_data.get(session_id)
        known = kept is not None and bool(kept.state_data)
        super().delete_state(session_id, expired_only)
        if kept is not None and known and not kept.state_data:
            self.session_data.pop(session_id, None)
            self.time_last_used.pop(session_id, None)


def kindly(function: Callable[..., Any]) -> Callable[..., Any]:
    """What went wrong, in words, to the visitor; the whole story of a fault of ours to the log."""

    def said(error: Exception) -> gr.Error:
        if isinstance(error, ValueError):
            words = str(error)[:1].upper() + str(error)[1:]
            return gr.Error(text(words), duration=12, print_exception=False)
        logger.error("a request failed", exc_info=error)
        return gr.Error("The server met a fault of its own. Try another picture.", print_exception=False)

    @functools.wraps(function)
    def answer(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            raise said(error) from None

    @functools.wraps(function)
    def stream(*arguments: Any) -> Iterator[Any]:
        try:
            yield from function(*arguments)
        except Exception as error:
            raise said(error) from None

    return stream if inspect.isgeneratorfunction(function) else answer


def beside_others(function: Callable[..., Any]) -> Callable[..., Any]:
    """With its share of PyTorch's threads: those of several requests would wait for each other all the time."""
    share = max(1, torch.get_num_threads() // sum(QUEUES.values()))

    @functools.wraps(function)
    def answer(*arguments: Any) -> Any:
        with torch_threads(share):
            return function(*arguments)

    @functools.wraps(function)
    def stream(*arguments: Any) -> Iterator[Any]:
        outcomes = function(*arguments)
        while True:  # each step may have a thread of its own
            with torch_threads(share):
                outcome = next(outcomes, None)
            if outcome is None:
                return
            yield outcome

    return stream if inspect.isgeneratorfunction(function) else answer


def asking() -> str | None:
    """The visitor whose request is being answered."""
    return getattr(LocalContext.request.get(None), "session_hash", None)


def given(event: gr.EventData, name: str) -> Any:
    """A browser may send anything as the data of an event."""
    return event._data.get(name) if isinstance(event._data, dict) else None


def html(value: Any, name: str, **options: Any) -> gr.HTML:
    return gr.HTML(value, apply_default_css=False, elem_id=name, **options)


def choices(session: Session) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Of the class explained, and of the one it is set against."""
    names = [] if session.reading is None else [(name, c) for c, name in enumerate(session.reading.class_names)]
    return names, [NOTHING, *(pair for pair in names if pair[1] != session.target)]


def face(session: Session) -> tuple[str, str, str]:
    """Viewer, bars and region."""
    if session.reading is None:
        return '<p class="hint">Give a picture of your own to begin.</p>', "", ""
    reading, target, versus = session.reading, session.target, session.versus
    return (
        views.viewer(reading, session.photo, target, versus, session.box, session.cells),
        views.bars(reading, target, versus, session.cells),
        views.region(reading, target, versus, session.box),
    )


class Desk:
    """The components of the page, named."""

    def __init__(self, gallery: Gallery, first: Session) -> None:
        names = list(gallery.models)
        tiles, mixing = answers.tile_views(gallery, first)
        picture, classes, parts = face(first)
        every, others = choices(first)
        self.session = gr.State(first, time_to_live=HOUR)
        with gr.Row(elem_classes="top"):
            html(HEAD, "head", min_width=300)
            self.model = gr.Dropdown(
                names, value=names[0], label="Model", visible=len(names) > 1, elem_id="model", scale=0, min_width=220
            )
        with gr.Row(elem_classes="desk", equal_height=False):
            with gr.Column(scale=6, min_width=320):
                self.picker = html(tiles, "picker", js_on_load=script("picker"), most_bytes=MOST_BYTES)
                self.viewer = html(picture, "viewer", js_on_load=script("viewer"))
                self.fade = gr.Slider(0, 1, FADE, step=0.01, label="Picture ↔ contributions", elem_id="fade")
                self.seen = gr.Checkbox(False, label="Show the picture as the model sees it", elem_id="seen")
            with gr.Column(scale=5, min_width=320):
                self.bars = html(classes, "bars", js_on_load=script("chooser"))
                with gr.Row(elem_classes="sentence"):
                    self.why = gr.Dropdown(every, value=first.target, label="Why", elem_id="why", min_width=130)
                    self.versus = gr.Dropdown(others, value=-1, label="rather than", elem_id="versus", min_width=130)
                self.region = html(parts, "region")
        with gr.Tabs(elem_classes="more"):
            self._methods()
            self._multi_image(mixing)
            self._files()
            with gr.Tab("This model"):
                self.about = html(answers.about(gallery, first), "about")
        self.saver = html(None, "saver", html_template=" ", js_on_load=script("saver"))

    def _methods(self) -> None:
        with gr.Tab("Other methods"):
            self.methods = gr.CheckboxGroup(
                [(method.title, name) for name, method in METHODS.items()],
                value=[name for name in USUAL if name in METHODS],
                label="Explain the same class by",
                elem_id="methods",
            )
            self.compare = gr.Button("Compare", variant="primary", elem_id="compare")
            self.comparison = html("", "comparison")

    def _multi_image(self, mixing: str) -> None:
        with gr.Tab("Multi-image"):
            html("<p class='hint'>Choose pictures in the order you want them; missing ones are filled in.</p>", "how")
            self.mixer = html(mixing, "mixer", js_on_load=script("chooser"))
            with gr.Row(elem_classes="buttons"):
                self.two = gr.Button("Make 2 × 2", variant="primary", elem_id="two")
                self.three = gr.Button("Make 3 × 3", elem_id="three")
            self.cells = html("", "cells")

    def _files(self) -> None:
        with gr.Tab("Take it with you"):
            html("<p class='hint'>The class shown above, with the box if there is one.</p>", "what")
            with gr.Row(elem_classes="buttons"):
                self.save_picture = gr.Button("Picture (PNG)", variant="primary", elem_id="save-picture")
                self.save_numbers = gr.Button("All numbers (JSON)", elem_id="save-numbers")
                self.save_table = gr.Button("Table of classes (CSV)", elem_id="save-table")


def queued(
    event: Any,
    function: Any,
    inputs: list[Any],
    outputs: list[Any],
    wait: Any = None,
    mode: str = "always_last",
    queue: str = "read",
) -> None:
    """An event with its place in a queue; none of them is an API.

    `wait` is where waiting is shown; `mode` says what becomes of events that come while one is answered.
    """
    event(
        kindly(beside_others(function)),
        inputs,
        outputs,
        api_visibility="private",
        concurrency_id=queue,
        concurrency_limit=QUEUES[queue],
        trigger_mode=mode,
        show_progress="minimal" if wait else "hidden",
        show_progress_on=wait,
    )


def build(gallery: Gallery) -> Page:
    """The page, ready to be launched."""
    names = list(gallery.models)
    first = steps.open_model(gallery, Session(names[0]), names[0])
    with Page(title="codanet", analytics_enabled=False, delete_cache=(600, HOUR)) as page:
        desk = Desk(gallery, first)
        _wire(desk, gallery)
    page.queue(default_concurrency_limit=1)  # the keeper has bounds of its own
    return page


def _apart(gallery: Gallery) -> Gallery:
    """With models of its own: the hooks of some methods must not see another visitor's forward pass."""
    return Gallery({name: copy.deepcopy(model) for name, model in gallery.models.items()}, gallery.pictures)


def _wire(desk: Desk, gallery: Gallery) -> None:
    """What the events do; each is given the session first.

    Multi-images and comparisons take several times as long as the rest, which does not wait for them.
    """
    comparing = _apart(gallery)
    session, visitors = desk.session, Visitors()
    shown = [session, desk.viewer, desk.bars, desk.region, desk.why, desk.versus, desk.comparison]
    whole = [*shown, desk.picker, desk.mixer, desk.cells, desk.about]

    def faced(new: Session) -> tuple[Any, ...]:
        every, others = choices(new)
        why = gr.update(choices=every, value=new.target)
        versus = gr.update(choices=others, value=-1 if new.versus is None else new.versus)
        return new, *face(new), why, versus, ""

    def opened(new: Session, cells: str = "") -> tuple[Any, ...]:
        return *faced(new), *answers.tile_views(gallery, new), cells, answers.about(gallery, new)

    def on_model(old: Session, name: str) -> Any:
        return opened(steps.open_model(gallery, old, name))

    def on_tile(old: Session, event: gr.EventData) -> Any:
        return opened(steps.open_picture(gallery, old, given(event, "key")))

    def on_upload(old: Session, event: gr.EventData) -> Any:
        if given(event, "problem"):
            raise ValueError(steps.problem(given(event, "problem")))
        return opened(steps.take_upload(gallery, old, given(event, "content"), given(event, "title")))

    def on_class(old: Session, event: gr.EventData) -> Any:
        return faced(steps.choose_class(old, given(event, "number")))

    def on_why(old: Session, target: int) -> Any:
        return faced(steps.choose_class(old, target))

    def on_versus(old: Session, other: int) -> Any:
        return faced(steps.choose_versus(old, other))

    def on_box(old: Session, event: gr.EventData) -> Any:
        new = steps.choose_box(old, given(event, "box"))
        picture, _, parts = face(new)
        return new, picture, parts

    def on_mix(old: Session, event: gr.EventData) -> Any:
        new = steps.toggle_mixed(gallery, old, given(event, "key"))
        return new, answers.tile_views(gallery, new)[1]

    def on_two(old: Session) -> Any:
        new = steps.mix(gallery, old, 2)
        return opened(new, answers.found_classes(gallery, new))

    def on_three(old: Session) -> Any:
        new = steps.mix(gallery, old, 3)
        return opened(new, answers.found_classes(gallery, new))

    def on_compare(old: Session, methods: list[str]) -> Iterator[str]:
        yield from answers.compared(comparing, old, methods)

    def on_numbers(old: Session) -> Any:
        return answers.numbers_file(gallery, old)

    def listen(event: Any, function: Any, *rest: Any, **options: Any) -> None:
        anew = function in (on_tile, on_upload)
        queued(event, remembering(function, visitors, asking, anew), *rest, **options)

    listen(desk.model.input, on_model, [session, desk.model], whole, desk.viewer)
    listen(desk.picker.select, on_tile, [session], whole, desk.viewer)
    listen(desk.picker.upload, on_upload, [session], whole, desk.viewer, "multiple")
    listen(desk.bars.select, on_class, [session], shown, desk.bars)
    listen(desk.why.input, on_why, [session, desk.why], shown, desk.viewer)
    listen(desk.versus.input, on_versus, [session, desk.versus], shown, desk.viewer)
    listen(desk.viewer.select, on_box, [session], [session, desk.viewer, desk.region], desk.region)
    listen(desk.mixer.select, on_mix, [session], [session, desk.mixer], mode="multiple")
    listen(desk.two.click, on_two, [session], whole, desk.cells, queue="mix")
    listen(desk.three.click, on_three, [session], whole, desk.cells, queue="mix")
    listen(desk.compare.click, on_compare, [session, desk.methods], [desk.comparison], mode="once", queue="compare")
    listen(desk.save_picture.click, answers.picture_file, [session, desk.fade], [desk.saver], mode="multiple")
    listen(desk.save_numbers.click, on_numbers, [session], [desk.saver], mode="multiple")
    listen(desk.save_table.click, answers.table_file, [session], [desk.saver], mode="multiple")
    desk.fade.input(None, [desk.fade], None, js=SLIDE, api_visibility="private")
    desk.seen.input(None, [desk.seen], None, js=AS_SEEN, api_visibility="private")
