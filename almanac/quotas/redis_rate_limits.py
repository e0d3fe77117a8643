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
from redis.exceptions import RedisError

from almanac.core.errors import RateLimited, RateLimitUnavailable
from almanac.net.redis_client import REDIS_OPTIONS, REDIS_TIMEOUT_SECONDS
from almanac.quotas.rate_limits import MemoryRateLimiter, RateLimit, RateLimiter, RateLimitStatus


class RedisRateLimiter:
    """Counts for every process that uses this Redis."""

    def __init__(self, url: str) -> None:
        self._store = RedisStorage(
            f"async+{url}",
            wrap_exceptions=True,
            implementation="redispy",
            key_prefix="almanac",
            **REDIS_OPTIONS,  # passed on to the Redis client
        )
        self._redis: Any = self._store.bridge.get_connection()  # pyright: ignore - the bridge is not typed
        self._limiters = {"fixed": FixedWindowRateLimiter(self._store), "moving": MovingWindowRateLimiter(self._store)}

    async def count(self, limit: RateLimit, key: str) -> None:
        if not limit.is_on:
            return
        if limit.strategy == "aligned":
            await self._count_aligned(limit, key)
            return
        try:
            allowed = await self._limiters[limit.strategy].hit(_item(limit), key)
        except StorageError:
            raise RateLimitUnavailable() from None
        if not allowed:
            # Redis rounds the remaining time to whole seconds, so half a second is added.
            raise RateLimited(int((await self.status(limit, key)).resets_at - time.time() + 0.5) + 1)

    async def status(self, limit: RateLimit, key: str) -> RateLimitStatus:
        if limit.strategy == "aligned":
            return await self._status_aligned(limit, key)
        try:
            stats = await self._limiters[limit.strategy].get_window_stats(_item(limit), key)
        except StorageError:
            raise RateLimitUnavailable() from None
        is_whole = stats.remaining >= limit.calls
        return RateLimitStatus(max(stats.remaining, 0), time.time() if is_whole else stats.reset_time)

    async def is_available(self) -> bool:
        try:
            return await self._store.check()
        except StorageError:
            return False

    async def close(self) -> None:
        await self._redis.aclose()

    async def _count_aligned(self, limit: RateLimit, key: str) -> None:
        now = time.time()
        name = _window(limit, key, now)
        try:
            # In one transaction: a counter without an expiry would refuse for ever.
            async with asyncio.timeout(REDIS_TIMEOUT_SECONDS), self._redis.pipeline(transaction=True) as pipe:
                count, _ = await pipe.incr(name).expire(name, limit.seconds + 1).execute()
        except (RedisError, OSError, TimeoutError):
            raise RateLimitUnavailable() from None
        if count > limit.calls:
            raise RateLimited(int(limit.end_of(now) - now) + 1)

    async def _status_aligned(self, limit: RateLimit, key: str) -> RateLimitStatus:
        now = time.time()
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_SECONDS):
                count = int(await self._redis.get(_window(limit, key, now)) or 0)
        except (RedisError, OSError, TimeoutError):
            raise RateLimitUnavailable() from None
        return RateLimitStatus(max(limit.calls - count, 0), limit.end_of(now) if count else now)


def _window(limit: RateLimit, key: str, moment: float) -> str:
    return f"{limit.name}:{key}:{int(moment // limit.seconds)}"


def open_rate_limiter(redis_url: str) -> RateLimiter:
    """A limiter in Redis if there is a URL, otherwise in the memory of this process."""
    return RedisRateLimiter(redis_url) if redis_url else MemoryRateLimiter()


def _item(limit: RateLimit) -> RateLimitItemPerSecond:
    return RateLimitItemPerSecond(limit.calls, limit.seconds, limit.name)
