"""PostgreSQL only: lost connections, and conflicting transactions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from almanac.core.database import Database, Transaction
from almanac.db.connect import connect
from almanac.db.errors import DatabaseUnavailable
from tests.waiting import until_stored

KILL_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'almanac'
"""
ASKS_FOR_LOCK = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%advisory_lock%'
"""


@pytest.fixture
def database_url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("postgres_cluster").take()


@pytest.fixture
async def killer(database_url: str) -> AsyncIterator[Database]:
    db = await connect(database_url, pool_size=1)
    yield db
    await db.close()


async def make(tx: Transaction) -> None:
    await tx.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)")
    await tx.execute("INSERT INTO t (id, n) VALUES (1, 0), (2, 0)")


async def test_lost_connections_are_replaced_at_the_next_call(database: Database, killer: Database) -> None:
    await database.write(make)
    await asyncio.gather(*(database.fetch("SELECT pg_sleep(0.01)") for _ in range(4)))
    for _ in range(3):
        await killer.fetch(KILL_OTHERS)
        rows = await database.fetch("SELECT n FROM t")
        assert len(rows) == 2
        await killer.fetch(KILL_OTHERS)
        await database.write(lambda tx: tx.execute("UPDATE t SET n = n + 1"))
    row = await database.fetch_one("SELECT n FROM t WHERE id = 1")
    assert row is not None
    assert row["n"] == 3


async def test_a_transaction_whose_connection_dies_is_run_again(database: Database, killer: Database) -> None:
    await database.write(make)
    runs: list[int] = []

    async def body(tx: Transaction) -> None:
        runs.append(1)
        await tx.execute("UPDATE t SET n = n + 1 WHERE id = 1")
        if len(runs) == 1:
            await killer.fetch(KILL_OTHERS)
        await tx.execute("UPDATE t SET n = n + 1 WHERE id = 2")

    await database.write(body)
    assert len(runs) == 2
    assert [row["n"] for row in await database.fetch("SELECT n FROM t")] == [1, 1]


async def test_a_deadlock_is_resolved_by_running_the_loser_again(database: Database) -> None:
    await database.write(make)
    both_hold = asyncio.Barrier(2)
    runs: list[int] = []

    async def body(tx: Transaction, first: int, second: int) -> None:
        runs.append(first)
        await tx.execute("SET LOCAL deadlock_timeout = '10ms'")
        await tx.execute("UPDATE t SET n = n + 1 WHERE id = $1", first)
        if len(runs) <= 2:
            await both_hold.wait()
        await tx.execute("UPDATE t SET n = n + 1 WHERE id = $1", second)

    await asyncio.gather(database.write(lambda tx: body(tx, 1, 2)), database.write(lambda tx: body(tx, 2, 1)))
    assert len(runs) == 3
    assert [row["n"] for row in await database.fetch("SELECT n FROM t ORDER BY id")] == [2, 2]


async def test_a_lock_is_dropped_when_its_holder_dies(database: Database, killer: Database) -> None:
    with suppress(DatabaseUnavailable):
        async with database.lock("x"):
            await killer.fetch(KILL_OTHERS)
    async with asyncio.timeout(5), killer.lock("x"):
        pass


async def test_connections_say_who_they_are(database: Database) -> None:
    row = await database.fetch_one("SELECT current_setting('application_name') AS name")
    assert row is not None
    assert row["name"] == "almanac"


async def test_whoever_waits_for_a_lock_keeps_no_index_from_being_built(database: Database, database_url: str) -> None:
    await database.write(make)
    other = await connect(database_url)

    async def wait() -> None:
        async with other.lock("index"):
            pass

    async with database.lock("index"):
        waiting = asyncio.create_task(wait())
        await until_stored(
            lambda: database.fetch(ASKS_FOR_LOCK), lambda rows: len(rows) == 2
        )  # the holder and the waiter
        async with asyncio.timeout(20):  # it waits for every statement that began before it
            await database.scan("CREATE INDEX CONCURRENTLY tried ON t (n)")
        assert not waiting.done()
    await waiting
    await other.close()
