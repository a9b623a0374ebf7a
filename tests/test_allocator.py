"""What a process keeps of memory that nobody uses any more."""

import os
import subprocess
import sys
import time

import pytest

from codanet._support import allocator
from codanet.app import keeper, start
from colours import colour_model

# threads that take turns at pictures of all sizes, each of which leaves something small behind; MiB beyond that
VISITS = """
import random, runpy, sys, threading
allocator = runpy.run_path(sys.argv[1])
allocator["bound_freed"]()
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
allocator["give_back"]()
print(grown, resident() - before, sum(map(len, kept)) / 2**20)
"""


@pytest.mark.skipif(allocator._libc() is None, reason="bounds glibc's allocator")
def test_threads_do_not_keep_what_they_freed():
    done = subprocess.run(
        [sys.executable, "-c", VISITS, allocator.__file__], capture_output=True, text=True, check=True
    )
    grown, left, used = map(float, done.stdout.split())
    assert grown < used + 40  # hundreds with an arena for each thread
    assert left < used + 10


def test_the_server_bounds_the_allocator_and_gives_back(monkeypatch):
    called = []
    monkeypatch.setattr(allocator, "bound_freed", lambda: called.append("bounded"))
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


# pages that a process had to be given for the same 48 MB again and again; those of the first time are not counted
TURNS = """
import resource, runpy, sys, ctypes
allocator = runpy.run_path(sys.argv[1])
if sys.argv[2] == "keep":
    allocator["keep_freed"]()
libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def turn():
    block = libc.malloc(48 << 20)
    ctypes.memset(block, 1, 48 << 20)
    libc.free(block)

turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    turn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(allocator._libc() is None, reason="steers glibc's allocator")
def test_what_is_kept_is_not_asked_for_again():
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}

    def faults(how: str, environment: dict[str, str]) -> int:
        command = [sys.executable, "-c", TURNS, allocator.__file__, how]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)

    assert faults("as it is", plain) > 5
    assert faults("keep", plain) <= 5
    assert faults("as it is", plain | allocator.KEEPING) <= 5
