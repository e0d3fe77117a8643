"""What every slice may ask of a database: the seam that `db/sqlite.py` and `db/postgres.py` implement.

SQL is written once, in the subset both understand, with `$1`, `$2` … for parameters. Moments are integers
(microseconds since 1970, see `core/clock.py`), documents of no fixed shape are JSON text, and truth values
are 0 and 1, so that both databases return the same Python values.
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
    """Something that answers queries."""

    async def fetch(self, sql: str, *args: Value) -> list[Row]: ...
    async def fetch_one(self, sql: str, *args: Value) -> Row | None: ...


class Transaction(Reader, Protocol):
    """A write in progress. It becomes visible and durable as a whole, or not at all.

    A statement that fails dooms it, even if the body catches the error. To go on after a duplicate, say
    ON CONFLICT in the statement.
    """

    dialect: str  # as the database's

    async def execute(self, sql: str, *args: Value) -> int:
        """Run one statement; the number of rows it touched."""
        ...

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None: ...

    async def insert_many(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        """Add rows as cheaply as the database can: for the audit trail and whatever else comes by the thousand."""
        ...


class Database(Reader, Protocol):
    """One of the two backends, open."""

    dialect: str  # "sqlite" or "postgres": for db/, jobs/queue.py and search/index_* only

    def commit_version(self) -> bytes | None:
        """A value that is another one after any commit by anyone; None where telling costs as much as a read."""
        ...

    async def scan(self, sql: str, *args: Value) -> list[Row]:
        """Like `fetch`, for a query that may take longer than about 5 ms: never on the event loop itself."""
        ...

    async def write(self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `body` in one transaction; when this returns, its effect is durable.

        The body may await nothing but its transaction and may be run again after a conflict, so it must have
        no effect outside the database.
        """
        ...

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        """Hold a lock that at most one process has at a time, for migrations and first-start set-up."""
        ...

    async def pool_stats(self) -> dict[str, int]:
        """Connections open and idle, writes waiting: for metrics."""
        ...

    async def close(self) -> None: ...
