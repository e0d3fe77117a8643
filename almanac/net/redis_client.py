"""The set-up of every Redis connection: one second for an answer, and no retries, because a caller waits.

Only the server imports this module: loading the Redis client would slow down every command.
"""

from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

REDIS_TIMEOUT_SECONDS = 1
REDIS_OPTIONS: dict[str, Any] = {
    "socket_timeout": REDIS_TIMEOUT_SECONDS,
    "socket_connect_timeout": REDIS_TIMEOUT_SECONDS,
    "retry": Retry(NoBackoff(), 0),
}


def open_redis(url: str) -> Redis:
    """A client for one Redis server. It connects with the first command."""
    return Redis.from_url(url, **REDIS_OPTIONS)  # pyright: ignore[reportUnknownMemberType]
