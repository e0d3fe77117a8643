"""Idempotency keys in Redis. Only the server imports this module, because it loads the Redis client."""

from collections.abc import Awaitable
from typing import TypeVar, cast

from redis import RedisError

from almanac.core.database import Database
from almanac.core.errors import Unavailable
from almanac.net.redis_client import open_redis
from almanac.quotas.idempotency import DatabaseIdempotencyStore, IdempotencyStore

T = TypeVar("T")


class IdempotencyUnavailable(Unavailable):
    """The idempotency store is unavailable. The call was refused because a repeated call could take effect twice."""

    remedy = "Try again in a few seconds."


class RedisIdempotencyStore:
    """Stores values in Redis, which removes them when they expire."""

    def __init__(self, url: str) -> None:
        self._redis = open_redis(url)

    async def get_or_set(self, key: str, value: str, seconds: int) -> str:
        while not await _run(self._redis.set(key, value, nx=True, ex=seconds)):
            if stored := await self.get(key):  # otherwise it expired in between
                return stored
        return value

    async def get(self, key: str) -> str | None:
        stored = await _run(cast("Awaitable[bytes | None]", self._redis.get(key)))
        return stored.decode() if stored else None

    async def set(self, key: str, value: str, seconds: int) -> None:
        await _run(self._redis.set(key, value, ex=seconds))

    async def remove(self, key: str) -> None:
        await _run(self._redis.delete(key))

    async def close(self) -> None:
        await self._redis.aclose()


async def _run(command: Awaitable[T]) -> T:
    try:
        return await command
    except RedisError:
        raise IdempotencyUnavailable() from None


def open_idempotency(redis_url: str, db: Database) -> IdempotencyStore:
    """A store in Redis if there is a URL, otherwise in the database."""
    return RedisIdempotencyStore(redis_url) if redis_url else DatabaseIdempotencyStore(db)
