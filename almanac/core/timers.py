"""Many timers of equal duration on one timer of the event loop. Each costs a tenth of an `asyncio.timeout`."""

import asyncio
import time
from typing import Protocol


class Timer(Protocol):
    """An object that a `TimerQueue` can wait for."""

    def expire(self) -> None:
        """Runs when the time is over."""
        ...


class TimerQueue:
    """Timers of equal duration.

    They expire in the order in which they were started, so only the oldest is scheduled on the event loop. Starting or
    stopping one is a dictionary operation, cheap enough for every request.
    """

    __slots__ = ("_is_scheduled", "_loop", "_seconds", "_timers")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timers: dict[Timer, float] = {}
        self._is_scheduled = False

    def start(self, timer: Timer, loop: asyncio.AbstractEventLoop) -> None:
        """Call `timer.expire()` after the duration of the queue, unless the timer is stopped before."""
        # The loop's own clock may lag behind and expire timers too early.
        self._timers[timer] = time.monotonic() + self._seconds
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop = loop
            loop.call_later(self._seconds, self._expire_due)

    def stop(self, timer: Timer) -> None:
        """Stop a timer. An expired timer is ignored."""
        self._timers.pop(timer, None)

    def _expire_due(self) -> None:
        now = time.monotonic()
        while self._timers:
            timer, due_at = next(iter(self._timers.items()))
            if due_at > now:
                self._loop.call_later(due_at - now, self._expire_due)
                return
            del self._timers[timer]
            timer.expire()
        self._is_scheduled = False
