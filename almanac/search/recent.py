"""What a process has found out lately, and believes for a while."""

import time
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

MOST = 256


class Recent(Generic[T]):
    """Values by key, each until its time is over; of too many, the oldest is forgotten."""

    def __init__(self) -> None:
        self._values: dict[Hashable, tuple[float, T]] = {}

    def get(self, key: Hashable) -> T | None:
        until, value = self._values.get(key, (0.0, None))
        return value if time.monotonic() < until else None

    def put(self, key: Hashable, value: T, seconds: float) -> T:
        self._values.pop(key, None)
        self._values[key] = (time.monotonic() + seconds, value)
        if len(self._values) > MOST:
            self._values.pop(next(iter(self._values)))
        return value
