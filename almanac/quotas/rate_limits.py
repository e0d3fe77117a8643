"""Rate limits, counted in the memory of this process.

If several processes share the limits, `redis_rate_limits` counts in Redis. A limiter that cannot count refuses the
call. One test runs both limiters and expects equal results.

The `limits` library can also count in memory, but its cost grows with the number of keys, and it starts threads and
tasks (docs/decisions/0003-counting-in-memory.md). The limiter in memory is therefore our own.
"""

import time
from collections import deque
from typing import NamedTuple, Protocol

from almanac.core.errors import RateLimited

CALLS_PER_SWEEP = 4096  # expired windows are removed after so many calls


class RateLimit(NamedTuple):
    """A number of calls in a window of seconds. If either is zero, there is no limit."""

    name: str
    calls: int
    seconds: int
    # "fixed": the window begins with its first call. "moving": the window ends with the current call. "aligned":
    # windows begin at multiples of their length since 1970 and are counted in Redis as `name:key:number`, for key names
    # that a contract prescribes.
    strategy: str = "fixed"

    @property
    def is_on(self) -> bool:
        """Whether there is a limit."""
        return self.calls > 0 and self.seconds > 0

    def end_of(self, moment: float) -> float:
        """The end of the window that begins with, or if aligned contains, this moment."""
        return (moment // self.seconds + 1) * self.seconds if self.strategy == "aligned" else moment + self.seconds


class RateLimitStatus(NamedTuple):
    """The remaining calls, and the time (seconds since 1970) at which more become available."""

    remaining: int
    resets_at: float


class RateLimiter(Protocol):
    """Counts calls against limits."""

    async def count(self, limit: RateLimit, key: str) -> None:
        """Count a call. RateLimited above the limit; RateLimitUnavailable if the call cannot be counted."""
        ...

    async def status(self, limit: RateLimit, key: str) -> RateLimitStatus:
        """The remaining calls of a limit."""
        ...

    async def is_available(self) -> bool:
        """Whether calls can be counted at the moment."""
        ...

    async def close(self) -> None: ...


class MemoryRateLimiter:
    """Counts for this process alone."""

    def __init__(self) -> None:
        self._fixed: dict[tuple[str, str], tuple[int, float]] = {}  # count, end of window
        self._moving: dict[tuple[str, str], tuple[deque[float], int]] = {}  # times of calls, length of window
        self._calls = 0

    async def count(self, limit: RateLimit, key: str) -> None:
        if not limit.is_on:
            return
        self._calls += 1
        if self._calls % CALLS_PER_SWEEP == 0:
            self._sweep()
        now = time.time()
        count = self._count_moving if limit.strategy == "moving" else self._count_fixed
        if not count(limit, key, now):
            raise RateLimited(int((await self.status(limit, key)).resets_at - now) + 1)

    async def status(self, limit: RateLimit, key: str) -> RateLimitStatus:
        now = time.time()
        if limit.strategy == "moving":
            held = self._moving.get((limit.name, key))
            moments = [at for at in held[0] if at > now - limit.seconds] if held else []
            return RateLimitStatus(limit.calls - len(moments), moments[0] + limit.seconds if moments else now)
        count, ends = self._fixed.get((limit.name, key), (0, 0.0))
        return RateLimitStatus(max(limit.calls - count, 0), ends) if ends > now else RateLimitStatus(limit.calls, now)

    async def is_available(self) -> bool:
        return True

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    def _count_fixed(self, limit: RateLimit, key: str, now: float) -> bool:
        count, ends = self._fixed.get((limit.name, key), (0, 0.0))
        if ends <= now:
            count, ends = 0, limit.end_of(now)
        self._fixed[limit.name, key] = (count + 1, ends)
        return count < limit.calls

    def _count_moving(self, limit: RateLimit, key: str, now: float) -> bool:
        moments = self._window(limit, key, now)
        if len(moments) >= limit.calls:
            return False
        moments.append(now)
        return True

    def _window(self, limit: RateLimit, key: str, now: float) -> deque[float]:
        moments, _ = self._moving.setdefault((limit.name, key), (deque(), limit.seconds))
        while moments and moments[0] <= now - limit.seconds:
            moments.popleft()
        return moments

    def _sweep(self) -> None:
        now = time.time()
        self._fixed = {key: held for key, held in self._fixed.items() if held[1] > now}
        self._moving = {key: held for key, held in self._moving.items() if held[0] and held[0][-1] > now - held[1]}
