"""Idempotency keys: a repeated call returns the result of the first one.

Before a call acts, it stores its result under its key, such as the id of the note that it is about to add. For a
while, other calls with that key receive the stored value instead of their own. The store is the database or Redis. A
store that cannot be reached refuses the call, because it could otherwise act twice.
"""

from typing import Protocol

from almanac.core import clock
from almanac.core.database import Database, Transaction

_GET_OR_SET = """
INSERT INTO repeats (key, value, until) VALUES ($1, $2, $4) ON CONFLICT (key) DO UPDATE SET
    value = CASE WHEN repeats.until <= $3 THEN excluded.value ELSE repeats.value END,
    until = CASE WHEN repeats.until <= $3 THEN excluded.until ELSE repeats.until END
RETURNING value
"""
_SET = """
INSERT INTO repeats (key, value, until) VALUES ($1, $2, $3)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, until = excluded.until
"""


class IdempotencyStore(Protocol):
    """Stores a value for each key."""

    async def get_or_set(self, key: str, value: str, seconds: int) -> str:
        """The value of a key. If there is none, store this one for so many seconds and return it."""
        ...

    async def get(self, key: str) -> str | None:
        """The value of a key, or None."""
        ...

    async def set(self, key: str, value: str, seconds: int) -> None:
        """Store a value for so many seconds, in place of any other."""
        ...

    async def remove(self, key: str) -> None: ...

    async def close(self) -> None: ...


class DatabaseIdempotencyStore:
    """Stores values in the database, for every process that shares it."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def get_or_set(self, key: str, value: str, seconds: int) -> str:
        now = clock.now()
        row = await self._db.write(lambda tx: tx.fetch_one(_GET_OR_SET, key, value, now, now + seconds * clock.SECOND))
        assert row is not None
        return row["value"]

    async def get(self, key: str) -> str | None:
        row = await self._db.fetch_one("SELECT value FROM repeats WHERE key = $1 AND until > $2", key, clock.now())
        return None if row is None else row["value"]

    async def set(self, key: str, value: str, seconds: int) -> None:
        until = clock.now() + seconds * clock.SECOND
        await self._db.write(lambda tx: tx.execute(_SET, key, value, until))

    async def remove(self, key: str) -> None:
        await self._db.write(lambda tx: tx.execute("DELETE FROM repeats WHERE key = $1", key))

    async def close(self) -> None:
        """Do nothing: the database outlives the store."""


async def prune(tx: Transaction, before: int) -> None:
    """Remove the keys that expired before a timestamp."""
    await tx.execute("DELETE FROM repeats WHERE until < $1", before)
