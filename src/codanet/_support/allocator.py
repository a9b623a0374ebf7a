"""What the allocator does with memory that is freed; on Linux with glibc, elsewhere nothing is done.

By default glibc returns a block of more than 32 MiB to the system when it is freed, and a free end of its heap that is
twice as large; asked for again, every page of it is cleared anew. It also has an arena for nearly every thread.
Neither suits a process that makes the same large tensors over and over, nor one that serves visitors for days.
"""

from __future__ import annotations

import ctypes
import sys

ARENA_MAX, MMAP_MAX, MMAP_THRESHOLD, TRIM_THRESHOLD = -8, -4, -3, -1  # parameters of mallopt
ARENAS, LARGE, EVER = 2, 2**17, 2**31 - 1
KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(EVER)}  # `keep_freed` for a process to be started


def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except OSError:
        return None


def keep_freed() -> None:
    """Keep what is freed for the next tensor: for programs that train, measure or explain many batches.

    An S-CoDA takes 22 and 23 ms a picture forward instead of 42 and 46: eager, 16 pictures of 32x32, two threads of
    an AMD EPYC, medians of 11 timings in two processes each. Smaller tensors, and compiled code, gain little.
    """
    _set({MMAP_MAX: 0, TRIM_THRESHOLD: EVER})


def bound_freed() -> None:
    """Few arenas, and blocks of an eighth of a MiB and more returned as soon as they are freed: for servers.

    A server whose threads take turns at pictures of all sizes otherwise holds several times what it uses. The limit
    lies below the pictures that it sends: from 1,000 requests of the campaign to 10,000 the web page grew from 557 to
    604 MiB, and with a limit of a whole MiB from 560 to 648.
    """
    _set({ARENA_MAX: ARENAS, MMAP_THRESHOLD: LARGE, TRIM_THRESHOLD: 2 * LARGE})


def give_back() -> None:
    """Return what is free to the system."""
    library = _libc()
    if library is not None:
        library.malloc_trim(0)


def _set(parameters: dict[int, int]) -> None:
    library = _libc()
    if library is not None:
        for name, value in parameters.items():
            library.mallopt(name, value)
