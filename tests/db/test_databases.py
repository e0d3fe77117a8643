"""One body, both databases: the same calls give the same answers and the same errors."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from almanac.core.database import Database, Transaction, Value
from almanac.core.fair_slots import ORG_ID
from almanac.db.connect import InvalidDatabaseUrl, connect
from almanac.db.errors import ConstraintConflict, DatabaseError, DatabaseUnavailable, StatementRejected

TABLES = (
    "CREATE TABLE things (id BIGINT PRIMARY KEY, name TEXT UNIQUE, size BIGINT NOT NULL DEFAULT 0)",
    "CREATE TABLE parts (thing_id BIGINT NOT NULL REFERENCES things (id), a BIGINT, b BIGINT, UNIQUE (a, b))",
)
ENDLESS = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) SELECT count(*) FROM n
"""
WRITER = """
import asyncio, sys
from almanac.db.connect import connect

async def main():
    db = await connect(sys.argv[1])
    async def add(i):
        await db.write(lambda tx: tx.execute("INSERT INTO things (id) VALUES ($1)", i))
        print(i, flush=True)
    for start in range(0, 1_000_000, 8):
        await asyncio.gather(*(add(i) for i in range(start, start + 8)))

asyncio.run(main())
"""


@pytest.fixture
async def db(database: Database) -> Database:
    async def make(tx: Transaction) -> None:
        for table in TABLES:
            await tx.execute(table)

    await database.write(make)
    return database


def insert(id: int, name: str | None = None) -> Callable[[Transaction], Awaitable[int]]:
    return lambda tx: tx.execute("INSERT INTO things (id, name) VALUES ($1, $2)", id, name)


async def ids(db: Database) -> list[int]:
    return [row["id"] for row in await db.fetch("SELECT id FROM things ORDER BY id")]


async def test_values_come_back_as_they_went_in(database: Database) -> None:
    dialect_words = {"sqlite": ("BLOB", "REAL"), "postgres": ("BYTEA", "DOUBLE PRECISION")}
    bytes_type, float_type = dialect_words[database.dialect]
    values: list[tuple[Value, ...]] = [
        (1, 2**63 - 1, "naïve 日本 🦉 'quoted' \"double\"\n", b"\x00\xff", 0.1),
        (2, -(2**63), "", b"", -1e300),
        (3, None, None, None, None),
    ]

    async def body(tx: Transaction) -> None:
        await tx.execute(f"CREATE TABLE v (k BIGINT, i BIGINT, t TEXT, b {bytes_type}, f {float_type})")
        await tx.execute_many("INSERT INTO v (k, i, t, b, f) VALUES ($1, $2, $3, $4, $5)", values)

    await database.write(body)
    rows = await database.fetch("SELECT k, i, t, b, f FROM v ORDER BY k")
    assert [tuple(row[name] for name in row.keys()) for row in rows] == values  # noqa: SIM118
    assert [list(row.keys()) for row in rows] == [["k", "i", "t", "b", "f"]] * 3
    assert [row[1] for row in rows] == [value[1] for value in values]
    assert [type(row[4]) for row in rows] == [float, float, type(None)]


async def test_parameters_may_be_used_in_any_order_and_more_than_once(db: Database) -> None:
    sql = "INSERT INTO things (size, name, id) VALUES ($2, $3, $2) RETURNING id, name || $1 AS both_names"
    row = await db.write(lambda tx: tx.fetch_one(sql, "!", 7, "seven"))
    assert row is not None
    assert (row["id"], row["both_names"]) == (7, "seven!")


async def test_execute_says_how_many_rows_it_touched(db: Database) -> None:
    async def body(tx: Transaction) -> list[int]:
        return [
            await tx.execute("INSERT INTO things (id) VALUES (1), (2), (3)"),
            await tx.execute("UPDATE things SET size = 5 WHERE id > $1 RETURNING id", 1),
            await tx.execute("UPDATE things SET size = 5 WHERE id > $1", 10),
            await tx.execute("CREATE TABLE other (id BIGINT)"),
            await tx.execute("DELETE FROM things"),
        ]

    assert await db.write(body) == [3, 2, 0, 0, 3]


