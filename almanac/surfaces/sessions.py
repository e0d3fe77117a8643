"""What the session stores of several surfaces share."""

from collections.abc import Awaitable
from typing import Any, cast

from redis.exceptions import RedisError

from almanac.core.errors import Unavailable

SESSION_HEADER = b"mcp-session-id"


class SessionsUnavailable(Unavailable):
    """Sessions cannot be looked up at the moment."""

    code = "sessions_unavailable"


async def run_redis(command: Any) -> Any:
    """Return the answer of Redis to a command. Raises SessionsUnavailable if there is none."""
    try:
        return await cast("Awaitable[Any]", command)
    except RedisError:
        raise SessionsUnavailable() from None
