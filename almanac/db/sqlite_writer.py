"""The writer thread of SQLite, which commits in groups.

The thread takes queued writes, one of each organisation in turn. It runs each body in its own savepoint inside one
transaction, and commits once. One fsync then serves many writes, and no caller receives a result before it.
"""

import asyncio
import contextvars
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from almanac.core.database import Row, Transaction, Value
from almanac.core.fair_slots import ORG_ID
from almanac.db.errors import ConstraintConflict, DatabaseError, DatabaseFull, StatementRejected
from almanac.db.sqlite_connection import STATEMENT_ERRORS, connect, numbered, translate

T = TypeVar("T")

MAX_WRITES_PER_COMMIT = 256
MAX_BATCH_SECONDS = 0.05  # then the batch is committed; this limits how long the first body waits for the last
MAX_SHARED_BATCH_SECONDS = 0.01  # the same for a batch of several organisations
MAX_KNOWN_ORGS = 1_000  # whose usual time of a body is remembered
ROWS_PER_INSERT = 200  # with 11 columns that is 2,200 parameters; SQLite takes 32,766

_ONLY_STATEMENTS = "a transaction may await nothing but its own statements"


class SqliteTransaction:
    """The transaction of one body, on the connection of the writer thread.

    A statement that fails makes the transaction fail, even if the body catches the error. PostgreSQL works that way,
    and both databases must behave alike.
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
        return max(self._run(sql, args)[1], 0)  # -1 means "does not apply", as for CREATE TABLE

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        self._guarded(lambda: self._connection.executemany(numbered(sql), rows))

    async def insert_many(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        # Many rows per statement cost half, and SQLite releases the interpreter lock for the event loop meanwhile.
        one = f"({', '.join('?' * len(columns))})"

        def insert() -> None:
            for start in range(0, len(rows), ROWS_PER_INSERT):
                part = rows[start : start + ROWS_PER_INSERT]
                values = ", ".join([one] * len(part))
                sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {values}"  # noqa: S608 - names of our own
                self._connection.execute(sql, tuple(chain.from_iterable(part)))

        self._guarded(insert)

    def _run(self, sql: str, args: Sequence[Value]) -> tuple[list[Row], int]:
        def run() -> tuple[list[Row], int]:
            cursor = self._connection.execute(numbered(sql), args)
            rows = cursor.fetchall()  # with RETURNING, rowcount is known only after the last row
            return rows, cursor.rowcount

        return self._guarded(run)

    def _guarded(self, statement: Callable[[], T]) -> T:
        if self.failure is not None:
            raise StatementRejected("this transaction has already failed") from self.failure
        try:
            return statement()
        except STATEMENT_ERRORS as error:
            self.failure = translate(error)
            raise self.failure from None


class PendingWrite:
    """A write in the queue, and the future of its caller."""

    def __init__(self, body: Callable[[Transaction], Awaitable[Any]]) -> None:
        self.body = body
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.context = contextvars.copy_context()  # log lines of the body then carry the caller's request id
        self.org_id = ORG_ID.get()
        self.result: Any = None
        self.error: BaseException | None = None

    def resolve(self) -> None:
        """On the caller's loop: deliver the outcome, unless the caller was cancelled."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class SqliteWriter:
    """The only thread that writes. Organisations take turns: each commit begins with the first write of each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: SimpleQueue[PendingWrite | None] = SimpleQueue()
        self._turns: dict[str, deque[PendingWrite]] = {}  # of organisations in the order of their turns, for the thread
        self._usual_seconds: dict[str, float] = {}  # of the latest bodies of each organisation
        self._stopping = False
        self._started: SimpleQueue[sqlite3.Error | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="sqlite-writer", daemon=True)
        self._thread.start()
        if failure := self._started.get():
            raise failure

    def put(self, pending: PendingWrite) -> None:
        self._queue.put(pending)

    def waiting(self) -> int:
        return self._queue.qsize() + sum(map(len, list(self._turns.values())))

    def stop(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _loop(self) -> None:
        # The connection is opened in this thread, so sqlite3 itself refuses a transaction in another one.
        try:
            connection = connect(self._path, read_only=False)
        except sqlite3.Error as error:
            self._started.put(error)
            return
        self._started.put(None)
        while batch := self._next_batch():
            left: list[PendingWrite] = []
            try:
                _commit_together(connection, batch, left, self._usual_seconds)
            except BaseException as error:  # noqa: BLE001 an error of a body must not end the thread
                _fail(batch, error)
                _roll_back(connection)
            _deliver(batch)
            self._take_back(left)
        connection.close()

    def _next_batch(self) -> list[PendingWrite]:
        """Wait for a write, then take turns through all organisations. An empty batch ends the thread."""
        batch: list[PendingWrite] = []
        while not batch and (self._turns or not self._stopping):
            self._receive()
            while self._turns and len(batch) < MAX_WRITES_PER_COMMIT:
                for org_id in list(self._turns):
                    writes = self._turns.pop(org_id)
                    pending = writes.popleft()
                    if writes:
                        self._turns[org_id] = writes  # behind the others
                    if not pending.future.cancelled():
                        batch.append(pending)
        return batch

    def _take_back(self, left: list[PendingWrite]) -> None:
        """Put writes back into the queue. Their organisations are next, in the order in which they would have run."""
        turns: dict[str, deque[PendingWrite]] = {}
        for pending in left:
            turns.setdefault(pending.org_id, deque()).append(pending)
        for org_id, writes in self._turns.items():
            turns.setdefault(org_id, deque()).extend(writes)
        self._turns = turns

    def _receive(self) -> None:
        """Sort the queue by organisation; wait if there is nothing to do."""
        with suppress(Empty):
            item = self._queue.get_nowait() if self._turns or self._stopping else self._queue.get()
            while True:
                if item is None:
                    self._stopping = True
                else:
                    self._turns.setdefault(item.org_id, deque()).append(item)
                item = self._queue.get_nowait()


def _commit_together(
    connection: sqlite3.Connection, batch: list[PendingWrite], left: list[PendingWrite], usual: dict[str, float]
) -> None:
    """Run the bodies in one transaction. If one of them prevents the commit, run each in its own transaction.

    If the first bodies take long, or the next one usually does, the others move from `batch` to `left`.
    """
    problem = _commit(connection, batch, left, usual)
    if problem is None:
        return
    _roll_back(connection)
    if len(batch) > 1 and isinstance(problem, DatabaseFull | ConstraintConflict):
        for pending in batch:
            _commit_together(connection, [pending], left, usual)
    else:
        _fail(batch, problem)


def _commit(
    connection: sqlite3.Connection, batch: list[PendingWrite], left: list[PendingWrite], usual: dict[str, float]
) -> DatabaseError | None:
    """Run the bodies and commit. Returns the error that prevented the commit."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        is_shared = any(pending.org_id != batch[0].org_id for pending in batch)
        ends = time.monotonic() + min(MAX_BATCH_SECONDS, MAX_SHARED_BATCH_SECONDS if is_shared else MAX_BATCH_SECONDS)
        for number, pending in enumerate(batch):
            begun = time.monotonic()
            if number and begun + (usual.get(pending.org_id, 0.0) if is_shared else 0.0) > ends:
                left += batch[number:]
                del batch[number:]
                break
            pending.result = pending.error = None
            _run_body(connection, pending)
            _note_seconds(usual, pending.org_id, time.monotonic() - begun)
            if not connection.in_transaction:
                # On a full disk SQLite may roll back the whole transaction, the earlier bodies included.
                return DatabaseFull("the transaction was rolled back")
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        return translate(error)
    return None


