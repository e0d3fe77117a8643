"""SQLite in WAL mode: the embedded default.

Short indexed reads run on the caller's own thread, because a hop to another thread costs fifty times the read.
Long ones (`scan`) run in a few reader threads. All writes go through one writer thread which commits in groups:
it takes what has queued up, runs every body in its own savepoint inside one transaction, and commits once. One
fsync then pays for many writes, and no caller hears of success before it.
"""

import asyncio
import contextvars
import fcntl
import os
import re
import sqlite3
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from almanac.core.database import Row, Transaction, Value
from almanac.db.errors import ConstraintConflict, DatabaseError, DatabaseFull, DatabaseUnavailable, StatementRejected
from almanac.db.wal_index import WalIndex

T = TypeVar("T")

MAX_WRITES_PER_COMMIT = 256  # bodies per commit: bounds how long the first of a group waits for the last
SCAN_THREADS = 4
BUSY_SECONDS = 10.0
LOCK_POLL_SECONDS = 0.02

_PRAGMAS = (
    f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}",
    "PRAGMA synchronous = FULL",  # in WAL mode NORMAL may lose acknowledged commits when the power goes
    "PRAGMA foreign_keys = ON",
    "PRAGMA journal_size_limit = 67108864",  # a burst must not leave a huge WAL behind for ever
)
_REMEMBERING = ("PRAGMA cache_size = -16384", "PRAGMA mmap_size = 67108864")  # both count as memory of this process
_FORGETFUL = ("PRAGMA cache_size = -2048",)  # a scan comes by most pages once
ROWS_AT_ONCE = 200  # of 11 columns that is 2,200 parameters; SQLite takes 32,766
_KEY_COLUMNS = re.compile(r"^UNIQUE constraint failed: (?!index )(.+)$")
_ONLY_STATEMENTS = "a transaction may await nothing but its own statements"
_ROOMLESS = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}
_ABSENT = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_PROTOCOL,
}
_UNUSABLE = (sqlite3.Error, OverflowError, UnicodeEncodeError)  # what a statement can raise, bad values included


class SqliteDatabase:
    """One database file, open. Create it with `open`, not directly."""

    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _connect(path, read_only=True)
        self._writer = _Writer(path)
        self._scanners: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        for _ in range(SCAN_THREADS):
            self._scanners.put(_connect(path, read_only=True, more=_FORGETFUL))
        self._threads = ThreadPoolExecutor(SCAN_THREADS, thread_name_prefix="sqlite-scan")
        self._index = WalIndex(path)
        self._closed = False

    @classmethod
    async def open(cls, path: str | Path) -> "SqliteDatabase":
        """Open the file, creating it and its folder where there is none."""
        path = Path(path)
        try:
            _create(path)
            async with _file_lock(path, "open"):  # two processes switching to WAL at once fail, not wait
                _switch_to_wal(path)
            return cls(path)
        except (sqlite3.Error, OSError) as error:
            raise _translate(error, str(path)) from None

    async def fetch(self, sql: str, *args: Value) -> list[Row]:
        # fetchall() runs the statement to its end, so that no read transaction is left to pin the WAL.
        try:
            return self._reader.execute(_numbered(sql), args).fetchall()
        except _UNUSABLE as error:
            raise _translate(error) from None

    async def fetch_one(self, sql: str, *args: Value) -> Row | None:
        try:
            cursor = self._reader.execute(_numbered(sql), args)
            row = cursor.fetchone()
            cursor.close()  # ends the read where more rows were left
            return row
        except _UNUSABLE as error:
            raise _translate(error) from None

    def commit_version(self) -> bytes | None:
        if self._closed:
            raise DatabaseUnavailable("the database is closed")
        return self._index.version()

    async def scan(self, sql: str, *args: Value) -> list[Row]:
        if self._closed:
            raise DatabaseUnavailable("the database is closed")
        scan = _Scan(self._scanners, sql, args)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, scan.run)
        except asyncio.CancelledError:
            scan.interrupt()
            raise
        except _UNUSABLE as error:
            raise _translate(error) from None

    async def write(self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        if self._closed:
            raise DatabaseUnavailable("the database is closed")
        pending = _Pending(body)
        self._writer.put(pending)
        return await pending.future

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        return _file_lock(self.path, name)

    async def pool_stats(self) -> dict[str, int]:
        return {"open": SCAN_THREADS + 2, "idle": self._scanners.qsize(), "waiting": self._writer.waiting()}

    async def close(self) -> None:
        """Finish what was asked for, then close the file."""
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._stop)
        self._reader.close()
        self._index.close()

    def _stop(self) -> None:
        self._threads.shutdown(wait=True)
        with suppress(Empty):
            while True:
                self._scanners.get_nowait().close()
        self._writer.stop()


