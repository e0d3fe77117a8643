"""SQLite only: group commit, the single file, and a full disk."""

import asyncio
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from almanac.core.database import Transaction
from almanac.core.fair_slots import ORG_ID
from almanac.core.loop_turns import LoopTurns
from almanac.db import sqlite_writer
from almanac.db.errors import ConstraintConflict, DatabaseFull, DatabaseUnavailable
from almanac.db.sqlite import SqliteDatabase


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    db = await SqliteDatabase.open(tmp_path / "folder" / "x.db")
    await db.write(lambda tx: tx.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, body TEXT)"))
    yield db
    await db.close()


async def insert(tx: Transaction, id: int, size: int = 1) -> None:
    await tx.execute("INSERT INTO t (id, body) VALUES ($1, $2)", id, "x" * size)


async def count(db: SqliteDatabase) -> int:
    row = await db.fetch_one("SELECT count(*) AS n FROM t")
    assert row is not None
    return row["n"]


class Gate:
    """Holds the writer thread, so that the writes asked for meanwhile form one group."""

    def __init__(self, db: SqliteDatabase) -> None:
        self._open = threading.Event()
        self._task = asyncio.create_task(db.write(self._wait))

    async def _wait(self, tx: Transaction) -> None:
        self._open.wait(timeout=10)

    async def open(self) -> None:
        self._open.set()
        await self._task


async def grouped(db: SqliteDatabase, *writes: Awaitable[object]) -> list[object]:
    """The outcomes of writes that were committed together."""
    gate = Gate(db)
    await asyncio.sleep(0)
    tasks = [asyncio.ensure_future(write) for write in writes]
    await asyncio.sleep(0)
    await gate.open()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_writes_that_wait_together_are_committed_together(db: SqliteDatabase) -> None:
    seen_outside: list[int] = []
    seen_inside: list[int] = []

    async def body(tx: Transaction, id: int) -> None:
        await insert(tx, id)
        row = await tx.fetch_one("SELECT count(*) AS n FROM t")
        assert row is not None
        seen_inside.append(row["n"])
        with sqlite3.connect(db.path) as other:
            seen_outside.append(other.execute("SELECT count(*) FROM t").fetchone()[0])
        other.close()

    await grouped(db, *(db.write(lambda tx, id=id: body(tx, id)) for id in range(50)))
    assert seen_inside == list(range(1, 51))
    assert seen_outside == [0] * 50
    assert await count(db) == 50


async def test_organisations_take_turns_with_their_writes(db: SqliteDatabase) -> None:
    order: list[str] = []
    begun, gate = threading.Event(), threading.Event()

    async def hold(_: Transaction) -> None:
        begun.set()
        gate.wait(10)

    async def write(org_id: str) -> None:
        async def body(_: Transaction) -> None:
            order.append(org_id)

        ORG_ID.set(org_id)
        await db.write(body)

    first = asyncio.create_task(db.write(hold))
    await asyncio.to_thread(begun.wait, 10)
    writes = [asyncio.create_task(write(org_id)) for org_id in "aaaabc"]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, *writes)
    assert "".join(order) == "abcaaa"


async def test_slow_writes_of_one_organisation_do_not_delay_another(
    db: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "MAX_BATCH_SECONDS", -1)  # each write is so slow that it is committed alone
    done: list[str] = []

    async def write(org_id: str) -> None:
        ORG_ID.set(org_id)
        await db.write(lambda tx: tx.fetch("SELECT 1"))
        done.append(org_id)

    await grouped(db, *map(write, "a" * 20 + "b"))
    assert len(done) == 21
    assert done.index("b") < 3, "the commit of b's write waited for later writes of a"


