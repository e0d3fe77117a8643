"""What a process has found out lately, and believes for a while."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from almanac.core.errors import AlmanacError

T = TypeVar("T")

MAX_ENTRIES = 256
STALE_FACTOR = 6  # times as long as it is believed, a value serves while it is found out anew


class SharedTask:
    """Work that several wait for. It ends with the last of them: nobody would have what it finds out."""

    def __init__(self) -> None:
        self._waiting: Counter[asyncio.Task[Any]] = Counter()

    async def wait(self, task: asyncio.Task[T]) -> T:
        """What the task finds out."""
        self._waiting[task] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting[task] -= 1
            if not self._waiting[task]:
                del self._waiting[task]
                task.cancel()


class RefreshingCache(Generic[T]):
    """Values by key, each until its time is over; of too many, the oldest is forgotten."""

    def __init__(self) -> None:
        self._values: dict[Hashable, tuple[float, float, T]] = {}
        self._renewing: dict[Hashable, asyncio.Task[None]] = {}

    def get(self, key: Hashable) -> T | None:
        until, _, value = self._values.get(key, (0.0, 0.0, None))
        return value if time.monotonic() < until else None

    def put(self, key: Hashable, value: T, seconds: float) -> T:
        self._values.pop(key, None)
        self._values[key] = (time.monotonic() + seconds, seconds, value)
        if len(self._values) > MAX_ENTRIES:
            self._values.pop(next(iter(self._values)))
        return value

    async def renewed(self, key: Hashable, find: Callable[[], Awaitable[tuple[T, float]]]) -> T:
        """The value of a key; `find` finds it out, and for how many seconds it is to be believed. One whose time is
        over serves some while longer, in which it is found out anew in the background: nobody waits for it again."""
        until, seconds, value = self._values.get(key, (0.0, 0.0, None))
        late = time.monotonic() - until
        if value is None or late >= STALE_FACTOR * seconds:
            return self.put(key, *await find())
        if late >= 0 and key not in self._renewing:
            self._renewing[key] = asyncio.create_task(self._renew(key, find))
        return value

    async def close(self) -> None:
        """Let nothing go on in the background."""
        tasks = list(self._renewing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _renew(self, key: Hashable, find: Callable[[], Awaitable[tuple[T, float]]]) -> None:
        try:
            with suppress(AlmanacError):  # whoever asks when the value is of no more use hears of it
                self.put(key, *await find())
        finally:
            del self._renewing[key]
