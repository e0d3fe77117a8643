"""The worker: effects exactly once, leases kept and given back, and outages survived."""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from almanac.core import clock
from almanac.core.clock import MINUTE, SECOND
from almanac.core.database import Database, Row, Transaction, Value
from almanac.core.errors import BadRequest
from almanac.db.connect import connect
from almanac.db.errors import DatabaseUnavailable
from almanac.jobs import queue
from almanac.jobs.queue import Job
from almanac.jobs.schedule import Every, Schedule
from almanac.jobs.worker import Effect, Handler, PermanentFailure, Worker
from tests.jobs.stored import StoredJob, get_stored_job
from tests.waiting import until_stored

POLL = SECOND // 100
WORKER = """
import asyncio, sys
from almanac.db.connect import connect
from almanac.jobs.worker import Worker

async def mow(job):
    async def effect(tx):
        await tx.execute("INSERT INTO mown (job) VALUES ($1)", job.id)
    await asyncio.sleep(0.002)
    return effect

async def main():
    db = await connect(sys.argv[1])
    print("ready", flush=True)
    await Worker(db, {"mow": mow}, lease=500_000, poll=10_000, concurrency=8).run(asyncio.Event())

asyncio.run(main())
"""


@pytest.fixture
async def db(database: Database) -> Database:
    await database.write(lambda tx: tx.execute("CREATE TABLE mown (job BIGINT NOT NULL)"))
    return database


def mown(job: Job) -> Effect:
    async def effect(tx: Transaction) -> None:
        await tx.execute("INSERT INTO mown (job) VALUES ($1)", job.id)

    return effect


async def mow(job: Job) -> Effect:
    return mown(job)


async def add(db: Database, number: int = 1, **options: Any) -> list[int]:
    async def body(tx: Transaction) -> list[int]:
        return [await queue.add(tx, "mow", {"n": n}, **options) for n in range(number)]

    return await db.write(body)


async def effects(db: Database) -> list[int]:
    return [row["job"] for row in await db.fetch("SELECT job FROM mown ORDER BY job")]


async def state(db: Database, id: int) -> StoredJob:
    job = await get_stored_job(db, id)
    assert job is not None
    return job


async def settled(db: Database) -> None:
    """Wait until no job is running or due."""

    async def idle() -> bool:
        sql = "SELECT 1 FROM jobs WHERE state = 'running' OR (state = 'queued' AND run_at <= $1)"
        return await db.fetch_one(sql, clock.now()) is None

    await until_stored(idle)


@asynccontextmanager
async def working(db: Database, handlers: Mapping[str, Handler], **options: Any) -> AsyncGenerator[asyncio.Event]:
    """Run a worker within the block, and wait for its end."""
    stop = asyncio.Event()
    options.setdefault("poll", POLL)
    task = asyncio.create_task(Worker(db, handlers, **options).run(stop))
    try:
        yield stop
    finally:
        stop.set()
        async with asyncio.timeout(15):
            await task


async def test_jobs_are_done_and_their_effects_stored(db: Database) -> None:
    ids = await add(db, 50)
    async with working(db, {"mow": mow}, concurrency=8):
        await settled(db)
    assert await effects(db) == ids
    assert await queue.counts(db) == {"queued": 0, "running": 0, "dead": 0}


async def test_slow_jobs_of_one_organisation_do_not_delay_another(db: Database) -> None:
    release, started = asyncio.Event(), list[int]()

    async def handle(job: Job) -> Effect:
        if job.org_id == "slow":
            started.append(job.id)
            await release.wait()
        return mown(job)

    slow = await add(db, 6, org_id="slow")
    async with working(db, {"mow": handle}, concurrency=2):
        (quick,) = await add(db, org_id="quick")

        async def is_done() -> bool:
            return await effects(db) == [quick]

        try:
            await until_stored(is_done)
            assert set(started) < set(slow[:2]) or started == slow[:2]
        finally:
            release.set()
        await settled(db)
    assert await effects(db) == [*slow, quick]


async def test_two_workers_do_each_job_once(db: Database, database_url: str) -> None:
    other = await connect(database_url)
    ids = await add(db, 100)
    async with working(db, {"mow": mow}, name="a"), working(other, {"mow": mow}, name="b"):
        await settled(db)
    assert await effects(db) == ids
    await other.close()


async def test_no_more_jobs_run_at_once_than_allowed(db: Database) -> None:
    now, most, full = 0, 0, asyncio.Event()

    async def handler(job: Job) -> None:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        if most == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        now -= 1

    await add(db, 20)
    async with working(db, {"mow": handler}, concurrency=3):
        await settled(db)
    assert most == 3


