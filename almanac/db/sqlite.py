"""SQLite in WAL mode: the embedded default.

Short indexed reads run on the caller's thread, because handing one to another thread costs fifty times the read.
Long reads (`scan`) run in a few reader threads. All writes go through one writer thread (`sqlite_writer.py`).
"""

import asyncio
import fcntl
import os
import sqlite3
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

from almanac.core.database import Row, Transaction, Value
from almanac.core.fair_slots import FairSlots
from almanac.core.loop_turns import pause
from almanac.db.errors import DatabaseUnavailable
from almanac.db.sqlite_connection import BUSY_SECONDS, SMALL_CACHE, STATEMENT_ERRORS, connect, numbered, translate
from almanac.db.sqlite_writer import PendingWrite, SqliteWriter
from almanac.db.wal_index import WalIndex

T = TypeVar("T")

SCAN_THREADS = 2
ADDITIONAL_SCAN_THREADS = 4  # for organisations that have no scan running
LOCK_POLL_SECONDS = 0.02


class SqliteDatabase:
    """One open database file. Create it with `open`, not directly."""

    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = connect(path, read_only=True)
        self._writer = SqliteWriter(path)
        self._scanners = _ScanConnections(path)
        self._scan_slots = FairSlots(SCAN_THREADS, ADDITIONAL_SCAN_THREADS)
        self._threads = ThreadPoolExecutor(SCAN_THREADS + ADDITIONAL_SCAN_THREADS, thread_name_prefix="sqlite-scan")
        self._index = WalIndex(path)
        self._closed = False

    @classmethod
    async def open(cls, path: str | Path) -> "SqliteDatabase":
        """Open the file. A missing file or folder is created."""
        path = Path(path)
        try:
            _create(path)
            async with _file_lock(path, "open"):  # two processes that switch to WAL at once fail, they do not wait
                _switch_to_wal(path)
            return cls(path)
        except (sqlite3.Error, OSError) as error:
            raise translate(error, str(path)) from None

    async def fetch(self, sql: str, *args: Value) -> list[Row]:
        await pause()
        # fetchall() runs the statement to its end. An open read would keep the WAL from being truncated.
        try:
            return self._reader.execute(numbered(sql), args).fetchall()
        except STATEMENT_ERRORS as error:
            raise translate(error) from None

    async def fetch_one(self, sql: str, *args: Value) -> Row | None:
        await pause()
        try:
            cursor = self._reader.execute(numbered(sql), args)
            row = cursor.fetchone()
            cursor.close()  # ends the read if rows are left
            return row
        except STATEMENT_ERRORS as error:
            raise translate(error) from None

    def commit_version(self) -> bytes | None:
        self._require_open()
        return self._index.version()

    async def scan(self, sql: str, *args: Value) -> list[Row]:
        self._require_open()
        scan = _Scan(self._scanners, sql, args)
        async with self._scan_slots.hold():
            self._require_open()
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, scan.run)
            except asyncio.CancelledError:
                scan.interrupt()
                raise
            except STATEMENT_ERRORS as error:
                raise translate(error) from None

    async def write(self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        self._require_open()
        pending = PendingWrite(body)
        self._writer.put(pending)
        return await pending.future

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        return _file_lock(self.path, name)

    async def pool_stats(self) -> dict[str, int]:
        open, idle = self._scanners.open, self._scanners.idle.qsize()
        return {"open": open + 2, "idle": idle, "waiting": self._writer.waiting() + self._scan_slots.waiting()}

    async def close(self) -> None:
        """Finish the queued scans and writes, then close the file."""
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._stop)
        self._reader.close()
        self._index.close()

    def _require_open(self) -> None:
        if self._closed:
            raise DatabaseUnavailable("the database is closed")

    def _stop(self) -> None:
        self._threads.shutdown(wait=True)
        with suppress(Empty):
            while True:
                self._scanners.idle.get_nowait().close()
        self._writer.stop()


class _ScanConnections:
    """The connections of the reader threads. They are opened when they are needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.open = 0
        self.idle: SimpleQueue[sqlite3.Connection] = SimpleQueue()

    def take(self) -> sqlite3.Connection:
        try:
            return self.idle.get_nowait()
        except Empty:
            connection = connect(self._path, read_only=True, cache=SMALL_CACHE)
            with self._lock:
                self.open += 1
            return connection


class _Scan:
    """A query in a reader thread, which its caller can interrupt."""

    def __init__(self, connections: _ScanConnections, sql: str, args: Sequence[Value]) -> None:
        self._connections, self._sql, self._args = connections, sql, args
        self._connection: sqlite3.Connection | None = None
        self._cancelled = False
        self._lock = threading.Lock()

    def run(self) -> list[Row]:
        connection = self._connections.take()
        try:
            with self._lock:
                if self._cancelled:
                    return []
                self._connection = connection
            return connection.execute(numbered(self._sql), self._args).fetchall()
        finally:
            with self._lock:  # after this, interrupt() cannot reach the next query of the connection
                self._connection = None
            self._connections.idle.put(connection)

    def interrupt(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._connection is not None:
                self._connection.interrupt()


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # An existing file is never opened here: closing any handle on it drops the locks that this process holds through
    # SQLite. Another process then writes during one of our writes, which corrupts the file.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))  # only the owner may read token digests


def _switch_to_wal(path: Path) -> None:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
    finally:
        connection.close()


@asynccontextmanager
async def _file_lock(path: Path, name: str) -> AsyncGenerator[None]:
    """A lock file next to the database. The operating system releases the lock when its process ends."""
    handle = os.open(path.with_name(f"{path.name}.{name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        while not _try_lock(handle):  # noqa: ASYNC110 another process releases it, and cannot set an event here
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
