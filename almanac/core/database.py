"""The database protocols, implemented by `db/sqlite.py` and `db/postgres.py`.

SQL is written once, in the subset that both databases accept, with `$1`, `$2` … for parameters. Timestamps are
integers (microseconds since 1970, see `core/clock.py`), documents without a fixed schema are JSON text, and truth
values are 0 and 1. Both databases therefore return the same Python values.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

Value = str | int | float | bytes | None
T = TypeVar("T")


class Row(Protocol):
    """One row; columns by name or by position."""

    def __getitem__(self, key: str | int, /) -> Any: ...
    def keys(self) -> Any: ...


class Reader(Protocol):
    """A database or a transaction, for queries."""

    async def fetch(self, sql: str, *args: Value) -> list[Row]: ...
    async def fetch_one(self, sql: str, *args: Value) -> Row | None: ...


class Transaction(Reader, Protocol):
    """A write in progress. It becomes visible and durable as a whole, or not at all.

    A statement that fails makes the whole transaction fail, even if the body catches the error. To continue after a
    duplicate, write ON CONFLICT in the statement.
    """

    dialect: str  # the dialect of the database

    async def execute(self, sql: str, *args: Value) -> int:
        """Run one statement. Returns the number of affected rows."""
        ...

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None: ...

    async def insert_many(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        """Add rows with the least cost for this database. For bulk data such as the audit trail."""
        ...


class Database(Reader, Protocol):
    """An open database."""

    dialect: str  # "sqlite" or "postgres": for db/, jobs/queue.py and search/index_* only

    def commit_version(self) -> bytes | None:
        """A value that changes with each commit by any process; None if reading it costs as much as a query."""
        ...

    async def scan(self, sql: str, *args: Value) -> list[Row]:
        """Like `fetch`, for a query that may take longer than about 5 ms. It does not block the event loop."""
        ...

    async def write(self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `body` in one transaction. When this returns, the effect is durable.

        The body may await only its transaction. It may run again after a conflict, so it must have no effect outside
        the database.
        """
        ...

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        """Hold a lock that one process at a time can have, for migrations and the first start."""
        ...

    async def pool_stats(self) -> dict[str, int]:
        """Numbers of open and idle connections and of waiting writes, for metrics."""
        ...

    async def close(self) -> None: ...
