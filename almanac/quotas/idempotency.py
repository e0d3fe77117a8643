"""Repeats: calls that are sent once more because nobody knows whether the first arrived.

The first caller under a key says what its call will come to, such as the id of what it is about to store; for a while,
whoever comes with the same key is told that instead of what they said. The seam is where this is kept: in Redis, or in
the database. One that cannot be asked refuses, for then the same thing might be done twice.
"""

from typing import Protocol

from almanac.core import clock
from almanac.core.database import Database, Transaction

_CLAIM = """
INSERT INTO repeats (key, value, until) VALUES ($1, $2, $4) ON CONFLICT (key) DO UPDATE SET
    value = CASE WHEN repeats.until <= $3 THEN excluded.value ELSE repeats.value END,
    until = CASE WHEN repeats.until <= $3 THEN excluded.until ELSE repeats.until END
RETURNING value
"""


class IdempotencyStore(Protocol):
    """Remembers what calls come to."""

    async def get_or_set(self, key: str, value: str, seconds: int) -> str:
        """The value under a key: this one, if nobody has claimed the key within so many seconds."""
        ...

    async def get(self, key: str) -> str | None:
        """The value under a key that somebody has claimed."""
        ...

    async def close(self) -> None: ...


class DatabaseIdempotencyStore:
    """Kept in the database: for every process that shares it."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def get_or_set(self, key: str, value: str, seconds: int) -> str:
        now = clock.now()
        row = await self._db.write(lambda tx: tx.fetch_one(_CLAIM, key, value, now, now + seconds * clock.SECOND))
        assert row is not None
        return row["value"]

    async def get(self, key: str) -> str | None:
        row = await self._db.fetch_one("SELECT value FROM repeats WHERE key = $1 AND until > $2", key, clock.now())
        return None if row is None else row["value"]

    async def close(self) -> None:
        """Nothing is held: the database is whoever's opened it."""


async def prune(tx: Transaction, before: int) -> None:
    """Forget calls whose time was over before a moment."""
    await tx.execute("DELETE FROM repeats WHERE until < $1", before)
