"""Rate limits: how often someone may do something.

The seam is where hits are counted: in this process's memory, or in Redis, by the `limits` library, when several
processes share the limits. One that cannot count refuses: an uncounted call is never let through.

`limits` can count in memory too, but its cost there grows with the number of keys, by threads and tasks of its own
(docs/decisions/0003-counting-in-memory.md), so that side of the seam is ours. A test holds the two to the same answers.
"""

import asyncio
import time
from collections import deque
from typing import Any, NamedTuple, Protocol

from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter
from limits.errors import StorageError
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from almanac.core.errors import RateLimited, RateLimitUnavailable

_SWEEP_EVERY = 4096  # hits between two looks for keys whose window is over
_PATIENCE = 1  # seconds that Redis is given to answer


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


class RedisRateLimiter:
    """Limits shared by every process that uses this Redis. It is given a second to answer, once."""

    def __init__(self, url: str) -> None:
        self._store = RedisStorage(
            f"async+{url}",
            wrap_exceptions=True,
            implementation="redispy",
            key_prefix="almanac",
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            retry=Retry(NoBackoff(), 0),  # pyright: ignore[reportArgumentType] - passed on to redis as it is
        )
        self._redis: Any = self._store.bridge.get_connection()  # pyright: ignore - the bridge is not typed
        self._limiters = {"fixed": FixedWindowRateLimiter(self._store), "moving": MovingWindowRateLimiter(self._store)}

    async def count(self, rule: RateLimit, key: str) -> None:
        if not rule.is_on:
            return
        if rule.strategy == "aligned":
            await self._hit_aligned(rule, key)
            return
        try:
            allowed = await self._limiters[rule.strategy].hit(_item(rule), key)
        except StorageError:
            raise RateLimitUnavailable() from None
        if not allowed:
            # Redis tells the time left in whole seconds, rounded: half a second more is on the safe side.
            raise RateLimited(int((await self.status(rule, key)).resets_at - time.time() + 0.5) + 1)

    async def status(self, rule: RateLimit, key: str) -> RateLimitStatus:
        if rule.strategy == "aligned":
            return await self._left_aligned(rule, key)
        try:
            stats = await self._limiters[rule.strategy].get_window_stats(_item(rule), key)
        except StorageError:
            raise RateLimitUnavailable() from None
        is_whole = stats.remaining >= rule.calls
        return RateLimitStatus(max(stats.remaining, 0), time.time() if is_whole else stats.reset_time)

    async def is_available(self) -> bool:
        try:
            return await self._store.check()
        except StorageError:
            return False

    async def close(self) -> None:
        await self._redis.aclose()

    async def _hit_aligned(self, rule: RateLimit, key: str) -> None:
        now = time.time()
        name = _window(rule, key, now)
        try:
            # Both or neither: a count without an end would refuse for ever.
            async with asyncio.timeout(_PATIENCE), self._redis.pipeline(transaction=True) as pipe:
                count, _ = await pipe.incr(name).expire(name, rule.seconds + 1).execute()
        except (RedisError, OSError, TimeoutError):
            raise RateLimitUnavailable() from None
        if count > rule.calls:
            raise RateLimited(int(rule.end_of(now) - now) + 1)

    async def _left_aligned(self, rule: RateLimit, key: str) -> RateLimitStatus:
        now = time.time()
        try:
            async with asyncio.timeout(_PATIENCE):
                count = int(await self._redis.get(_window(rule, key, now)) or 0)
        except (RedisError, OSError, TimeoutError):
            raise RateLimitUnavailable() from None
        return RateLimitStatus(max(rule.calls - count, 0), rule.end_of(now) if count else now)


def _window(rule: RateLimit, key: str, moment: float) -> str:
    return f"{rule.name}:{key}:{int(moment // rule.seconds)}"


def open_rates(redis_url: str) -> RateLimiter:
    """Limits shared through Redis where there is one, of this process alone where not."""
    return RedisRateLimiter(redis_url) if redis_url else MemoryRateLimiter()


def _item(rule: RateLimit) -> RateLimitItemPerSecond:
    return RateLimitItemPerSecond(rule.calls, rule.seconds, rule.name)
