"""Repeats kept in Redis, apart from `repeats.py` so that a command which needs none of it does not load it."""

from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from almanac.core.database import Database
from almanac.core.errors import Unavailable
from almanac.quotas.idempotency import DatabaseIdempotencyStore, IdempotencyStore


class RedisIdempotencyStore:
    """Kept in Redis, which forgets by itself. It is given a second to answer, once."""

    def __init__(self, url: str) -> None:
        self._redis: Redis = Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
            url,
            decode_responses=True,
            socket_timeout=1,
            socket_connect_timeout=1,
            retry=Retry(NoBackoff(), 0),
        )

    async def get_or_set(self, key: str, value: str, seconds: int) -> str:
        try:
            while not await self._redis.set(key, value, nx=True, ex=seconds):
                if known := await self._redis.get(key):  # otherwise its time was over in between
                    return str(known)
        except RedisError:
            raise Unavailable("Whether this call came before cannot be told at the moment.") from None
        return value

    async def get(self, key: str) -> str | None:
        try:
            found = await self._redis.get(key)
        except RedisError:
            raise Unavailable("Whether this call came before cannot be told at the moment.") from None
        return str(found) if found else None

    async def close(self) -> None:
        await self._redis.aclose()


def open_repeats(redis_url: str, db: Database) -> IdempotencyStore:
    """In Redis where there is one, in the database where not."""
    return RedisIdempotencyStore(redis_url) if redis_url else DatabaseIdempotencyStore(db)