def _note_seconds(usual: dict[str, float], org_id: str, seconds: float) -> None:
    """Remember the mean time of an organisation's latest bodies."""
    usual[org_id] = (usual.pop(org_id, seconds) + seconds) / 2
    if len(usual) > MAX_KNOWN_ORGS:
        del usual[next(iter(usual))]


def _run_body(connection: sqlite3.Connection, pending: PendingWrite) -> None:
    connection.execute("SAVEPOINT body")
    transaction = SqliteTransaction(connection)
    try:
        pending.result = pending.context.run(_run_without_loop, pending.body, transaction)
        if transaction.failure is not None:
            raise transaction.failure
    except BaseException as error:  # noqa: BLE001 the error goes to the caller, not to the writer
        pending.error = error
        if connection.in_transaction:
            connection.execute("ROLLBACK TO body")
    if connection.in_transaction:
        connection.execute("RELEASE body")


def _run_without_loop(body: Callable[[Transaction], Awaitable[T]], transaction: Transaction) -> T:
    """Run a coroutine that never suspends, without an event loop."""
    steps = body(transaction).__await__()
    try:
        next(steps)
    except StopIteration as done:
        return cast(T, done.value)
    except RuntimeError as error:
        if str(error) == "no running event loop":  # the message of asyncio's functions
            raise RuntimeError(_ONLY_STATEMENTS) from error
        raise
    close = getattr(steps, "close", None)
    if close is not None:
        close()
    raise RuntimeError(_ONLY_STATEMENTS)


def _fail(batch: list[PendingWrite], error: BaseException) -> None:
    for pending in batch:
        pending.error = pending.error or error


def _deliver(batch: list[PendingWrite]) -> None:
    """Wake each loop once per batch, not once per write: waking is a system call."""
    for loop in {pending.loop for pending in batch}:
        with suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(_resolve, [pending for pending in batch if pending.loop is loop])


def _resolve(batch: list[PendingWrite]) -> None:
    for pending in batch:
        pending.resolve()


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
