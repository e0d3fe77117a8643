"""PostgreSQL through asyncpg, for installations with several processes."""

import asyncio
import hashlib
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from almanac.core.database import Row, Transaction, Value
from almanac.core.fair_slots import FairSlots
from almanac.db.errors import ConstraintConflict, DatabaseError, DatabaseFull, DatabaseUnavailable, StatementRejected

T = TypeVar("T")

ATTEMPTS = 5
BACKOFF_SECONDS = 0.01
CONNECT_SECONDS = 10
LOCK_POLL_SECONDS = 0.1
READ_SECONDS = 30.0
LONG_SECONDS = 3600.0  # for scans and statements of a transaction, which may build an index

_SESSION = {"application_name": "almanac", "jit": "off"}  # compiling takes longer than our queries
_KEY_COLUMNS = re.compile(r"^Key \((.+?)\)=")
_LOST_MESSAGE = re.compile("clos|released back")  # only the message distinguishes a lost connection from misuse
_DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
_CONFLICTS = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidCachedStatementError,  # another process migrated the schema of our prepared statements
    asyncpg.OutdatedSchemaCacheError,
)
_LOST_CONNECTIONS = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.InternalClientError,  # asyncpg's error when the server has closed an idle connection
    ConnectionError,
)
_UNAVAILABLE = (
    asyncpg.OperatorInterventionError,
    asyncpg.LockNotAvailableError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    OSError,
)


class _Connection(Protocol):
    """The used part of asyncpg's connection, which has no types of its own."""

    async def fetch(self, sql: str, *args: Value, timeout: float | None = None) -> list[Row]: ...
    async def fetchrow(self, sql: str, *args: Value, timeout: float | None = None) -> Row | None: ...
    async def execute(self, sql: str, *args: Value, timeout: float | None = None) -> str: ...
    async def executemany(self, sql: str, rows: Sequence[Sequence[Value]], *, timeout: float | None = None) -> None: ...
    async def copy_records_to_table(
        self, table: str, *, columns: Sequence[str], records: Sequence[Sequence[Value]], timeout: float | None = None
    ) -> str: ...
    def transaction(self) -> "_DriverTransaction": ...
    async def close(self) -> None: ...
    def terminate(self) -> None: ...


class _DriverTransaction(Protocol):
    async def start(self) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


class _Pool(Protocol):
    def acquire(self, *, timeout: float | None = None) -> AbstractAsyncContextManager[_Connection]: ...
    def get_size(self) -> int: ...
    def get_idle_size(self) -> int: ...
    async def close(self) -> None: ...


# Nothing was changed, and a retry may succeed, as after a lost connection.
class _RetryableError(DatabaseUnavailable):
    __doc__ = DatabaseUnavailable.__doc__  # the message for callers


# The transaction conflicted with another one; the connection still works.
class _WriteConflict(_RetryableError):
    __doc__ = DatabaseUnavailable.__doc__


