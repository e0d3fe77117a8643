"""A limit on how long something may run: `asyncio.timeout` at a third of its cost, for every call pays it."""

import asyncio
from types import TracebackType
from typing import Any, cast


class Deadline:
    """Cancels what runs inside after so many seconds; it then leaves with TimeoutError and `is_over` set."""

    __slots__ = ("_before", "_seconds", "_task", "_timer", "is_over")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.is_over = False

    def __enter__(self) -> "Deadline":
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._before = self._task.cancelling()
        self._timer = self._task.get_loop().call_later(self._seconds, self._end)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._timer.cancel()
        # Somebody else may have cancelled the task as well: theirs is then left to go on.
        if self.is_over and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _end(self) -> None:
        self.is_over = True
        self._task.cancel()
