"""What the allocator keeps of memory that is no longer used, bounded; on Linux with glibc, elsewhere nothing is done.

By default glibc has an arena for nearly every thread and learns to keep blocks of up to 32 MiB for later. A server
whose threads take turns at pictures of all sizes then holds several times what it uses.
"""

from __future__ import annotations

import ctypes
import sys

ARENA_MAX, MMAP_THRESHOLD, TRIM_THRESHOLD = -8, -3, -1  # parameters of mallopt
ARENAS, LARGE = 2, 2**20


def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except OSError:
        return None


def bound_allocator() -> None:
    """Few arenas, and blocks of a MiB and more returned as soon as they are freed."""
    library = _libc()
    if library is not None:
        for setting, value in ((ARENA_MAX, ARENAS), (MMAP_THRESHOLD, LARGE), (TRIM_THRESHOLD, 2 * LARGE)):
            library.mallopt(setting, value)


def give_back() -> None:
    """Return what is free to the system."""
    library = _libc()
    if library is not None:
        library.malloc_trim(0)
