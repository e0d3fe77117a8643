"""Results that a process keeps for a few seconds, and tasks that several callers await together."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from almanac.core.errors import AlmanacError

T = TypeVar("T")

MAX_ENTRIES = 256
STALE_FACTOR = 6  # an expired value is still returned for this many lifetimes while it is refreshed


class SharedTask:
    """Lets several callers await one task. The task is cancelled when the last of them stops waiting, because nobody
    would use its result."""

    def __init__(self) -> None:
        self._waiting: Counter[asyncio.Task[Any]] = Counter()

    async def wait(self, task: asyncio.Task[T]) -> T:
        """Return the result of the task."""
        self._waiting[task] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting[task] -= 1
            if not self._waiting[task]:
                del self._waiting[task]
                task.cancel()


class RefreshingCache(Generic[T]):
    """Values by key, each with its own lifetime. A full cache drops its oldest entry."""

    def __init__(self) -> None:
        self._values: dict[Hashable, tuple[float, float, T]] = {}
        self._refreshing: dict[Hashable, asyncio.Task[None]] = {}

    def get(self, key: Hashable) -> T | None:
        until, _, value = self._values.get(key, (0.0, 0.0, None))
        return value if time.monotonic() < until else None

    def put(self, key: Hashable, value: T, seconds: float) -> T:
        self._values.pop(key, None)
        self._values[key] = (time.monotonic() + seconds, seconds, value)
        if len(self._values) > MAX_ENTRIES:
            self._values.pop(next(iter(self._values)))
        return value

    async def get_or_load(self, key: Hashable, load: Callable[[], Awaitable[tuple[T, float]]]) -> T:
        """Return the value of a key. `load` returns a value and its lifetime in seconds. A recently expired value is
        returned at once and loaded again in the background, so that only the first caller waits."""
        until, seconds, value = self._values.get(key, (0.0, 0.0, None))
        late = time.monotonic() - until
        if value is None or late >= STALE_FACTOR * seconds:
            return self.put(key, *await load())
        if late >= 0 and key not in self._refreshing:
            self._refreshing[key] = asyncio.create_task(self._refresh(key, load))
        return value

    async def close(self) -> None:
        """Cancel the background loads."""
        tasks = list(self._refreshing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _refresh(self, key: Hashable, load: Callable[[], Awaitable[tuple[T, float]]]) -> None:
        try:
            with suppress(AlmanacError):  # the caller that finds the value too stale gets the error
                self.put(key, *await load())
        finally:
            del self._refreshing[key]
