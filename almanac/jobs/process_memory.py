"""Memory that was needed for a while and goes back to the system: the C library would keep it for the next time.

A worker needs much for a moment, in one thread or another: a large document, the files of an index. Where the C library
is not glibc, nothing is done.
"""

import ctypes

_ARENAS, _FROM_SYSTEM = -8, -3  # as malloc.h numbers them: M_ARENA_MAX, M_MMAP_THRESHOLD
_MOST_ARENAS = 2  # not one for every thread, each with room to spare
_LARGE = 256 * 1024  # bytes from which memory is borrowed from the system piece by piece


def limit_malloc_arenas() -> None:
    """Hold less in reserve, from now on. For a process that works in the background."""
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_ARENAS, _MOST_ARENAS)
        mallopt(_FROM_SYSTEM, _LARGE)


def trim_heap() -> None:
    """Let the system have what is free."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
