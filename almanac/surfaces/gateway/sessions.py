"""Sessions of the gateway. A session identifies a caller by a secret id and ends when it has not been used for a while.

Sessions are stored in Redis if there is one, otherwise in the database, so that every process can serve every session.
The store contains neither session ids nor keys: ids are hashed, and keys are hashed or encrypted.
"""

import hashlib
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import orjson
from redis.asyncio import Redis

from almanac.core import clock
from almanac.core.database import Database
from almanac.net.redis_client import open_redis
from almanac.surfaces.sessions import run_redis

MAX_SESSION_ID_CHARS = 128
REDIS_PREFIX = "almanac:gateway:session:"


@dataclass(frozen=True, slots=True)
class GatewaySession:
    """The credential that opened the session, in a form that the key verifier can check again."""

    key_digest: str
    principal_id: int = 0
    token_id: int = 0
    # For a remote manager: the encrypted key, and the manager's answer when the session was opened.
    sealed: str = ""
    tenant: str = ""
    name: str = ""
    scopes: tuple[str, ...] = ()
    expires_at: int | None = None


class SessionStore(Protocol):
    """Stores sessions."""

    async def open(self, session: GatewaySession) -> str:
        """Store a session and return its id."""
        ...

    async def get(self, id: str) -> GatewaySession | None:
        """Return a session and note its use; None if there is none or it has ended."""
        ...

    async def end(self, id: str) -> None: ...


class DatabaseSessions:
    """Stores sessions in the database. The time of the last use is written only now and then."""

    def __init__(self, db: Database, idle: int) -> None:
        self._db = db
        self._idle = idle
        self._use_interval = idle // 10

    async def open(self, session: GatewaySession) -> str:
        id, now = _new_id(), clock.now()
        content = orjson.dumps(asdict(session)).decode()

        async def write(tx: Any) -> None:
            await tx.execute("DELETE FROM gateway_sessions WHERE used_at <= $1", now - self._idle)
            sql = "INSERT INTO gateway_sessions (hash, content, used_at) VALUES ($1, $2, $3)"
            await tx.execute(sql, _hash(id), content, now)

        await self._db.write(write)
        return id

    async def get(self, id: str) -> GatewaySession | None:
        now = clock.now()
        row = await self._db.fetch_one("SELECT content, used_at FROM gateway_sessions WHERE hash = $1", _hash(id))
        if row is None or row["used_at"] <= now - self._idle:
            return None
        if row["used_at"] <= now - self._use_interval:
            sql = "UPDATE gateway_sessions SET used_at = $2 WHERE hash = $1"
            await self._db.write(lambda tx: tx.execute(sql, _hash(id), now))
        return _session_from(row["content"])

    async def end(self, id: str) -> None:
        await self._db.write(lambda tx: tx.execute("DELETE FROM gateway_sessions WHERE hash = $1", _hash(id)))


class RedisSessions:
    """Stores sessions in Redis, which removes them when they expire."""

    def __init__(self, redis: Redis, idle: int) -> None:
        self._redis = redis
        self._seconds = idle // clock.SECOND

    async def open(self, session: GatewaySession) -> str:
        id = _new_id()
        await run_redis(self._redis.set(_name(id), orjson.dumps(asdict(session)), ex=self._seconds))
        return id

    async def get(self, id: str) -> GatewaySession | None:
        content = await run_redis(self._redis.getex(_name(id), ex=self._seconds))
        return None if content is None else _session_from(content)

    async def end(self, id: str) -> None:
        await run_redis(self._redis.delete(_name(id)))


@asynccontextmanager
async def open_sessions(db: Database, redis_url: str, minutes: int) -> AsyncGenerator[SessionStore]:
    """Open the session store that all processes of this server share."""
    idle = minutes * clock.MINUTE
    if not redis_url:
        yield DatabaseSessions(db, idle)
        return
    async with open_redis(redis_url) as redis:
        yield RedisSessions(redis, idle)


def _session_from(content: str | bytes) -> GatewaySession:
    session = GatewaySession(**orjson.loads(content))
    return replace(session, scopes=tuple(session.scopes))  # JSON has lists only


def _new_id() -> str:
    return secrets.token_urlsafe(32)


def _hash(id: str) -> bytes:
    return hashlib.sha256(id[:MAX_SESSION_ID_CHARS].encode("utf-8", "surrogatepass")).digest()


def _name(id: str) -> str:
    return REDIS_PREFIX + _hash(id).hex()
