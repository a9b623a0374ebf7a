"""What the web page's process keeps of memory that nobody uses any more."""

import subprocess
import sys
import time

import pytest

from codanet.app import keeper, memory, start
from colours import colour_model

# threads that take turns at pictures of all sizes, each of which leaves something small behind; MiB beyond that
VISITS = """
import random, runpy, sys, threading
memory = runpy.run_path(sys.argv[1])
memory["bound_allocator"]()
kept = []

def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) / 1024

def visit(name):
    draw = random.Random(name)
    for _ in range(6):
        pictures = [b"x" * draw.randrange(2**16, 2**23) for _ in range(12)]
        kept.append(b"y" * 100_000)
        del pictures

before = resident()
for turn in range(2):
    threads = [threading.Thread(target=visit, args=(f"{turn}-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
grown = resident() - before
memory["give_back"]()
print(grown, resident() - before, sum(map(len, kept)) / 2**20)
"""


@pytest.mark.skipif(memory._libc() is None, reason="bounds glibc's allocator")
def test_threads_do_not_keep_what_they_freed():
    done = subprocess.run([sys.executable, "-c", VISITS, memory.__file__], capture_output=True, text=True, check=True)
    grown, left, used = map(float, done.stdout.split())
    assert grown < used + 40  # hundreds with an arena for each thread
    assert left < used + 10


def test_the_server_bounds_the_allocator_and_gives_back(monkeypatch):
    called = []
    monkeypatch.setattr(memory, "bound_allocator", lambda: called.append("bounded"))
    monkeypatch.setattr(keeper, "give_back", lambda: called.append("given back"))
    monkeypatch.setattr(keeper, "ROUND", 0.05)
    monkeypatch.setattr(keeper, "PATIENCE", 0.1)
    page = start({"colours": colour_model()})
    try:
        deadline = time.monotonic() + 30
        while len(called) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        page.close(verbose=False)
    assert called[:2] == ["bounded", "given back"]