class PostgresDatabase:
    """A pool of connections to one database. Create it with `open`, not directly."""

    dialect = "postgres"

    def __init__(self, url: str, pool: _Pool, size: int) -> None:
        self._url = url
        self._pool = pool
        # One organisation has less than half of the connections, because its queries share the processors of the
        # database with those of the others.
        of_one = max(1, 2 * size // 5)
        self._slots = FairSlots(of_one, size - of_one)
        self._waiting = 0

    @classmethod
    async def open(cls, url: str, size: int = 10) -> "PostgresDatabase":
        with _translating:
            pool: Any = await asyncpg.create_pool(  # pyright: ignore[reportUnknownMemberType]
                url, min_size=1, max_size=size, timeout=CONNECT_SECONDS, server_settings=_SESSION, reset=_keep
            )
        return cls(url, cast(_Pool, pool), size)

    async def fetch(self, sql: str, *args: Value) -> list[Row]:
        return await self._query(lambda connection: connection.fetch(sql, *args, timeout=READ_SECONDS))

    async def fetch_one(self, sql: str, *args: Value) -> Row | None:
        return await self._query(lambda connection: connection.fetchrow(sql, *args, timeout=READ_SECONDS))

    def commit_version(self) -> bytes | None:
        return None

    async def scan(self, sql: str, *args: Value) -> list[Row]:
        return await self._query(lambda connection: connection.fetch(sql, *args, timeout=LONG_SECONDS))

    async def write(self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        self._waiting += 1
        try:
            return await _retry(lambda: self._transact(body))
        finally:
            self._waiting -= 1

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncGenerator[None]:
        # A separate connection: one of the pool would be missing for the queries under the lock. If it is lost, the
        # lock is released.
        with _translating:
            connection = cast(
                _Connection,
                await asyncpg.connect(self._url, timeout=CONNECT_SECONDS, server_settings=_SESSION),  # pyright: ignore[reportUnknownMemberType]
            )
        try:
            # The lock is polled: a waiting statement keeps a snapshot, for which CREATE INDEX CONCURRENTLY waits.
            with _translating:
                while not await _try_lock(connection, name):  # noqa: ASYNC110 another process releases it
                    await asyncio.sleep(LOCK_POLL_SECONDS)
            yield
        finally:
            with suppress(*_DRIVER_ERRORS):  # a lost connection has released the lock already
                await connection.close()

    async def pool_stats(self) -> dict[str, int]:
        return {"open": self._pool.get_size(), "idle": self._pool.get_idle_size(), "waiting": self._waiting}

    async def close(self) -> None:
        await self._pool.close()

    async def _query(self, query: Callable[[_Connection], Awaitable[T]]) -> T:
        async def run() -> T:
            async with self._borrow() as connection:
                with _translating:
                    return await query(connection)

        return await _retry(run)

    async def _transact(self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        async with self._borrow() as connection:
            return await _run_body(connection, body)

    @asynccontextmanager
    async def _borrow(self) -> AsyncGenerator[_Connection]:
        async with self._slots.hold():
            borrowed = self._pool.acquire(timeout=CONNECT_SECONDS)
            with _translating:
                connection = await borrowed.__aenter__()
            try:
                yield connection
            except DatabaseUnavailable as error:
                if not isinstance(error, _WriteConflict):
                    _discard(connection)
                raise
            finally:
                with suppress(*_DRIVER_ERRORS):  # the pool drops a connection it cannot take back; a commit stays valid
                    await borrowed.__aexit__(None, None, None)


class _Transaction:
    """The transaction of one body. It stores the error of a failed statement. PostgreSQL turns the COMMIT after it into
    a silent ROLLBACK, so a body that caught the error would otherwise appear to succeed."""

    dialect = "postgres"

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.failure: DatabaseError | None = None

    async def fetch(self, sql: str, *args: Value) -> list[Row]:
        return await self._run(lambda: self._connection.fetch(sql, *args, timeout=LONG_SECONDS))

    async def fetch_one(self, sql: str, *args: Value) -> Row | None:
        return await self._run(lambda: self._connection.fetchrow(sql, *args, timeout=LONG_SECONDS))

    async def execute(self, sql: str, *args: Value) -> int:
        status = await self._run(lambda: self._connection.execute(sql, *args, timeout=LONG_SECONDS))
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        await self._run(lambda: self._connection.executemany(sql, rows, timeout=LONG_SECONDS))

    async def insert_many(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        copy = self._connection.copy_records_to_table
        await self._run(lambda: copy(table, columns=columns, records=rows, timeout=LONG_SECONDS))

    async def _run(self, statement: Callable[[], Awaitable[T]]) -> T:
        try:
            with _translating:
                return await statement()
        except DatabaseError as error:
            self.failure = self.failure or error
            raise


async def _retry(action: Callable[[], Awaitable[T]]) -> T:
    """Repeat an action after a conflict or a lost connection, a few times. After a restart of the server every
    connection in the pool is dead; the pauses let the pool detect that."""
    for attempt in range(1, ATTEMPTS):
        try:
            return await action()
        except _RetryableError:
            await asyncio.sleep(random.uniform(0, BACKOFF_SECONDS * 2**attempt))  # noqa: S311
    return await action()


async def _run_body(connection: _Connection, body: Callable[[Transaction], Awaitable[T]]) -> T:
    with _translating:
        outer = connection.transaction()
        await outer.start()
    inner = _Transaction(connection)
    try:
        result = await body(inner)
        if inner.failure is not None:
            raise inner.failure
    except BaseException:
        await _roll_back(outer)
        raise
    await _commit(outer)
    return result


async def _roll_back(transaction: _DriverTransaction) -> None:
    # If this fails, the connection is lost and the transaction with it. The first error is the one to report.
    with suppress(*_DRIVER_ERRORS):
        await transaction.rollback()


async def _commit(transaction: _DriverTransaction) -> None:
    try:
        await transaction.commit()
    except _DRIVER_ERRORS as error:
        if isinstance(error, _CONFLICTS):
            raise _WriteConflict(_headline(error)) from None
        problem = _translate(error)
        if isinstance(problem, _RetryableError):
            # Not retried: the server may have committed before the connection was lost.
            problem = DatabaseUnavailable("the connection was lost during a commit; it may or may not have happened")
        raise problem from None


def _discard(connection: _Connection) -> None:
    """Close a failed connection. The pool would otherwise reuse it until its socket closes."""
    with suppress(*_DRIVER_ERRORS):
        connection.terminate()


async def _keep(connection: object) -> None:
    """Reset nothing: no session state is changed, and asyncpg's default costs a round trip per release."""


async def _try_lock(connection: _Connection, name: str) -> bool:
    row = await connection.fetchrow("SELECT pg_try_advisory_lock($1) AS is_held", _lock_number(name))
    return row is not None and bool(row["is_held"])


def _lock_number(name: str) -> int:
    digest = hashlib.sha256(f"almanac:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class _Translating:
    """`with _translating:` around calls of the driver turns its errors into those of `db/errors.py`."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, _DRIVER_ERRORS):
            raise _translate(error) from None


_translating = _Translating()


def _translate(error: BaseException) -> DatabaseError:
    if isinstance(error, asyncpg.InterfaceError):
        return _translate_interface(error)
    if isinstance(error, asyncpg.IntegrityConstraintViolationError):
        return _translate_integrity(error)
    text = _headline(error)
    if isinstance(error, _CONFLICTS):
        return _WriteConflict(text)
    if isinstance(error, _LOST_CONNECTIONS):
        return _RetryableError(text)
    if isinstance(error, asyncpg.DiskFullError | asyncpg.ReadOnlySQLTransactionError):
        return DatabaseFull(text)
    if isinstance(error, _UNAVAILABLE):
        return DatabaseUnavailable(text)
    return StatementRejected(text)


def _headline(error: BaseException) -> str:
    """The message of an error without its detail, which quotes stored values."""
    if isinstance(error, asyncpg.DataError):
        return f"a value cannot be stored ({type(error).__name__})"
    if isinstance(error, TimeoutError) and not str(error):
        return "the database did not answer in time"
    return str(getattr(error, "message", None) or error)


def _translate_interface(error: asyncpg.InterfaceError) -> DatabaseError:
    if isinstance(error, ValueError) and not isinstance(error, asyncpg.ClientConfigurationError):
        return StatementRejected("a value does not fit the type of its parameter")
    if _LOST_MESSAGE.search(str(error)):
        return _RetryableError(str(error))
    return StatementRejected(str(error))


def _translate_integrity(error: asyncpg.IntegrityConstraintViolationError) -> DatabaseError:
    kinds = {"23505": "unique", "23503": "foreign", "23P01": "unique"}
    untyped = cast(Any, error)
    kind = kinds.get(untyped.sqlstate)
    if kind is None:
        return StatementRejected(str(untyped.message))
    match = _KEY_COLUMNS.match(untyped.detail or "")
    columns = tuple(name.strip() for name in match[1].split(",")) if match else ()
    return ConstraintConflict(kind, table=untyped.table_name, columns=columns, constraint=untyped.constraint_name)