async def test_a_commit_does_not_wait_for_a_slow_write_of_another_organisation(db: SqliteDatabase) -> None:
    reader = sqlite3.connect(db.path, check_same_thread=False)
    committed: list[int] = []

    async def slow(_: Transaction) -> None:
        committed.append(reader.execute("SELECT count(*) FROM t").fetchone()[0])
        threading.Event().wait(0.03)

    async def write(org_id: str, body: Callable[[Transaction], Awaitable[None]]) -> None:
        ORG_ID.set(org_id)
        await db.write(body)

    await asyncio.gather(*(write("a", slow) for _ in range(2)))
    committed.clear()
    await asyncio.gather(write("a", slow), write("b", lambda tx: insert(tx, 1)), write("a", slow))
    reader.close()
    assert committed == [0, 1]


async def test_many_reads_of_one_request_let_other_tasks_continue(db: SqliteDatabase) -> None:
    passes = 0

    async def read() -> None:
        for _ in range(50_000):
            await db.fetch("SELECT 1")

    async def count_passes() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_passes())
    await LoopTurns().run("a", read())
    counting.cancel()
    assert passes > 3


async def test_a_body_may_not_wait_for_anything_else(db: SqliteDatabase) -> None:
    async def body(tx: Transaction, seconds: float) -> None:
        await insert(tx, 1)
        await asyncio.sleep(seconds)

    for seconds in (0, 0.001):
        with pytest.raises(RuntimeError, match="may await nothing but its own statements"):
            await db.write(lambda tx, seconds=seconds: body(tx, seconds))
    await db.write(lambda tx: insert(tx, 2))
    assert await count(db) == 1


async def test_a_transaction_cannot_be_used_outside_its_body(db: SqliteDatabase) -> None:
    kept: list[Transaction] = []

    async def keep(tx: Transaction) -> None:
        kept.append(tx)

    await db.write(keep)
    with pytest.raises(Exception, match="thread"):
        await kept[0].execute("DELETE FROM t")


async def test_a_write_that_finds_the_file_locked_is_told_so_and_the_next_one_works(db: SqliteDatabase) -> None:
    await db.write(lambda tx: tx.fetch("PRAGMA busy_timeout = 20"))
    other = sqlite3.connect(db.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseUnavailable, match="locked"):
        await db.write(lambda tx: insert(tx, 1))
    other.execute("ROLLBACK")
    other.close()
    await db.write(lambda tx: insert(tx, 1))
    assert await count(db) == 1


async def limit_size(db: SqliteDatabase, spare_pages: int) -> None:
    async def body(tx: Transaction) -> None:
        row = await tx.fetch_one("PRAGMA page_count")
        assert row is not None
        await tx.fetch(f"PRAGMA max_page_count = {row[0] + spare_pages}")

    await db.write(body)


async def test_a_full_disk_changes_nothing_and_is_recovered_from(db: SqliteDatabase) -> None:
    await db.write(lambda tx: insert(tx, 1))
    await limit_size(db, 4)
    with pytest.raises(DatabaseFull):
        await db.write(lambda tx: insert(tx, 2, 100_000))
    assert await count(db) == 1
    await limit_size(db, 1000)
    await db.write(lambda tx: insert(tx, 2, 100_000))
    assert await count(db) == 2


async def test_a_write_too_large_for_the_disk_does_not_fail_the_others_of_its_group(db: SqliteDatabase) -> None:
    await limit_size(db, 8)
    sizes = [10, 10, 200_000, 10, 10]
    outcomes = await grouped(
        db, *(db.write(lambda tx, id=id, size=size: insert(tx, id, size)) for id, size in enumerate(sizes))
    )
    assert [type(outcome) for outcome in outcomes] == [type(None)] * 2 + [DatabaseFull] + [type(None)] * 2
    assert await count(db) == 4


async def test_a_violation_found_only_at_commit_is_its_own_bodys(db: SqliteDatabase) -> None:
    sql = "CREATE TABLE c (t_id INTEGER REFERENCES t (id) DEFERRABLE INITIALLY DEFERRED)"
    await db.write(lambda tx: tx.execute(sql))
    outcomes = await grouped(
        db,
        db.write(lambda tx: insert(tx, 1)),
        db.write(lambda tx: tx.execute("INSERT INTO c VALUES (99)")),
        db.write(lambda tx: insert(tx, 2)),
    )
    assert outcomes[0] is None
    assert isinstance(outcomes[1], ConstraintConflict)
    assert outcomes[2] is None
    assert await count(db) == 2