async def test_a_transaction_reads_what_it_wrote(db: Database) -> None:
    async def body(tx: Transaction) -> tuple[int, int]:
        await tx.execute_many("INSERT INTO things (id) VALUES ($1)", [(1,), (2,)])
        one = await tx.fetch_one("SELECT count(*) AS n FROM things")
        assert one is not None
        return one["n"], len(await tx.fetch("SELECT id FROM things"))

    assert await db.write(body) == (2, 2)
    assert await db.fetch_one("SELECT id FROM things WHERE id = $1", 3) is None


async def test_a_write_is_seen_by_every_connection_once_it_returns(db: Database, database_url: str) -> None:
    other = await connect(database_url)
    for number in range(20):
        await db.write(insert(number))
        expected = list(range(number + 1))
        assert await ids(db) == expected
        assert await ids(other) == expected
        assert [row["id"] for row in await db.scan("SELECT id FROM things ORDER BY id")] == expected
    await other.close()


async def test_a_body_that_raises_changes_nothing_and_its_caller_hears_of_it(db: Database) -> None:
    async def body(tx: Transaction) -> None:
        await insert(1)(tx)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await db.write(body)
    assert await ids(db) == []


async def test_one_failing_body_does_not_touch_the_others_of_its_group(db: Database) -> None:
    async def body(number: int, tx: Transaction) -> int:
        await insert(number)(tx)
        if number % 5 == 0:
            raise LookupError(str(number))
        if number % 7 == 0:
            await insert(number)(tx)
        return number

    def write(number: int) -> Awaitable[int]:
        return db.write(lambda tx: body(number, tx))

    outcomes = await asyncio.gather(*map(write, range(60)), return_exceptions=True)
    good = [number for number in range(60) if number % 5 and number % 7]
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == good
    assert await ids(db) == good


async def test_concurrent_writes_lose_no_update(db: Database) -> None:
    await db.write(insert(1))
    sql = "UPDATE things SET size = size + 1 WHERE id = 1"
    await asyncio.gather(*(db.write(lambda tx: tx.execute(sql)) for _ in range(100)))
    row = await db.fetch_one("SELECT size FROM things")
    assert row is not None
    assert row["size"] == 100


async def failure(work: Awaitable[Any]) -> DatabaseError:
    with pytest.raises(DatabaseError) as caught:
        await work
    return caught.value


async def test_a_duplicate_is_a_conflict_that_names_its_columns_but_no_value(db: Database) -> None:
    await db.write(insert(1, "s3cret"))
    error = await failure(db.write(insert(2, "s3cret")))
    assert isinstance(error, ConstraintConflict)
    assert (error.kind, error.table, error.columns) == ("unique", "things", ("name",))
    assert "s3cret" not in f"{error} {error!r} {error.__cause__}"
    error = await failure(db.write(insert(1)))
    assert isinstance(error, ConstraintConflict)
    assert error.columns == ("id",)


async def test_a_conflict_over_two_columns_names_both(db: Database) -> None:
    await db.write(insert(1))
    sql = "INSERT INTO parts (thing_id, a, b) VALUES (1, 2, 3)"
    await db.write(lambda tx: tx.execute(sql))
    error = await failure(db.write(lambda tx: tx.execute(sql)))
    assert isinstance(error, ConstraintConflict)
    assert error.columns == ("a", "b")


async def test_a_missing_parent_is_a_conflict(db: Database) -> None:
    error = await failure(db.write(lambda tx: tx.execute("INSERT INTO parts (thing_id) VALUES (9)")))
    assert isinstance(error, ConstraintConflict)
    assert error.kind == "foreign"


@pytest.mark.parametrize(
    ("sql", "args"),
    [
        ("INSERT INTO things (id, size) VALUES (1, NULL)", ()),
        ("SELEKT 1", ()),
        ("SELECT * FROM nowhere", ()),
        ("INSERT INTO things (id) VALUES ($1)", (2**63,)),
        ("INSERT INTO things (id, name) VALUES ($1, $2)", (1,)),
        ("INSERT INTO things (id, name) VALUES ($1, $2)", (1, "half a pair: \ud800")),
    ],
)
async def test_a_mistake_of_ours_is_rejected(db: Database, sql: str, args: tuple[Value, ...]) -> None:
    assert type(await failure(db.write(lambda tx: tx.execute(sql, *args)))) is StatementRejected
    assert type(await failure(db.write(lambda tx: tx.execute_many(sql, [args])))) is StatementRejected
    assert await ids(db) == []


