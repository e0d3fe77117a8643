"""Caches query results until the next commit by any process.

`Database.commit_version` detects commits. On a database without it (PostgreSQL) nothing is cached. A stale value is
never returned. The absence of a value is not cached: otherwise a caller could fill the cache with invented names.
"""

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from almanac.core.database import Database

T = TypeVar("T")

MAX_CACHED_VALUES = 10_000  # without writes the cache is never cleared; this limits its memory


class ReadCache:
    """Query results by key."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._version: bytes | None = None
        self._values: dict[Hashable, Any] = {}

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """The cached value of a key, or the result of `read` if there is none since the last commit."""
        version = self._db.commit_version()
        if version is None:
            return await read()
        if version != self._version or len(self._values) > MAX_CACHED_VALUES:
            self._version, self._values = version, {}
        if key in self._values:
            return self._values[key]
        values = self._values  # of this version, even if a commit happens during the read
        value = await read()
        if value is not None:
            values[key] = value
        return value