class _Transaction:
    """One body's view of the writer's connection; used in the writer thread only.

    A statement that fails dooms the transaction, even if the body catches the error. PostgreSQL works that way,
    and the two must agree.
    """

    dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.failure: DatabaseError | None = None

    async def fetch(self, sql: str, *args: Value) -> list[Row]:
        return self._run(sql, args)[0]

    async def fetch_one(self, sql: str, *args: Value) -> Row | None:
        rows = self._run(sql, args)[0]
        return rows[0] if rows else None

    async def execute(self, sql: str, *args: Value) -> int:
        return max(self._run(sql, args)[1], 0)  # -1 stands for "does not apply", as in CREATE TABLE

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        self._check()
        try:
            self._connection.executemany(_numbered(sql), rows)
        except _UNUSABLE as error:
            self.failure = _translate(error)
            raise self.failure from None

    async def insert_many(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        # Many rows to a statement: half the cost, and the interpreter is free for the event loop in the meantime.
        self._check()
        one = f"({', '.join('?' * len(columns))})"
        try:
            for start in range(0, len(rows), ROWS_AT_ONCE):
                part = rows[start : start + ROWS_AT_ONCE]
                values = ", ".join([one] * len(part))
                sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {values}"  # noqa: S608 - names of our own
                self._connection.execute(sql, tuple(chain.from_iterable(part)))
        except _UNUSABLE as error:
            self.failure = _translate(error)
            raise self.failure from None

    def _run(self, sql: str, args: Sequence[Value]) -> tuple[list[Row], int]:
        self._check()
        try:
            cursor = self._connection.execute(_numbered(sql), args)
            rows = cursor.fetchall()  # with RETURNING, rowcount is known only after the last row
        except _UNUSABLE as error:
            self.failure = _translate(error)
            raise self.failure from None
        return rows, cursor.rowcount

    def _check(self) -> None:
        if self.failure is not None:
            raise StatementRejected("this transaction has already failed") from self.failure


class _Pending:
    """A write waiting for its turn, and where its caller waits."""

    def __init__(self, body: Callable[[Transaction], Awaitable[Any]]) -> None:
        self.body = body
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.context = contextvars.copy_context()  # so that what the body logs carries the caller's request id
        self.result: Any = None
        self.error: BaseException | None = None

    def resolve(self) -> None:
        """On the caller's loop: hand over the outcome, unless the caller has gone."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class _Writer:
    """The one thread that writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: SimpleQueue[_Pending | None] = SimpleQueue()
        self._started: SimpleQueue[sqlite3.Error | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="sqlite-writer", daemon=True)
        self._thread.start()
        if failure := self._started.get():
            raise failure

    def put(self, pending: _Pending) -> None:
        self._queue.put(pending)

    def waiting(self) -> int:
        return self._queue.qsize()

    def stop(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _loop(self) -> None:
        # Opened here, so that sqlite3's own check catches a transaction used outside this thread.
        try:
            connection = _connect(self._path, read_only=False)
        except sqlite3.Error as error:
            self._started.put(error)
            return
        self._started.put(None)
        stopping = False
        while not stopping:
            batch, stopping = self._gather()
            try:
                _commit_together(connection, batch)
            except BaseException as error:  # noqa: BLE001 the writer must outlive any body; callers get the error
                _fail(batch, error)
                _roll_back(connection)
            _answer(batch)
        connection.close()

    def _gather(self) -> tuple[list[_Pending], bool]:
        """Wait for one write, then take whatever else is there; and whether the end was reached."""
        batch: list[_Pending] = []
        item = self._queue.get()
        while item is not None:
            if not item.future.cancelled():
                batch.append(item)
            if len(batch) == MAX_WRITES_PER_COMMIT:
                return batch, False
            try:
                item = self._queue.get_nowait()
            except Empty:
                return batch, False
        return batch, True


class _Scan:
    """A query in a reader thread, which its caller can interrupt."""

    def __init__(self, idle: SimpleQueue[sqlite3.Connection], sql: str, args: Sequence[Value]) -> None:
        self._idle, self._sql, self._args = idle, sql, args
        self._connection: sqlite3.Connection | None = None
        self._cancelled = False
        self._lock = threading.Lock()

    def run(self) -> list[Row]:
        connection = self._idle.get()  # there are as many connections as threads: this never waits
        try:
            with self._lock:
                if self._cancelled:
                    return []
                self._connection = connection
            return connection.execute(_numbered(self._sql), self._args).fetchall()
        finally:
            with self._lock:  # after this, interrupt() cannot hit the connection's next user
                self._connection = None
            self._idle.put(connection)

    def interrupt(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._connection is not None:
                self._connection.interrupt()


def _commit_together(connection: sqlite3.Connection, batch: list[_Pending]) -> None:
    """Run the bodies in one transaction. Where the whole is refused for one's sake, each gets its own."""
    problem = _commit(connection, batch) if batch else None
    if problem is None:
        return
    _roll_back(connection)
    if len(batch) > 1 and isinstance(problem, DatabaseFull | ConstraintConflict):
        for pending in batch:
            _commit_together(connection, [pending])
    else:
        _fail(batch, problem)


def _commit(connection: sqlite3.Connection, batch: list[_Pending]) -> DatabaseError | None:
    """Run and commit; or what prevented it."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        for pending in batch:
            pending.result = pending.error = None
            _run_body(connection, pending)
            if not connection.in_transaction:
                # SQLite may give up the whole transaction, the bodies before this one included, for want of room.
                return DatabaseFull("the transaction was rolled back")
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        return _translate(error)
    return None


def _run_body(connection: sqlite3.Connection, pending: _Pending) -> None:
    connection.execute("SAVEPOINT body")
    transaction = _Transaction(connection)
    try:
        pending.result = pending.context.run(_run_without_loop, pending.body, transaction)
        if transaction.failure is not None:
            raise transaction.failure
    except BaseException as error:  # noqa: BLE001 a body's error is its caller's, never the writer's
        pending.error = error
        if connection.in_transaction:
            connection.execute("ROLLBACK TO body")
    if connection.in_transaction:
        connection.execute("RELEASE body")


def _run_without_loop(body: Callable[[Transaction], Awaitable[T]], transaction: Transaction) -> T:
    """Run a coroutine that never really waits, without an event loop."""
    steps = body(transaction).__await__()
    try:
        next(steps)
    except StopIteration as done:
        return cast(T, done.value)
    except RuntimeError as error:
        if str(error) == "no running event loop":  # what asyncio's functions say here
            raise RuntimeError(_ONLY_STATEMENTS) from error
        raise
    close = getattr(steps, "close", None)
    if close is not None:
        close()
    raise RuntimeError(_ONLY_STATEMENTS)


def _fail(batch: list[_Pending], error: BaseException) -> None:
    for pending in batch:
        pending.error = pending.error or error


def _answer(batch: list[_Pending]) -> None:
    """Wake each loop once per batch, not once per write: waking is a system call."""
    for loop in {pending.loop for pending in batch}:
        with suppress(RuntimeError):  # the loop has closed: nobody is waiting
            loop.call_soon_threadsafe(_resolve, [pending for pending in batch if pending.loop is loop])


def _resolve(batch: list[_Pending]) -> None:
    for pending in batch:
        pending.resolve()


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


@lru_cache(maxsize=4096)
def _numbered(sql: str) -> str:
    """`$1` as `?1`: to SQLite the first is a name, and binding by name costs a look-up for each value."""
    return re.sub(r"\$(\d+)", r"?\1", sql)


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Never a file that is there: closing any handle on it drops the locks this process holds through SQLite,
    # and another process then writes into a write of ours. That corrupts the file.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))  # digests are for the owner's eyes only


def _switch_to_wal(path: Path) -> None:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
    finally:
        connection.close()


def _connect(path: Path, *, read_only: bool, more: Sequence[str] = _REMEMBERING) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        timeout=BUSY_SECONDS,
        isolation_level=None,  # we say BEGIN and COMMIT ourselves
        check_same_thread=not read_only,
        cached_statements=512,
    )
    connection.row_factory = sqlite3.Row
    for pragma in (*_PRAGMAS, *more):
        connection.execute(pragma).fetchall()
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


@asynccontextmanager
async def _file_lock(path: Path, name: str) -> AsyncGenerator[None]:
    """A lock file beside the database; the operating system drops it when its holder dies."""
    handle = os.open(path.with_name(f"{path.name}.{name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        while not _try_lock(handle):  # noqa: ASYNC110 another process frees it, and can set no event here
            await asyncio.sleep(LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _translate(error: BaseException, where: str = "") -> DatabaseError:
    if isinstance(error, sqlite3.IntegrityError):
        return _translate_integrity(error)
    code = getattr(error, "sqlite_errorcode", None)
    text = f"{where}: {error}" if where else str(error)
    if code is not None and code & 0xFF in _ROOMLESS:
        return DatabaseFull(text)
    if isinstance(error, OSError) or "closed database" in text or (code is not None and code & 0xFF in _ABSENT):
        return DatabaseUnavailable(text)
    if isinstance(error, OverflowError | UnicodeEncodeError | sqlite3.InterfaceError):
        return StatementRejected("a value cannot be stored: too large a number, or text that is not Unicode")
    return StatementRejected(text)


def _translate_integrity(error: sqlite3.IntegrityError) -> DatabaseError:
    if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
        return ConstraintConflict("foreign")
    if error.sqlite_errorcode in {
        sqlite3.SQLITE_CONSTRAINT_UNIQUE,
        sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
        sqlite3.SQLITE_CONSTRAINT_ROWID,
    }:
        return _unique_conflict(str(error))
    return StatementRejected(str(error))


def _unique_conflict(message: str) -> ConstraintConflict:
    match = _KEY_COLUMNS.match(message)
    if match is None:
        return ConstraintConflict("unique")
    names = [name.strip().rpartition(".") for name in match[1].split(",")]
    return ConstraintConflict("unique", table=names[0][0], columns=tuple(name for _, _, name in names))
