"""The audit trail: a row for every call within a second, outages, and the limit of pending entries."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pytest

import almanac.bootstrap
from almanac.audit import trail
from almanac.audit.trail import AuditEntry, AuditTrail
from almanac.core import clock
from almanac.core.database import Database, Row, Transaction, Value
from almanac.core.errors import AuditUnavailable
from almanac.db.connect import connect
from almanac.db.errors import DatabaseFull, DatabaseUnavailable
from almanac.identity import first_start, principals
from tests.live_server import Running, running, settings_for
from tests.waiting import until_stored, wait_until

T = TypeVar("T")


class Flaky:
    """A real database whose writes fail while `problem` is set."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.dialect = db.dialect
        self.problem: Exception | None = None
        self.refused = asyncio.Semaphore(0)  # released by each write that is refused

    async def fetch(self, sql: str, *args: Value) -> list[Row]:
        return await self._db.fetch(sql, *args)

    async def fetch_one(self, sql: str, *args: Value) -> Row | None:
        return await self._db.fetch_one(sql, *args)

    def commit_version(self) -> bytes | None:
        return self._db.commit_version()

    async def scan(self, sql: str, *args: Value) -> list[Row]:
        return await self._db.scan(sql, *args)

    async def write(self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        if self.problem is not None:
            self.refused.release()
            raise self.problem
        return await self._db.write(body)

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        return self._db.lock(name)

    async def pool_stats(self) -> dict[str, int]:
        return await self._db.pool_stats()

    async def close(self) -> None:
        await self._db.close()


@dataclass
class Office:
    """A running trail, and the principal of its entries."""

    db: Flaky
    trail: AuditTrail
    org_id: str
    principal_id: int

    def entry(self, tool: str = "whoami", **facts: Any) -> AuditEntry:
        values: dict[str, Any] = {
            "at": clock.now(),
            "org_id": self.org_id,
            "principal_id": self.principal_id,
            "token_id": 1,
            "surface": "almanac",
            "tool": tool,
            "outcome": "ok",
            "duration_us": 12,
            "digest": "d1",
            "touched": "base:1 document:7",
            "request_id": "r-1",
        }
        return AuditEntry(**{**values, **facts})

    async def rows(self) -> list[str]:
        return [row["tool"] for row in await self.db.fetch("SELECT tool FROM audit ORDER BY id")]

    async def until(self, number: int, within: float) -> None:
        await until_stored(self.rows, lambda rows: len(rows) >= number, seconds=within)


@asynccontextmanager
async def office(database: Database, *also: trail.AfterWrite) -> AsyncGenerator[Office]:
    await first_start.create_first_admin(database)
    row = await database.fetch_one("SELECT id, org_id FROM principals")
    assert row is not None
    flaky = Flaky(database)
    written = AuditTrail(flaky, also)
    writing = asyncio.create_task(written.run())
    try:
        yield Office(flaky, written, row["org_id"], row["id"])
    finally:
        await written.stop(writing, grace=5)


async def test_an_entry_is_in_the_database_within_a_second(database: Database):
    async with office(database) as at:
        for number in range(1, 4):
            at.trail.add(at.entry())
            await at.until(number, within=1.0)


def test_a_call_is_in_the_database_within_a_second_with_all_that_is_known_of_it(server: Running):
    begun = clock.now()
    answer = server.rpc("tools/call", {"name": "whoami", "arguments": {}}, headers={"x-request-id": "my-request.1"})
    assert answer.headers["x-request-id"] == "my-request.1"

    async def read(db: Database) -> trail.AuditRow:
        return (await until_stored(lambda: trail.find(db), seconds=1))[0]

    line = server.run(read)
    assert (line.org, line.actor, line.kind, line.token_id) == ("main", "admin", "user", 1)
    assert (line.surface, line.tool, line.outcome, line.request_id) == ("almanac", "whoami", "ok", "my-request.1")
    assert begun <= line.at <= clock.now()
    assert 0 < line.duration_us < 5_000_000
    assert len(line.digest) == 32


def test_every_outcome_leaves_a_row_and_no_row_holds_what_was_asked(server: Running):
    server.call("whoami")
    server.call("whoami", {"marker-argument": "marker-value"})
    server.rpc("tools/call", {"name": "marker-tool", "arguments": {"x": "marker-value"}})
    server.rpc("tools/list")

    async def read(db: Database) -> list[trail.AuditRow]:
        return await until_stored(lambda: trail.find(db), lambda rows: len(rows) >= 3)

    lines = server.run(read)
    assert [(line.tool, line.outcome) for line in reversed(lines)] == [
        ("whoami", "ok"),
        ("whoami", "bad_request"),
        ("(unknown)", "unknown_tool"),
    ]
    assert "marker" not in repr(lines)


def test_equal_arguments_have_equal_digests_and_another_installation_s_key_gives_others(
    server: Running, tmp_path: Path, sqlite_template: Path
):
    for arguments in ({}, {}, {"a": 1}, {"a": 2}):
        server.call("whoami", arguments)

    async def read(db: Database) -> list[str]:
        found = await until_stored(lambda: trail.find(db), lambda rows: len(rows) >= 4)
        return [line.digest for line in reversed(found)]

    digests = server.run(read)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    shutil.copy(sqlite_template, tmp_path / "other.db")
    with running(settings_for(f"sqlite:///{tmp_path / 'other.db'}", tmp_path / "other", secret="x" * 40)) as other:
        other.call("whoami")
        elsewhere = other.run(_first_digest)
    assert elsewhere not in digests


async def _first_digest(db: Database) -> str:
    return (await until_stored(lambda: trail.find(db)))[0].digest


def test_nothing_is_lost_on_a_clean_stop(database_url: str, tmp_path: Path):
    settings = settings_for(database_url, tmp_path / "home")
    with running(settings) as live:
        for _ in range(120):
            live.call("whoami")

    async def read() -> int:
        db = await connect(database_url, pool_size=1)
        try:
            return len(await trail.find(db, limit=1000))
        finally:
            await db.close()

    assert asyncio.run(read()) == 120


async def test_a_burst_is_written_whole_and_in_order(database: Database):
    async with office(database) as at:
        for number in range(2500):
            at.trail.add(at.entry(f"t{number}"))
        await at.until(2500, within=5.0)
        assert await at.rows() == [f"t{number}" for number in range(2500)]


@pytest.mark.usefixtures("hasty")
async def test_what_is_added_while_a_write_is_under_way_is_written_once(database: Database):
    numbers = iter(range(400))

    async def add_more(tx: Transaction, written: Sequence[AuditEntry]) -> None:
        for number in islice(numbers, 40):
            at.trail.add(at.entry(f"t{number}"))

    async with office(database, add_more) as at:
        at.trail.add(at.entry(f"t{next(numbers)}"))
        await at.until(400, within=5)
    assert sorted(await at.rows()) == sorted(f"t{number}" for number in range(400))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flush ten times as often, to shorten outages."""
    monkeypatch.setattr(trail, "FLUSH_SECONDS", trail.FLUSH_SECONDS / 10)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("problem", [DatabaseUnavailable("gone"), DatabaseFull("no room")])
async def test_rows_are_kept_and_retried_while_the_database_cannot_be_written(database: Database, problem: Exception):
    async with office(database) as at:
        at.db.problem = problem
        at.trail.add(at.entry("during"))
        async with asyncio.timeout(3):
            await at.db.refused.acquire()
            await at.db.refused.acquire()
        at.trail.add(at.entry("later"))
        assert await at.rows() == []
        at.db.problem = None
        await at.until(2, within=2.5)
        assert await at.rows() == ["during", "later"]


@pytest.mark.usefixtures("hasty")
async def test_when_the_database_comes_back_only_at_the_stop_nothing_is_lost(database: Database):
    async with office(database) as at:
        at.db.problem = DatabaseUnavailable("gone")
        at.trail.add(at.entry("during"))
        async with asyncio.timeout(3):
            await at.db.refused.acquire()
        at.db.problem = None
    assert await at.rows() == ["during"]


@pytest.mark.usefixtures("hasty")
async def test_at_the_limit_it_refuses_and_when_the_rows_are_written_it_takes_calls_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trail, "MAX_PENDING_ENTRIES", 10)
    async with office(database) as at:
        at.db.problem = DatabaseUnavailable("gone")
        for _ in range(10):
            at.trail.require_capacity()
            at.trail.add(at.entry())
        with pytest.raises(AuditUnavailable):
            at.trail.require_capacity()
        async with asyncio.timeout(3):
            await at.db.refused.acquire()
        with pytest.raises(AuditUnavailable):  # entries of a failed write count like waiting ones
            at.trail.require_capacity()
        at.db.problem = None
        await at.until(10, within=2.5)
        await asyncio.sleep(0)
        at.trail.require_capacity()


@pytest.mark.usefixtures("hasty")
def test_calls_are_refused_while_they_cannot_be_accounted_for_and_taken_again_afterwards(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    opened: list[Flaky] = []

    async def open_flaky(url: str, *, pool_size: int = 10) -> Database:
        opened.append(Flaky(await connect(url, pool_size=pool_size)))
        return opened[-1]

    monkeypatch.setattr(almanac.bootstrap, "connect", open_flaky)
    monkeypatch.setattr(trail, "MAX_PENDING_ENTRIES", 5)
    with running(settings_for(database_url, tmp_path / "home")) as live:
        opened[-1].problem = DatabaseUnavailable("gone")
        texts = [live.call("whoami")["content"][0]["text"] for _ in range(5)]
        assert not any("audit_unavailable" in text for text in texts)
        refused = live.call("whoami")
        assert refused["isError"]
        assert refused["content"][0]["text"].startswith("audit_unavailable: The audit trail cannot be written")
        for _ in range(50):
            assert live.call("whoami")["isError"]
        opened[-1].problem = None
        wait_until(lambda: not live.call("whoami")["isError"], seconds=4)
    rows = live.run(lambda db: db.fetch("SELECT outcome FROM audit"))  # the stop has written all of them
    assert {row["outcome"] for row in rows} == {"ok"}  # refused calls leave no row


async def test_a_stop_waits_for_the_entries_of_calls_in_flight(database: Database):
    async with office(database) as at:
        at.trail.calls_in_flight += 1

        async def finish() -> None:
            at.trail.calls_in_flight -= 1
            at.trail.add(at.entry("late"))

        finishing = asyncio.create_task(finish())  # it begins when the stop first waits
    await finishing
    assert [row["tool"] for row in await database.fetch("SELECT tool FROM audit")] == ["late"]


@pytest.mark.usefixtures("hasty")
async def test_what_is_derived_from_calls_is_written_with_them_or_not_at_all(database: Database):
    failures = [DatabaseUnavailable("lost before the commit")]

    async def also(tx: Transaction, entries: Sequence[AuditEntry]) -> None:
        await tx.execute("UPDATE orgs SET name = name || $1", "".join(entry.tool for entry in entries))
        if failures:
            raise failures.pop()

    async with office(database, also) as at:
        at.trail.add(at.entry("+one"))
        await at.until(1, within=2.5)
        assert not failures
        row = await database.fetch_one("SELECT name FROM orgs")
        assert row is not None
        assert row["name"] == "main+one"
        assert await at.rows() == ["+one"]


async def test_the_trail_is_read_newest_first_by_caller_tool_time_and_number(database: Database):
    async with office(database) as at:
        other = await database.write(lambda tx: principals.add(tx, at.org_id, "agent", "bot"))
        now = clock.now()
        facts: list[dict[str, Any]] = [
            {"tool": "old", "at": now - 2 * clock.HOUR},
            {"tool": "search", "at": now - 3 * clock.MINUTE, "principal_id": other.id},
            {"tool": "search", "at": now - 2 * clock.MINUTE},
            {"tool": "whoami", "at": now - 1 * clock.MINUTE, "principal_id": other.id, "touched": ""},
        ]
        for fact in facts:
            at.trail.add(at.entry(**fact))
    wanted: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["bot whoami", "admin search", "bot search", "admin old"]),
        ({"user": "bot"}, ["bot whoami", "bot search"]),
        ({"tool": "search"}, ["admin search", "bot search"]),
        ({"user": "bot", "tool": "search"}, ["bot search"]),
        ({"since": clock.HOUR}, ["bot whoami", "admin search", "bot search"]),
        ({"since": 150 * clock.SECOND, "user": "admin"}, ["admin search"]),
        ({"limit": 1}, ["bot whoami"]),
        ({"user": "nobody"}, []),
        ({"tool": "x' OR '1'='1"}, []),
    ]
    for filters, found in wanted:
        lines = await trail.find(database, **filters)
        assert [f"{line.actor} {line.tool}" for line in lines] == found, filters
    newest = (await trail.find(database, limit=1))[0]
    assert (newest.kind, newest.touched) == ("agent", ())
    assert (await trail.find(database, user="admin"))[0].touched == ("base:1", "document:7")


async def test_the_calls_of_someone_removed_stay_in_the_trail(database: Database):
    async with office(database) as at:
        at.trail.add(at.entry())
    admin = await principals.get_by_name(database, at.org_id, "admin")
    await database.write(lambda tx: principals.remove(tx, admin))
    assert [line.actor for line in await trail.find(database)] == ["admin"]


async def test_pruning_removes_what_is_older_and_nothing_else(database: Database):
    async with office(database) as at:
        moments = [clock.now() - days * clock.DAY for days in (400, 366, 364, 1)]
        for moment in moments:
            at.trail.add(at.entry(at=moment))
    before = clock.now() - 365 * clock.DAY
    assert await database.write(lambda tx: trail.prune(tx, before)) == 2
    assert await database.write(lambda tx: trail.prune(tx, before)) == 0
    assert [line.at for line in await trail.find(database)] == sorted(moments[2:], reverse=True)
