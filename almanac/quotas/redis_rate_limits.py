"""Rate limits that several processes share, counted in Redis by the `limits` library.

Only the server imports this module: loading the Redis client would slow down every command.
"""

import asyncio
import time
from typing import Any

from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter
from limits.errors import StorageError
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from almanac.core.errors import RateLimited, RateLimitUnavailable
from almanac.quotas.rate_limits import MemoryRateLimiter, RateLimit, RateLimiter, RateLimitStatus

_REDIS_TIMEOUT_SECONDS = 1


class RedisRateLimiter:
    """Limits shared by every process that uses this Redis. It is given a second to answer, once."""

    def __init__(self, url: str) -> None:
        self._store = RedisStorage(
            f"async+{url}",
            wrap_exceptions=True,
            implementation="redispy",
            key_prefix="almanac",
            socket_timeout=_REDIS_TIMEOUT_SECONDS,
            socket_connect_timeout=_REDIS_TIMEOUT_SECONDS,
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
            async with asyncio.timeout(_REDIS_TIMEOUT_SECONDS), self._redis.pipeline(transaction=True) as pipe:
                count, _ = await pipe.incr(name).expire(name, rule.seconds + 1).execute()
        except (RedisError, OSError, TimeoutError):
            raise RateLimitUnavailable() from None
        if count > rule.calls:
            raise RateLimited(int(rule.end_of(now) - now) + 1)

    async def _left_aligned(self, rule: RateLimit, key: str) -> RateLimitStatus:
        now = time.time()
        try:
            async with asyncio.timeout(_REDIS_TIMEOUT_SECONDS):
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
