"""The browser that the tests of the web page drive, $CHROMIUM, or a Chromium or Chrome on the path; and its visits."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MISSING = (
    "No Chromium was found, which the tests of the web page drive. Install one (on Debian and Ubuntu: apt-get install "
    "chromium), or say where it is, as in CHROMIUM=/opt/chrome/chrome make test."
)
PATIENCE = 60_000  # milliseconds; what is waited for usually takes some hundred


def chromium() -> str | None:
    given = os.environ.get("CHROMIUM")
    names = (given,) if given else NAMES
    return next((found for name in names if (found := shutil.which(name))), None)


@contextmanager
def visits(browser, address: str, ready: str, own: tuple[str, ...], prepare: Callable | None = None) -> Iterator:
    """Fresh visitors of a page, each once `ready` is there: `visit(**options)`, with those of a browser's context.

    In the end none may have asked anything of an address that does not begin with one of `own`, nor met an
    error; `prepare(page, errors)` may add to these.
    """
    contexts, outside, errors = [], [], []

    def visit(**options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda request: None if request.url.startswith(own) else outside.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        if prepare:
            prepare(page, errors)
        page.goto(address)
        page.wait_for_selector(ready)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert outside == []
    assert errors == []


def until(page, expression: str, seconds: float = 60) -> None:
    """Wait for what a page's policy does not let it evaluate by itself, as `wait_for_function` would."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never came true: {expression}"
        page.wait_for_timeout(50)


if __name__ == "__main__":
    found = chromium()
    print(found or MISSING, file=sys.stdout if found else sys.stderr)
    sys.exit(0 if found else 1)