async def test_the_effect_of_a_worker_that_lost_its_job_is_dropped(db: Database) -> None:
    [id] = await add(db)
    held, release = asyncio.Event(), asyncio.Event()

    async def slow(job: Job) -> Effect:
        held.set()
        await release.wait()
        return mown(job)

    async with working(db, {"mow": slow}, name="slow", lease=queue.MAX_LEASE, concurrency=1):
        await held.wait()
        await db.write(lambda tx: tx.execute("UPDATE jobs SET lease_until = 0"))
        async with working(db, {"mow": mow}, name="quick"):
            await settled(db)
        assert await effects(db) == [id]
        release.set()
    assert await effects(db) == [id]
    assert (await state(db, id)).worker == "quick"


async def test_a_handler_is_cancelled_when_its_lease_is_lost(db: Database) -> None:
    [id] = await add(db)
    cancelled, held = asyncio.Event(), asyncio.Event()

    async def handler(job: Job) -> None:
        held.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with working(db, {"mow": handler}, lease=SECOND // 10):
        await held.wait()
        await db.write(lambda tx: tx.execute("UPDATE jobs SET fence = 99, lease_until = $1", clock.now() + MINUTE))
        async with asyncio.timeout(5):
            await cancelled.wait()
    assert (await state(db, id)).fence == 99


async def test_a_heartbeat_keeps_a_job_longer_than_its_lease(db: Database) -> None:
    [id] = await add(db)
    lease = SECOND // 5

    async def handler(job: Job) -> Effect:
        claimed_until = (await state(db, id)).lease_until

        async def twice_extended() -> bool:
            until = (await state(db, id)).lease_until
            return until is not None and until > claimed_until + lease

        await until_stored(twice_extended)
        return mown(job)

    async with working(db, {"mow": handler}, lease=lease), working(db, {"mow": handler}, lease=lease):
        await settled(db)
    assert await effects(db) == [id]
    assert (await state(db, id)).fence == 1


async def test_a_handler_that_raises_is_tried_again_and_then_dead(db: Database) -> None:
    [id] = await add(db, max_attempts=2)
    attempts: list[int] = []

    async def handler(job: Job) -> None:
        attempts.append(job.attempts)
        raise BadRequest("wet grass " * 1000)

    async with working(db, {"mow": handler}):
        await settled(db)
        assert (await state(db, id)).state == "queued"
        await db.write(lambda tx: tx.execute("UPDATE jobs SET run_at = 0"))
        await settled(db)
    job = await state(db, id)
    assert attempts == [1, 2]
    assert job.state == "dead"
    assert job.error is not None
    assert job.error.startswith("BadRequest: wet grass")
    assert len(job.error) == queue.MAX_ERROR_CHARS


async def test_the_words_of_a_foreign_exception_are_not_kept(db: Database) -> None:
    [id] = await add(db, max_attempts=1)

    async def handler(job: Job) -> None:
        raise KeyError("what somebody wrote")

    async with working(db, {"mow": handler}):
        await settled(db)
    assert (await state(db, id)).error == "KeyError"


async def test_a_permanent_failure_is_dead_at_once(db: Database) -> None:
    [id] = await add(db)

    async def handler(job: Job) -> None:
        raise PermanentFailure("no such lawn")

    async with working(db, {"mow": handler}):
        await settled(db)
    job = await state(db, id)
    assert (job.state, job.attempts, job.error) == ("dead", 1, "PermanentFailure: no such lawn")


async def test_an_effect_that_fails_leaves_nothing_and_the_job_is_retried(db: Database) -> None:
    [id] = await add(db)

    async def handler(job: Job) -> Effect:
        async def effect(tx: Transaction) -> None:
            await mown(job)(tx)
            if job.attempts == 1:
                await tx.execute("INSERT INTO mown (job) VALUES (NULL)")

        return effect

    async with working(db, {"mow": handler}):
        await settled(db)
        assert await effects(db) == []
        await db.write(lambda tx: tx.execute("UPDATE jobs SET run_at = 0"))
        await settled(db)
    assert await effects(db) == [id]


async def test_unknown_kinds_wait_for_a_worker_that_knows_them(db: Database) -> None:
    await db.write(lambda tx: queue.add(tx, "paint", {}))
    [id] = await add(db)
    async with working(db, {"mow": mow}):
        await until_stored(lambda: _is(db, id, "done"))
    assert await queue.counts(db) == {"queued": 1, "running": 0, "dead": 0}


async def _is(db: Database, id: int, expected: str) -> bool:
    return (await state(db, id)).state == expected


async def test_stopping_lets_running_jobs_finish(db: Database) -> None:
    ids = await add(db, 4)
    held, release = asyncio.Event(), asyncio.Event()

    async def handler(job: Job) -> Effect:
        held.set()
        await release.wait()
        return mown(job)

    async with working(db, {"mow": handler}, concurrency=2) as stop:
        await held.wait()
        stop.set()
        await asyncio.sleep(0)
        release.set()
    assert await effects(db) == ids[:2]
    assert await queue.counts(db) == {"queued": 2, "running": 0, "dead": 0}


async def test_jobs_that_do_not_finish_in_time_are_given_back_uncounted(db: Database) -> None:
    [id] = await add(db)
    held = asyncio.Event()

    async def handler(job: Job) -> None:
        held.set()
        await asyncio.Event().wait()

    async with working(db, {"mow": handler}, grace=0):
        await held.wait()
    job = await state(db, id)
    assert (job.state, job.attempts, job.lease_until) == ("queued", 0, None)


async def test_a_cancelled_worker_gives_its_jobs_back(db: Database) -> None:
    [id] = await add(db)
    held = asyncio.Event()

    async def handler(job: Job) -> None:
        held.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(Worker(db, {"mow": handler}, poll=POLL).run(asyncio.Event()))
    await held.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await state(db, id)).state == "queued"


