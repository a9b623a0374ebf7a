"""Where the browser is that the tests of the web page drive: $CHROMIUM, or a Chromium or Chrome on the path."""

from __future__ import annotations

import os
import shutil
import sys
import time

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


def chromium() -> str | None:
    given = os.environ.get("CHROMIUM")
    names = (given,) if given else NAMES
    return next((found for name in names if (found := shutil.which(name))), None)


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
