"""System calls that Python has no function for."""

import ctypes
import os
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)


def system_call(number: int, *arguments: Any) -> int:
    """Make a call by its number; raises OSError."""
    return check(libc.syscall(ctypes.c_long(number), *arguments))


def check(result: int) -> int:
    """Raise OSError for the result of a call that failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