async def test_reads_raise_the_same_errors(db: Database) -> None:
    for read in (db.fetch, db.fetch_one, db.scan):
        assert type(await failure(read("SELECT * FROM nowhere"))) is StatementRejected


async def test_a_failed_statement_dooms_its_transaction_even_if_caught(db: Database) -> None:
    async def body(tx: Transaction) -> str:
        await insert(1, "a")(tx)
        with pytest.raises(ConstraintConflict):
            await insert(2, "a")(tx)
        return "all is well"

    assert isinstance(await failure(db.write(body)), ConstraintConflict)
    assert await ids(db) == []


async def test_a_caller_who_leaves_disturbs_nobody(db: Database) -> None:
    leaving = [asyncio.create_task(db.write(insert(number))) for number in range(20)]
    await asyncio.sleep(0)
    for task in leaving[::2]:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    await db.write(insert(100))
    assert {*range(1, 20, 2), 100} <= set(await ids(db))


async def test_a_long_scan_can_be_cancelled_and_leaves_the_database_usable(db: Database) -> None:
    for _ in range(6):  # more than the number of scan connections
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03):
                await db.scan(ENDLESS)
    rows = await asyncio.gather(*(db.scan("SELECT 1 AS one") for _ in range(12)))
    assert [row[0]["one"] for row in rows] == [1] * 12


async def test_long_scans_of_one_organisation_leave_room_for_those_of_another(db: Database) -> None:
    async def scan(org_id: str, sql: str) -> None:
        ORG_ID.set(org_id)
        await db.scan(sql)

    endless = [asyncio.create_task(scan("a", ENDLESS)) for _ in range(12)]  # more than the connections for scans
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await scan("b", "SELECT 1")
    for task in endless:
        task.cancel()
    assert all(
        isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*endless, return_exceptions=True)
    )


async def test_an_exclusive_section_is_held_by_one_at_a_time(database: Database, database_url: str) -> None:
    other = await connect(database_url)
    inside: list[str] = []

    async def enter(db: Database, name: str) -> None:
        async with db.lock(name):
            inside.append(name)
            assert inside.count(name) == 1
            for _ in range(10):
                await db.fetch("SELECT 1")
            inside.remove(name)

    await asyncio.gather(*(enter(db, name) for db in (database, other) for name in ("a", "a", "b")))
    async with database.lock("a"), database.lock("b"):
        pass
    await other.close()


async def test_the_pool_tells_its_size(database: Database) -> None:
    assert set(await database.pool_stats()) == {"open", "idle", "waiting"}


async def test_a_closed_database_refuses(database_url: str) -> None:
    db = await connect(database_url)
    await db.close()
    assert isinstance(await failure(db.write(lambda tx: tx.execute("SELECT 1"))), DatabaseUnavailable)
    assert isinstance(await failure(db.scan("SELECT 1")), DatabaseUnavailable)
    assert isinstance(await failure(db.fetch("SELECT 1")), DatabaseUnavailable)


async def test_a_killed_process_loses_nothing_that_it_acknowledged(db: Database, database_url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, database_url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    lines = [await process.stdout.readline() for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    lines += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    acknowledged = {int(line) for line in lines if line.endswith(b"\n")}
    assert len(acknowledged) >= 200
    assert acknowledged <= set(await ids(db))


@pytest.mark.parametrize(
    "url", ["sqlite:////dev/null/x.db", "postgresql://nobody@127.0.0.1:1/x", "postgres://nobody@127.0.0.1:1/x"]
)
async def test_a_database_that_cannot_be_reached_is_unavailable(url: str) -> None:
    assert isinstance(await failure(connect(url)), DatabaseUnavailable)


@pytest.mark.parametrize(
    "url", ["mysql://root:hunter2@host/x", "sqlite://", "sqlite:///", "x.db", "", "postgresql://u:hun/ter2@host/x"]
)
async def test_an_unknown_url_is_refused_without_repeating_its_password(url: str) -> None:
    with pytest.raises(InvalidDatabaseUrl, match="is not valid") as caught:
        await connect(url)
    assert "hun" not in caught.value.text
