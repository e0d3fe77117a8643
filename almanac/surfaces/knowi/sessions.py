"""Sessions of the Knowi surface: `sh-1`, `sh-2` and so on.

A session grants nothing: each request is authenticated by its token. A session belongs to one user or agent. For
anyone else it does not exist. It ends after 30 minutes without a request.

Sessions are stored in Redis if there is one, otherwise in the database, so that every process knows every session.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol

from redis.asyncio import Redis

from almanac.core import clock
from almanac.core.database import Database, Transaction
from almanac.db.read_cache import ReadCache
from almanac.net.redis_client import open_redis
from almanac.operations.context import AppContext
from almanac.surfaces.sessions import run_redis

IDLE_TIME = 30 * clock.MINUTE
USE_INTERVAL = IDLE_TIME // 10  # a use is written at most this often
MAX_SESSIONS = 1_000
MAX_REMEMBERED_CALLERS = 10_000

_ID = re.compile(rb"sh-([1-9][0-9]{0,17})")
_REDIS_NUMBERS = "almanac:knowi:session-numbers"
_REDIS_SESSIONS = "almanac:knowi:sessions"  # a sorted set of "principal:number" by the time of the last use

# Makes room for a session, stores it, and returns its number.
_OPEN_IN_REDIS = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[2] - ARGV[3])
local excess = redis.call('ZCARD', KEYS[1]) - ARGV[4] + 1
if excess > 0 then
    local all = redis.call('ZRANGE', KEYS[1], 0, -1)
    table.sort(all, function(a, b)
        local mine, other = string.find(a, ARGV[1] .. ':', 1, true) == 1, string.find(b, ARGV[1] .. ':', 1, true) == 1
        if mine ~= other then return mine end
        return tonumber(string.match(a, '%d+$')) < tonumber(string.match(b, '%d+$'))
    end)
    for number = 1, excess do redis.call('ZREM', KEYS[1], all[number]) end
end
local number = redis.call('INCR', KEYS[2])
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1] .. ':' .. number)
return number
"""


class SessionStore(Protocol):
    """Stores the numbers of sessions with their owners."""

    async def open(self, principal_id: int) -> int:
        """Store a new session and return its number. Too many sessions end the oldest of its owner, or of all."""
        ...

    async def resume(self, principal_id: int, number: int) -> bool:
        """Note the use of a session. Return whether the principal has it."""
        ...

    async def end(self, principal_id: int, number: int) -> None: ...

    async def count(self) -> int:
        """Return the number of sessions that have not ended."""
        ...


class DatabaseSessions:
    """Stores sessions in the database."""

    def __init__(self, db: Database, cache: ReadCache) -> None:
        self._db = db
        self._cache = cache

    async def open(self, principal_id: int) -> int:
        now = clock.now()

        async def write(tx: Transaction) -> int:
            await tx.execute("DELETE FROM knowi_sessions WHERE used_at <= $1", now - IDLE_TIME)
            row = await tx.fetch_one("SELECT count(*) AS n FROM knowi_sessions")
            assert row is not None
            if (excess := row["n"] - MAX_SESSIONS + 1) > 0:
                await tx.execute(
                    "DELETE FROM knowi_sessions WHERE id IN (SELECT id FROM knowi_sessions"
                    " ORDER BY CASE WHEN principal_id = $1 THEN 0 ELSE 1 END, id LIMIT $2)",
                    principal_id,
                    excess,
                )
            sql = "INSERT INTO knowi_sessions (principal_id, used_at) VALUES ($1, $2) RETURNING id"
            stored = await tx.fetch_one(sql, principal_id, now)
            assert stored is not None
            return stored["id"]

        return await self._db.write(write)

    async def resume(self, principal_id: int, number: int) -> bool:
        now, key = clock.now(), ("knowi session", principal_id, number)
        used_at = await self._cache.get(key, lambda: self._used_at(principal_id, number))
        if used_at is None or used_at <= now - IDLE_TIME:
            return False
        if used_at <= now - USE_INTERVAL:
            sql = "UPDATE knowi_sessions SET used_at = $2 WHERE id = $1"
            await self._db.write(lambda tx: tx.execute(sql, number, now))
        return True

    async def end(self, principal_id: int, number: int) -> None:
        sql = "DELETE FROM knowi_sessions WHERE id = $1 AND principal_id = $2"
        await self._db.write(lambda tx: tx.execute(sql, number, principal_id))

    async def count(self) -> int:
        sql = "SELECT count(*) AS n FROM knowi_sessions WHERE used_at > $1"
        row = await self._db.fetch_one(sql, clock.now() - IDLE_TIME)
        assert row is not None
        return row["n"]

    async def _used_at(self, principal_id: int, number: int) -> int | None:
        sql = "SELECT used_at FROM knowi_sessions WHERE id = $1 AND principal_id = $2"
        row = await self._db.fetch_one(sql, number, principal_id)
        return None if row is None else row["used_at"]


