"""Rate limits: how often a caller may do something, counted in the memory of this process.

`redis_rate_limits` counts in Redis when several processes share the limits. A limiter that cannot count refuses: an
uncounted call is never let through. One test runs both limiters and expects the same answers.

The `limits` library can also count in memory, but its cost there grows with the number of keys, and it starts threads
and tasks (docs/decisions/0003-counting-in-memory.md). For this reason the limiter in memory is our own.
"""

import time
from collections import deque
from typing import NamedTuple, Protocol

from almanac.core.errors import RateLimited

_SWEEP_EVERY = 4096  # hits between two looks for keys whose window is over


class RateLimit(NamedTuple):
    """So many hits in so many seconds. No limit where either is zero."""

    name: str
    calls: int
    seconds: int
    # "fixed": the window begins with its first hit. "moving": it is the last so many seconds. "aligned": windows begin
    # at multiples of their length since 1970, and are counted in Redis as `name:key:number`, for keys that a document
    # prescribes.
    strategy: str = "fixed"

    @property
    def is_on(self) -> bool:
        """Whether this limits anything."""
        return self.calls > 0 and self.seconds > 0

    def end_of(self, moment: float) -> float:
        """When a window ends that a hit at this moment begins, or, aligned, falls into."""
        return (moment // self.seconds + 1) * self.seconds if self.strategy == "aligned" else moment + self.seconds


class RateLimitStatus(NamedTuple):
    """What remains of a limit, and when (seconds since 1970) more of it comes back."""

    remaining: int
    resets_at: float


class RateLimiter(Protocol):
    """Counts hits against rules."""

    async def count(self, rule: RateLimit, key: str) -> None:
        """Count one, or refuse: RateLimited over the limit, RateLimitUnavailable if it cannot be counted."""
        ...

    async def status(self, rule: RateLimit, key: str) -> RateLimitStatus:
        """How much of a limit remains."""
        ...

    async def is_available(self) -> bool:
        """Whether hits can be counted at the moment."""
        ...

    async def close(self) -> None: ...


class MemoryRateLimiter:
    """Limits of this process alone."""

    def __init__(self) -> None:
        self._fixed: dict[tuple[str, str], tuple[int, float]] = {}  # count, end of window
        self._moving: dict[tuple[str, str], tuple[deque[float], int]] = {}  # moments of hits, length of window
        self._hits = 0

    async def count(self, rule: RateLimit, key: str) -> None:
        if not rule.is_on:
            return
        self._hits += 1
        if self._hits % _SWEEP_EVERY == 0:
            self._sweep()
        now = time.time()
        allowed = self._hit_moving(rule, key, now) if rule.strategy == "moving" else self._hit_fixed(rule, key, now)
        if not allowed:
            raise RateLimited(int((await self.status(rule, key)).resets_at - now) + 1)

    async def status(self, rule: RateLimit, key: str) -> RateLimitStatus:
        now = time.time()
        if rule.strategy == "moving":
            held = self._moving.get((rule.name, key))
            moments = [at for at in held[0] if at > now - rule.seconds] if held else []
            return RateLimitStatus(rule.calls - len(moments), moments[0] + rule.seconds if moments else now)
        count, ends = self._fixed.get((rule.name, key), (0, 0.0))
        return RateLimitStatus(max(rule.calls - count, 0), ends) if ends > now else RateLimitStatus(rule.calls, now)

    async def is_available(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing is held."""

    def _hit_fixed(self, rule: RateLimit, key: str, now: float) -> bool:
        count, ends = self._fixed.get((rule.name, key), (0, 0.0))
        if ends <= now:
            count, ends = 0, rule.end_of(now)
        self._fixed[rule.name, key] = (count + 1, ends)
        return count < rule.calls

    def _hit_moving(self, rule: RateLimit, key: str, now: float) -> bool:
        moments = self._window(rule, key, now)
        if len(moments) >= rule.calls:
            return False
        moments.append(now)
        return True

    def _window(self, rule: RateLimit, key: str, now: float) -> deque[float]:
        moments, _ = self._moving.setdefault((rule.name, key), (deque(), rule.seconds))
        while moments and moments[0] <= now - rule.seconds:
            moments.popleft()
        return moments

    def _sweep(self) -> None:
        now = time.time()
        self._fixed = {key: held for key, held in self._fixed.items() if held[1] > now}
        self._moving = {key: held for key, held in self._moving.items() if held[0] and held[0][-1] > now - held[1]}
