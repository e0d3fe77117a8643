"""The queue: leases, fences, retries and dead letters, on both databases."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from almanac.core import clock
from almanac.core.database import Database, Transaction
from almanac.db.connect import connect
from almanac.jobs import queue
from almanac.jobs.queue import Job
from tests.jobs.stored import StoredJob, get_stored_job

NOW = 1_800_000_000 * clock.SECOND
LEASE = clock.MINUTE
PLAN = {"sqlite": "EXPLAIN QUERY PLAN ", "postgres": "EXPLAIN "}


async def add(db: Database, kind: str = "mow", **options: Any) -> int:
    options = {"run_at": NOW, **options}
    return await db.write(lambda tx: queue.add(tx, kind, {"lawn": 1}, **options))


async def claim(db: Database, now: int = NOW, limit: int = 10, worker: str = "w1") -> list[Job]:
    return await queue.claim(db, worker, ["mow", "rake"], limit=limit, lease=LEASE, now=now)


async def claim_one(db: Database, now: int = NOW, worker: str = "w1") -> Job:
    [job] = await claim(db, now, 1, worker)
    return job


async def read(db: Database, id: int) -> StoredJob:
    job = await get_stored_job(db, id)
    assert job is not None
    return job


async def finish(db: Database, job: Job) -> bool:
    return await db.write(lambda tx: queue.finish(tx, job))


async def test_a_claimed_job_is_what_was_added(database: Database) -> None:
    payload: dict[str, Any] = {"text": "naïve \x00 \ud800 🦉", "n": [1, 2.5, None, True], "{id}": {}}
    id = await database.write(lambda tx: queue.add(tx, "mow", payload, run_at=NOW, max_attempts=3))
    job = await claim_one(database)
    assert (job.id, job.kind, job.payload, job.attempts, job.max_attempts) == (id, "mow", payload, 1, 3)
    assert (job.state, job.fence) == ("running", 1)
    assert await queue.find(database, "running") == [job]
    stored = await read(database, id)
    assert (stored.worker, stored.lease_until) == ("w1", NOW + LEASE)


async def test_a_job_exists_only_if_its_transaction_commits(database: Database) -> None:
    async def body(tx: Transaction) -> None:
        await queue.add(tx, "mow", {}, run_at=NOW)
        raise LookupError

    with pytest.raises(LookupError):
        await database.write(body)
    assert await claim(database) == []


async def test_jobs_are_claimed_in_order_of_their_time_then_age(database: Database) -> None:
    late, first, second = await add(database, run_at=NOW - 1), *[await add(database, run_at=NOW - 2) for _ in "ab"]
    await add(database, run_at=NOW + 1)
    assert [job.id for job in await claim(database, limit=2)] == [first, second]
    assert [job.id for job in await claim(database)] == [late]
    assert await claim(database) == []


async def test_organisations_take_turns_however_many_jobs_one_of_them_has(database: Database) -> None:
    first = [await add(database, org_id="a") for _ in range(6)]
    others = [await add(database, org_id="b"), await add(database, org_id="b"), await add(database)]
    taken = await claim(database, limit=4)
    assert [job.id for job in taken] == [others[2], first[0], others[0], first[1]]
    assert [job.org_id for job in taken] == ["", "a", "b", "a"]
    assert [job.id for job in await claim(database, limit=1)] == [others[1]], "b has fewer running jobs than a"


async def test_additional_jobs_are_only_those_of_organisations_without_a_running_job(database: Database) -> None:
    for org_id in ("a", "a", "a", "b", "b", "c"):
        await add(database, org_id=org_id)

    async def take(limit: int, additional: int) -> list[str]:
        jobs = await queue.claim(database, "w1", ["mow"], limit=limit, additional=additional, lease=LEASE, now=NOW)
        return [job.org_id for job in jobs]

    assert await take(1, 0) == ["a"]
    assert await take(0, 9) == ["b", "c"]
    assert await take(0, 9) == []
    assert await take(9, 0) == ["a", "b", "a"]


async def test_a_job_of_the_future_does_not_hold_its_organisation_s_turn(database: Database) -> None:
    await add(database, org_id="a", run_at=NOW + 1)
    late = await add(database, org_id="b")
    assert [job.id for job in await claim(database, limit=2)] == [late]


async def test_unknown_kinds_are_left_alone(database: Database) -> None:
    await add(database, kind="paint")
    assert await claim(database) == []
    assert await queue.claim(database, "w1", [], limit=10, lease=LEASE, now=NOW) == []
    assert await claim(database, limit=0) == []


async def test_a_key_is_unique_while_its_job_is_unfinished(database: Database) -> None:
    id = await add(database, key="lawn-1")
    assert await add(database, key="lawn-1") == id
    assert await add(database, key="lawn-2") != id
    job = await claim_one(database)
    assert await add(database, key="lawn-1") == id
    assert await finish(database, job)
    assert await add(database, key="lawn-1") != id


async def test_concurrent_adds_with_one_key_make_one_job(database: Database) -> None:
    ids = await asyncio.gather(*(add(database, key="same") for _ in range(20)))
    assert len(set(ids)) == 1


async def test_racing_workers_share_the_jobs_without_overlap(database: Database, database_url: str) -> None:
    other = await connect(database_url)
    ids = [await add(database) for _ in range(60)]
    taken = await asyncio.gather(*(claim(db, limit=7, worker=f"w{n}") for n in range(6) for db in (database, other)))
    claimed = [job.id for jobs in taken for job in jobs]
    claimed += [job.id for job in await claim(database, limit=100)]
    assert sorted(claimed) == ids
    await other.close()


async def test_a_lease_that_ran_out_is_taken_over_and_the_late_finish_is_dropped(database: Database) -> None:
    await add(database)
    first = await claim_one(database)
    assert await claim(database, NOW + LEASE - 1) == []
    second = await claim_one(database, NOW + LEASE, worker="w2")
    assert (second.id, second.fence, second.attempts) == (first.id, 2, 2)
    assert (await read(database, second.id)).worker == "w2"
    assert not await finish(database, first)
    assert not await queue.fail(database, first, "late")
    assert not await queue.mark_dead(database, first, "late")
    assert await queue.release(database, [first]) == []
    assert await queue.extend(database, [first], LEASE) == []
    assert await queue.find(database, "running") == [second]
    assert await finish(database, second)
    assert not await finish(database, second)


async def test_abandoned_jobs_come_before_queued_ones(database: Database) -> None:
    first = await add(database, run_at=NOW - 1)
    await claim(database)
    second = await add(database, run_at=NOW - 10)
    assert [job.id for job in await claim(database, NOW + LEASE, limit=1)] == [first]
    assert [job.id for job in await claim(database, NOW + LEASE)] == [second]


async def test_extending_keeps_a_job(database: Database) -> None:
    await add(database)
    job = await claim_one(database)
    assert await queue.extend(database, [job], LEASE, now=NOW + LEASE - 1) == [job]
    assert await claim(database, NOW + LEASE) == []
    assert await queue.extend(database, [], LEASE) == []


async def test_a_job_that_kills_its_workers_ends_dead(database: Database) -> None:
    id = await add(database, max_attempts=2)
    await claim_one(database)
    await claim_one(database, NOW + LEASE, worker="w2")
    assert await claim(database, NOW + 2 * LEASE) == []
    job = await read(database, id)
    assert (job.state, job.finished_at, job.attempts) == ("dead", NOW + 2 * LEASE, 2)
    assert job.error == "every worker that tried it stopped before it was done; the last was w2"


async def test_failing_retries_later_and_later_then_gives_up(database: Database) -> None:
    id = await add(database, max_attempts=3)
    now, waits = NOW, list[int]()
    for _ in range(2):
        assert await queue.fail(database, await claim_one(database, now), "rain", now=now)
        job = await read(database, id)
        assert (job.state, job.error, job.lease_until) == ("queued", "rain", None)
        waits.append(job.run_at - now)
        assert await claim(database, job.run_at - 1) == []
        now = job.run_at
    assert queue.MIN_RETRY_DELAY * 0.5 <= waits[0] <= queue.MIN_RETRY_DELAY * 1.5
    assert queue.MIN_RETRY_DELAY <= waits[1] <= queue.MIN_RETRY_DELAY * 3
    assert await queue.fail(database, await claim_one(database, now), "hail", now=now)
    job = await read(database, id)
    assert (job.state, job.error, job.finished_at) == ("dead", "hail", now)


async def test_a_failure_may_say_when_to_try_again(database: Database) -> None:
    id = await add(database)
    await queue.fail(database, await claim_one(database), "busy", 7, now=NOW)
    assert (await read(database, id)).run_at == NOW + 7


def test_waiting_doubles_up_to_a_limit_and_is_spread() -> None:
    for attempts in range(1, 100):
        wait = min(queue.MIN_RETRY_DELAY * 2 ** (attempts - 1), queue.MAX_RETRY_DELAY)
        assert wait * 0.5 <= queue.backoff(attempts) <= wait * 1.5
    assert len({queue.backoff(1) for _ in range(20)}) > 1


@pytest.mark.parametrize("give_up", [queue.fail, queue.mark_dead])
async def test_a_stored_error_is_short_and_storable(
    database: Database, give_up: Callable[[Database, Job, str], Awaitable[bool]]
) -> None:
    id = await add(database)
    assert await give_up(database, await claim_one(database), "\x00\ud800é" * 5000)
    error = (await read(database, id)).error
    assert error is not None
    assert len(error) <= queue.MAX_ERROR_CHARS
    assert "\x00" not in error


async def test_released_jobs_are_as_if_never_claimed(database: Database) -> None:
    id = await add(database)
    before = await read(database, id)
    job = await claim_one(database)
    assert await queue.release(database, [job]) == [job]
    after = await read(database, id)
    assert (after.state, after.attempts, after.run_at) == ("queued", 0, before.run_at)
    assert (await claim_one(database)).fence == 2
    assert not await finish(database, job)


async def test_an_operator_finds_and_retries_dead_jobs(database: Database) -> None:
    ids = [await add(database) for _ in range(3)]
    for second, job in enumerate(await claim(database)):
        await queue.mark_dead(database, job, "broken", now=NOW + second)
    assert [job.id for job in await queue.find(database, "dead")] == ids[::-1]
    assert [job.id for job in await queue.find(database, "dead", limit=1)] == ids[-1:]
    assert await queue.retry(database, ids[0], now=NOW)
    assert not await queue.retry(database, ids[0], now=NOW)
    assert not await queue.retry(database, 999_999)
    assert await queue.counts(database) == {"queued": 1, "running": 0, "dead": 2}
    assert (await claim_one(database)).attempts == 1
    assert [job.id for job in await queue.find(database, "running")] == ids[:1]


async def test_a_dead_job_is_not_retried_beside_its_successor(database: Database) -> None:
    dead = await add(database, key="lawn-1")
    await queue.mark_dead(database, await claim_one(database), "broken")
    successor = await add(database, key="lawn-1")
    assert not await queue.retry(database, dead)
    await finish(database, await claim_one(database))
    assert await queue.retry(database, dead)
    assert await add(database, key="lawn-1") == dead != successor


async def test_pruning_forgets_old_finished_jobs_only(database: Database) -> None:
    for _ in range(4):
        await add(database)
    old, new, dead, _ = await claim(database)
    await database.write(lambda tx: queue.finish(tx, old, now=NOW))
    await database.write(lambda tx: queue.finish(tx, new, now=NOW + 10))
    await queue.mark_dead(database, dead, "broken", now=NOW)
    assert await database.write(lambda tx: queue.prune(tx, NOW + 10)) == 1
    assert await get_stored_job(database, old.id) is None
    assert await queue.counts(database) == {"queued": 0, "running": 1, "dead": 1}
    assert [job.id for job in await queue.find(database, "done")] == [new.id]


async def test_finished_jobs_cost_a_claim_nothing(database: Database) -> None:
    rows = [(f"{state}", NOW - n) for n in range(5000) for state in ("done", "dead")]
    sql = """
        INSERT INTO jobs (kind, payload, state, run_at, attempts, max_attempts, fence, added_at, finished_at)
        VALUES ('mow', '{}', $1, $2, 1, 5, 1, $2, $2)
    """
    await database.write(lambda tx: tx.execute_many(sql, rows))
    await add(database)
    if database.dialect == "postgres":
        await database.write(lambda tx: tx.execute("ANALYZE jobs"))
    for where, index in (
        ("state = 'queued' AND run_at", "jobs_queued"),
        ("state = 'running' AND lease_until", "jobs_running"),
    ):
        order = where.rpartition(" ")[2]
        query = f"SELECT id FROM jobs WHERE {where} <= 1 AND kind IN ('mow') ORDER BY {order}, id LIMIT 1"
        plan = await database.fetch(PLAN[database.dialect] + query)
        assert index in " ".join(str(value) for row in plan for value in (row[k] for k in row.keys()))  # noqa: SIM118
    assert len(await claim(database)) == 1