async def test_reads_leave_no_transaction_open(db: SqliteDatabase) -> None:
    await db.write(lambda tx: tx.execute_many("INSERT INTO t (id) VALUES ($1)", [(id,) for id in range(500)]))
    row = await db.fetch_one("SELECT id FROM t ORDER BY id")  # more rows than are read
    assert row is not None
    assert row["id"] == 0
    await db.scan("SELECT id FROM t")
    other = sqlite3.connect(db.path)
    busy, *_ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    other.close()
    assert busy == 0


async def test_closing_finishes_what_was_asked_for(tmp_path: Path) -> None:
    db = await SqliteDatabase.open(tmp_path / "x.db")
    await db.write(lambda tx: tx.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, body TEXT)"))
    writes = [asyncio.create_task(db.write(lambda tx, id=id: insert(tx, id))) for id in range(600)]
    await asyncio.sleep(0)
    await db.close()
    await db.close()
    assert await asyncio.gather(*writes) == [None] * 600
    again = await SqliteDatabase.open(tmp_path / "x.db")
    assert await count(again) == 600
    await again.close()


async def test_only_the_owner_may_read_the_file(db: SqliteDatabase) -> None:
    for path in (db.path, *db.path.parent.glob("x.db-*")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_many_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    opened = await asyncio.gather(*(SqliteDatabase.open(tmp_path / "new.db") for _ in range(8)))
    await asyncio.gather(*(db.close() for db in opened))


async def test_reading_connections_cannot_write(db: SqliteDatabase) -> None:
    with pytest.raises(DatabaseFull, match="readonly"):
        await db.fetch("INSERT INTO t (id) VALUES (1)")


async def test_opening_a_database_again_keeps_the_locks_that_guard_it_from_other_processes(tmp_path: Path):
    path = tmp_path / "almanac.db"
    first = await SqliteDatabase.open(path)
    await first.write(lambda tx: tx.execute("CREATE TABLE marks (n BIGINT)"))
    again = await SqliteDatabase.open(path)
    await again.close()
    # The last process to close a database deletes its WAL. It must notice that another connection is open.
    stranger = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('INSERT INTO marks VALUES (1)')"
    stranger += "; c.commit(); c.close()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", stranger, str(path))
    assert await process.wait() == 0
    assert path.with_name("almanac.db-wal").exists()
    await first.close()


async def test_a_transaction_of_many_statements_takes_time_in_proportion(tmp_path: Path):
    """With temporary files in memory, SQLite needs more time for each further statement in a savepoint."""
    db = await SqliteDatabase.open(tmp_path / "a.db")
    for statement in (
        "CREATE TABLE things (id INTEGER PRIMARY KEY, key TEXT, state TEXT, text TEXT)",
        "CREATE UNIQUE INDEX things_key ON things (key) WHERE state = 'queued'",
        "CREATE INDEX things_state ON things (state, id)",
    ):
        await db.write(lambda tx, statement=statement: tx.execute(statement))
    rows = [(number, str(number * 7919 % 100_003), "failed", "x" * 400) for number in range(17_000)]
    await db.write(lambda tx: tx.insert_many("things", ("id", "key", "state", "text"), rows))

    async def change(tx: Transaction, first: int, number: int) -> float:
        begun = time.perf_counter()
        for id in range(first, first + number):
            await tx.fetch_one("UPDATE things SET state = 'queued' WHERE id = $1 RETURNING key", id)
        return time.perf_counter() - begun

    few = await db.write(lambda tx: change(tx, 0, 1_000))
    many = await db.write(lambda tx: change(tx, 1_000, 16_000))
    assert many < 80 * few  # sixteen times as many statements
    await db.close()
