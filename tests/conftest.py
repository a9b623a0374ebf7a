"""Every test starts from the same seed, in two threads, or as many as OMP_NUM_THREADS says."""

import os
import signal

import pytest
import torch

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
