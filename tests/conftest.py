"""Every test starts from the same seed, in two threads, or as many as OMP_NUM_THREADS says; and the browser."""

import os
import signal

import pytest
import torch

from chromium import FLAGS, MISSING, chromium

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or no child would hear the Ctrl-C that it is tested with

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def one_thread():
    """Two wait for each other on small work; asked for by `pytestmark`."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def browser():
    """Chromium, headless, driven by Playwright."""
    path = chromium()
    if path is None:
        pytest.fail(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        yield started
        started.close()
