"""Sessions of the gateway: who connected, by an id that only they know, until it is not used for a while.

They are in Redis where there is one, and in the database otherwise, so that any process can go on with one that another
began. Neither holds a session's id or a key: the id is hashed, a key is hashed or sealed.
"""

import hashlib
import secrets
from collections.abc import Awaitable
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from almanac.core import clock
from almanac.core.database import Database
from almanac.core.errors import Unavailable

LONGEST_ID = 128
PREFIX = "almanac:gateway:session:"


@dataclass(frozen=True, slots=True)
class Session:
    """Who opened it, as the access-keys manager can tell again."""

    key_digest: str
    principal_id: int = 0
    token_id: int = 0
    sealed: str = ""


class SessionsUnavailable(Unavailable):
    """Sessions cannot be looked up at the moment."""

    code = "sessions_unavailable"


class Sessions(Protocol):
    """Where sessions are kept."""

    async def open(self, session: Session) -> str:
        """Keep a session; the id it is known by."""
        ...

    async def get(self, id: str) -> Session | None:
        """The session with this id, which is thereby used; None if there is none or it has ended."""
        ...

    async def end(self, id: str) -> None: ...
    async def close(self) -> None: ...


class DatabaseSessions:
    """Sessions in the database. When one was used is written down now and then, not at every call."""

    def __init__(self, db: Database, idle: int) -> None:
        self._db = db
        self._idle = idle
        self._step = idle // 10

    async def open(self, session: Session) -> str:
        id, now = _new_id(), clock.now()
        content = orjson.dumps(asdict(session)).decode()

        async def write(tx: Any) -> None:
            await tx.execute("DELETE FROM gateway_sessions WHERE used_at <= $1", now - self._idle)
            sql = "INSERT INTO gateway_sessions (hash, content, used_at) VALUES ($1, $2, $3)"
            await tx.execute(sql, _hash(id), content, now)

        await self._db.write(write)
        return id

    async def get(self, id: str) -> Session | None:
        now = clock.now()
        row = await self._db.fetch_one("SELECT content, used_at FROM gateway_sessions WHERE hash = $1", _hash(id))
        if row is None or row["used_at"] <= now - self._idle:
            return None
        if row["used_at"] <= now - self._step:
            sql = "UPDATE gateway_sessions SET used_at = $2 WHERE hash = $1"
            await self._db.write(lambda tx: tx.execute(sql, _hash(id), now))
        return Session(**orjson.loads(row["content"]))

    async def end(self, id: str) -> None:
        await self._db.write(lambda tx: tx.execute("DELETE FROM gateway_sessions WHERE hash = $1", _hash(id)))

    async def close(self) -> None:
        """Nothing is held."""


class RedisSessions:
    """Sessions in Redis, which forgets them by itself."""

    def __init__(self, url: str, idle: int) -> None:
        self._redis: Redis = Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)  # pyright: ignore[reportUnknownMemberType]
        self._seconds = idle // clock.SECOND

    async def open(self, session: Session) -> str:
        id = _new_id()
        await self._do(self._redis.set(_name(id), orjson.dumps(asdict(session)), ex=self._seconds))
        return id

    async def get(self, id: str) -> Session | None:
        found = await self._do(self._redis.getex(_name(id), ex=self._seconds))
        return None if found is None else Session(**orjson.loads(found))

    async def end(self, id: str) -> None:
        await self._do(self._redis.delete(_name(id)))

    async def close(self) -> None:
        await self._redis.aclose()

    async def _do(self, command: Any) -> Any:
        try:
            return await cast("Awaitable[Any]", command)
        except RedisError:
            raise SessionsUnavailable() from None


def open_sessions(db: Database, redis_url: str, minutes: int) -> Sessions:
    """Sessions where this server's processes share them."""
    idle = minutes * clock.MINUTE
    return RedisSessions(redis_url, idle) if redis_url else DatabaseSessions(db, idle)


def _new_id() -> str:
    return secrets.token_urlsafe(32)


def _hash(id: str) -> bytes:
    return hashlib.sha256(id[:LONGEST_ID].encode("utf-8", "surrogatepass")).digest()


def _name(id: str) -> str:
    return PREFIX + _hash(id).hex()