class RedisSessions:
    """Stores sessions in Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def open(self, principal_id: int) -> int:
        arguments = [str(principal_id), str(clock.now()), str(IDLE_TIME), str(MAX_SESSIONS)]
        keys = (_REDIS_SESSIONS, _REDIS_NUMBERS)
        return await run_redis(self._redis.eval(_OPEN_IN_REDIS, len(keys), *keys, *arguments))

    async def resume(self, principal_id: int, number: int) -> bool:
        now, member = clock.now(), f"{principal_id}:{number}"
        used_at = await run_redis(self._redis.zscore(_REDIS_SESSIONS, member))
        if used_at is None or used_at <= now - IDLE_TIME:
            return False
        if used_at <= now - USE_INTERVAL:
            await run_redis(self._redis.zadd(_REDIS_SESSIONS, {member: now}, xx=True))
        return True

    async def end(self, principal_id: int, number: int) -> None:
        await run_redis(self._redis.zrem(_REDIS_SESSIONS, f"{principal_id}:{number}"))

    async def count(self) -> int:
        first = clock.now() - IDLE_TIME
        return await run_redis(self._redis.zcount(_REDIS_SESSIONS, f"({first}", "+inf"))


class CallerSessions:
    """The sessions of callers, by the ids that they send."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store
        self._latest: dict[int, int] = {}  # the last session of each caller that this process has opened

    async def resume(self, principal_id: int, id: bytes) -> bytes | None:
        """Return the id of a session if the caller has it."""
        number = number_of(id)
        return id if number is not None and await self.store.resume(principal_id, number) else None

    async def open(self, principal_id: int) -> bytes:
        """Open a session and return its id."""
        number = await self.store.open(principal_id)
        if len(self._latest) >= MAX_REMEMBERED_CALLERS:
            self._latest.clear()
        self._latest[principal_id] = number
        return _id_of(number)

    async def latest(self, principal_id: int) -> bytes:
        """Return the caller's last session, or a new one: a caller that sends no id opens no session per request."""
        number = self._latest.get(principal_id)
        if number is not None and await self.store.resume(principal_id, number):
            return _id_of(number)
        return await self.open(principal_id)

    async def end(self, principal_id: int, id: bytes) -> None:
        """End a session, if the caller has it."""
        if (number := number_of(id)) is not None:
            await self.store.end(principal_id, number)


def number_of(id: bytes) -> int | None:
    """Return the number in the id of a session; None for any other text."""
    match = _ID.fullmatch(id)
    return int(match[1]) if match else None


def _id_of(number: int) -> bytes:
    return b"sh-%d" % number


@asynccontextmanager
async def open_sessions(app: AppContext) -> AsyncGenerator[CallerSessions]:
    """Open the store that all processes of this server share."""
    if not app.settings.redis_url:
        yield CallerSessions(DatabaseSessions(app.db, app.read_cache))
        return
    async with open_redis(app.settings.redis_url) as redis:
        yield CallerSessions(RedisSessions(redis))
