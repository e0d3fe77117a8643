"""Limits on how long something may run, at a tenth of the cost of `asyncio.timeout`, for every call pays it."""

import asyncio
import time
from types import TracebackType
from typing import Any, Protocol


class Sleeper(Protocol):
    """Whoever an alarm is set for."""

    def expire(self) -> None:
        """What happens when it rings."""
        ...


class TimerQueue:
    """Timers that all run for the same time, on one timer of the event loop.

    They end in the order they were set, so only the oldest has to be waited for. Setting and dropping one is then an
    entry in a dictionary; the loop's timer is touched once in each such length of time.
    """

    __slots__ = ("_is_armed", "_loop", "_seconds", "_sleepers")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._sleepers: dict[Sleeper, float] = {}
        self._is_armed = False

    def set(self, sleeper: Sleeper, loop: asyncio.AbstractEventLoop) -> None:
        """Wake it in that time, unless it is dropped."""
        self._sleepers[sleeper] = time.monotonic() + self._seconds  # a loop's own time may lag, and ring too early
        if not self._is_armed:
            self._is_armed = True
            self._loop = loop
            loop.call_later(self._seconds, self._ring)

    def drop(self, sleeper: Sleeper) -> None:
        """Forget it, if it has not been woken."""
        self._sleepers.pop(sleeper, None)

    def _ring(self) -> None:
        now = time.monotonic()
        while self._sleepers:
            sleeper, at = next(iter(self._sleepers.items()))
            if at > now:
                self._loop.call_later(at - now, self._ring)
                return
            del self._sleepers[sleeper]
            sleeper.expire()
        self._is_armed = False


class Deadline:
    """Cancels what runs inside when its alarm rings; it then leaves with TimeoutError and `is_over` set."""

    __slots__ = ("_alarm", "_before", "_task", "is_over")

    def __init__(self, alarm: TimerQueue) -> None:
        self._alarm = alarm
        self.is_over = False

    def __enter__(self) -> "Deadline":
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._before = task.cancelling()
        self._alarm.set(self, task.get_loop())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._alarm.drop(self)
        # Somebody else may have cancelled the task as well: theirs is then left to go on.
        if self.is_over and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """The time is over."""
        self.is_over = True
        self._task.cancel()
