"""Returns freed memory to the system, which the C library would keep for later use.

A worker needs much memory for a short time in any of its threads, for a large document or the files of an index. With a
C library other than glibc, nothing is done.
"""

import ctypes

_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3  # from malloc.h
MAX_ARENAS = 2  # by default each thread has an arena, with free memory of its own
MIN_MAPPED_BYTES = 256 * 1024  # larger blocks are allocated from the system, and returned to it when freed


def limit_malloc_arenas() -> None:
    """Keep less free memory, from now on. For a process that works in the background."""
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_ARENA_MAX, MAX_ARENAS)
        mallopt(_M_MMAP_THRESHOLD, MIN_MAPPED_BYTES)


def trim_heap() -> None:
    """Return free memory to the system."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
