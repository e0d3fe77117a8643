"""Waiting in tests: for a condition, with a deadline. `tests/test_rules.py` refuses sleeps elsewhere.

A test waits for an event where the code offers one. These functions are for states that only another process, thread or
event loop changes: rows of a database, processes, a server that starts. An error shows the last value.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.02


def wait_until(look: Callable[[], T], enough: Callable[[T], object] = bool, *, seconds: float = 10) -> T:
    """The first value that is enough: by default, one that is true."""
    deadline = time.monotonic() + seconds
    while not enough(seen := look()):
        assert time.monotonic() < deadline, f"after {seconds} s: {seen!r}"
        time.sleep(POLL_SECONDS)
    return seen


async def until(look: Callable[[], T], enough: Callable[[T], object] = bool, *, seconds: float = 10) -> T:
    """As `wait_until`, while the tasks of the event loop continue."""

    async def look_at_once() -> T:
        return look()

    return await until_stored(look_at_once, enough, seconds=seconds)


async def until_stored(
    read: Callable[[], Awaitable[T]], enough: Callable[[T], object] = bool, *, seconds: float = 10
) -> T:
    """As `until`, for a value that is read from a database or a server."""
    deadline = time.monotonic() + seconds
    while not enough(seen := await read()):
        assert time.monotonic() < deadline, f"after {seconds} s: {seen!r}"
        await asyncio.sleep(POLL_SECONDS)
    return seen


def wait_for_port(port: int) -> None:
    """Return when a server accepts connections."""

    def connects() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    wait_until(connects)


async def never() -> NoReturn:
    """Wait until the task is cancelled."""
    while True:
        await asyncio.Event().wait()