class Flaky:
    """A database that is unavailable while `away` is set."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.dialect = db.dialect
        self.away = False
        self.refusals = 0

    def _check(self) -> None:
        if self.away:
            self.refusals += 1
            raise DatabaseUnavailable("away")

    async def fetch(self, sql: str, *args: Value) -> list[Row]:
        self._check()
        return await self._db.fetch(sql, *args)

    async def fetch_one(self, sql: str, *args: Value) -> Row | None:
        self._check()
        return await self._db.fetch_one(sql, *args)

    async def write(self, body: Callable[[Transaction], Awaitable[Any]]) -> Any:
        self._check()
        return await self._db.write(body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


async def test_an_outage_delays_work_but_loses_none(db: Database) -> None:
    flaky: Any = Flaky(db)
    ids = await add(db, 3)
    held, release = asyncio.Event(), asyncio.Event()

    async def handler(job: Job) -> Effect:
        held.set()
        await release.wait()
        return mown(job)

    async with working(flaky, {"mow": handler}, concurrency=2, lease=SECOND):
        await held.wait()
        flaky.away = True
        release.set()
        await until_stored(lambda: _refused(flaky, 6))
        assert await effects(db) == []
        flaky.away = False
        await settled(db)
    assert await effects(db) == ids
    assert [(await state(db, id)).attempts for id in ids] == [1, 1, 1]


async def _refused(flaky: Flaky, times: int) -> bool:
    return flaky.refusals >= times


async def test_the_worker_runs_schedules(db: Database) -> None:
    every_second = Schedule("often", "mow", Every(1))

    async def done() -> bool:
        return len(await effects(db)) >= 1

    async with working(db, {"mow": mow}, schedules=[every_second]), working(db, {}, schedules=[every_second]):
        await until_stored(done)
    runs = await db.fetch("SELECT due_at FROM schedule_runs")
    assert len({row["due_at"] for row in runs}) == len(runs) >= 1


async def test_a_killed_workers_jobs_are_taken_over_and_each_done_once(db: Database, database_url: str) -> None:
    ids = await add(db, 200)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, database_url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()

    async def halfway() -> bool:
        return len(await effects(db)) >= 50

    await until_stored(halfway)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    async with working(db, {"mow": mow}, concurrency=8):
        await settled(db)
    assert await effects(db) == ids


async def test_jobs_from_before_the_clock_was_set_back_run(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        now = clock.now() + 2 * clock.HOUR
        later.setattr(clock, "now", lambda: now)
        [queued] = await add(db)
        [failed] = await add(db)
        [held] = await add(db)
        jobs = {job.id: job for job in await queue.claim(db, "dead", ["mow"], limit=3, lease=clock.MINUTE)}
        assert await queue.release(db, [jobs[queued]])
        assert await queue.fail(db, jobs[failed], "no petrol")
    [delayed] = await add(db, run_at=clock.now() + clock.HOUR)
    async with working(db, {"mow": mow}):
        await until_stored(lambda: _are_done(db, 3))
    assert await effects(db) == [queued, failed, held]
    assert (await state(db, delayed)).state == "queued", "the clock gave its time"


async def _are_done(db: Database, number: int) -> bool:
    return len(await effects(db)) >= number
