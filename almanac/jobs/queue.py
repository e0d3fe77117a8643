"""Jobs: work that continues after the request that caused it.

A job is added in the transaction that needs it, so neither exists without the other. A worker claims it for a limited
time (a lease). If the worker dies, the lease expires, and another worker claims the job with a higher fence. Only the
holder of the latest fence may finish the job, so a late result of the first worker is dropped.

    queued ──claim──▶ running ──finish──▶ done
       ▲                 │ fail, release
       └─────────────────┤
                         └─ fail (no attempts left), mark_dead ──▶ dead ──retry──▶ queued
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from almanac.core import clock
from almanac.core.database import Database, Reader, Row, Transaction, Value
from almanac.db.sql import placeholders

MAX_ATTEMPTS = 5
MAX_ERROR_CHARS = 2_000
MIN_RETRY_DELAY = 5 * clock.SECOND
MAX_RETRY_DELAY = clock.HOUR
MAX_LEASE = 10 * clock.MINUTE
MAX_CLOCK_SKEW = clock.MINUTE  # between the machines of the processes

_COLUMNS = "id, kind, payload, key, state, run_at, attempts, max_attempts, fence, error, org_id"
_SKIP_LOCKED = {"sqlite": "", "postgres": "FOR UPDATE SKIP LOCKED"}  # SQLite has one writer, so no row is locked

_ADD = """
INSERT INTO jobs (kind, payload, key, state, run_at, attempts, max_attempts, fence, added_at, org_id)
VALUES ($1, $2, $3, 'queued', $4, 0, $5, 0, $6, $7)
ON CONFLICT (key) WHERE state IN ('queued', 'running') DO UPDATE SET key = excluded.key
RETURNING id
"""
_ANY_DUE = """
SELECT 1 WHERE EXISTS (SELECT 1 FROM jobs WHERE state = 'queued' AND run_at <= $1)
    OR EXISTS (SELECT 1 FROM jobs WHERE state = 'running' AND lease_until <= $1)
"""
_MARK_CRASHED_DEAD = """
UPDATE jobs SET state = 'dead', worker = NULL, lease_until = NULL, finished_at = $1,
    error = 'every worker that tried it stopped before it was done; the last was ' || worker
WHERE state = 'running' AND lease_until <= $1 AND attempts >= max_attempts
"""
# MATERIALIZED: PostgreSQL might otherwise run the subquery, and lock rows, more than once.
_CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM jobs WHERE {condition} AND kind IN ({kinds}) ORDER BY {order} LIMIT $2 {skip_locked}
)
UPDATE jobs SET state = 'running', attempts = attempts + 1, fence = fence + 1, worker = $3, lease_until = $4
WHERE id IN (SELECT id FROM picked)
RETURNING {columns}
"""
_ABANDONED = {"condition": "state = 'running' AND lease_until <= $1", "order": "lease_until, id"}
_QUEUED = {"condition": "state = 'queued' AND run_at <= $1 AND org_id = {org}", "order": "run_at, id"}
# One look into the index `jobs_turns` for each organisation, however many jobs it has.
_TURNS = """
WITH RECURSIVE orgs (org_id) AS (
    SELECT (SELECT min(org_id) FROM jobs WHERE state = 'queued')
    UNION ALL
    SELECT (SELECT min(jobs.org_id) FROM jobs WHERE state = 'queued' AND jobs.org_id > orgs.org_id)
    FROM orgs WHERE orgs.org_id IS NOT NULL
)
SELECT org_id,
    (SELECT min(run_at) FROM jobs WHERE state = 'queued' AND jobs.org_id = orgs.org_id) AS first_run_at,
    (SELECT count(*) FROM jobs WHERE state = 'running' AND jobs.org_id = orgs.org_id) AS running
FROM orgs WHERE org_id IS NOT NULL
"""

_HELD = "WHERE id = $1 AND fence = $2 AND state = 'running'"
_EXTEND = f"UPDATE jobs SET lease_until = $3 {_HELD}"  # noqa: S608 a constant
_FINISH = f"UPDATE jobs SET state = 'done', lease_until = NULL, error = NULL, finished_at = $3 {_HELD}"  # noqa: S608
_REQUEUE = f"""
UPDATE jobs SET state = 'queued', worker = NULL, lease_until = NULL, run_at = $3, error = $4, added_at = $5 {_HELD}
"""  # noqa: S608
_MARK_DEAD = f"UPDATE jobs SET state = 'dead', worker = NULL, lease_until = NULL, finished_at = $3, error = $4 {_HELD}"  # noqa: S608
_RELEASE = f"""
UPDATE jobs SET state = 'queued', worker = NULL, lease_until = NULL, attempts = attempts - 1 {_HELD}
"""  # noqa: S608
_RETRY = """
UPDATE jobs SET state = 'queued', attempts = 0, run_at = $2, added_at = $2, finished_at = NULL
WHERE id = $1 AND state = 'dead'
    AND NOT EXISTS (SELECT 1 FROM jobs other WHERE other.key = jobs.key AND other.state IN ('queued', 'running'))
"""
_ANY_FUTURE = """
SELECT 1 WHERE EXISTS (SELECT 1 FROM jobs WHERE state = 'queued' AND run_at > $1 AND added_at > $2)
    OR EXISTS (SELECT 1 FROM jobs WHERE state = 'running' AND lease_until > $3)
"""
_CORRECT_QUEUED = "UPDATE jobs SET run_at = $1, added_at = $1 WHERE state = 'queued' AND run_at > $1 AND added_at > $2"
_CORRECT_LEASE = "UPDATE jobs SET lease_until = $1 WHERE state = 'running' AND lease_until > $2"
_COUNT = """
SELECT (SELECT count(*) FROM jobs WHERE state = 'queued') AS queued,
    (SELECT count(*) FROM jobs WHERE state = 'running') AS running,
    (SELECT count(*) FROM jobs WHERE state = 'dead') AS dead
"""
# The state is written out, not a parameter, because only then do the partial indexes apply.
_FIND = {
    "queued": f"SELECT {_COLUMNS} FROM jobs WHERE state = 'queued' ORDER BY run_at, id LIMIT $1",  # noqa: S608
    "running": f"SELECT {_COLUMNS} FROM jobs WHERE state = 'running' ORDER BY lease_until, id LIMIT $1",  # noqa: S608
    "dead": f"SELECT {_COLUMNS} FROM jobs WHERE state = 'dead' ORDER BY finished_at DESC, id DESC LIMIT $1",  # noqa: S608
    "done": f"SELECT {_COLUMNS} FROM jobs WHERE state = 'done' ORDER BY finished_at DESC, id DESC LIMIT $1",  # noqa: S608
}


@dataclass(frozen=True)
class Job:
    """One job, with its state when it was read or claimed."""

    id: int
    kind: str
    payload: dict[str, Any]
    key: str | None
    state: str
    run_at: int
    attempts: int
    max_attempts: int
    fence: int
    error: str | None
    org_id: str = ""


async def add(
    tx: Transaction,
    kind: str,
    payload: dict[str, Any],
    *,
    run_at: int | None = None,
    key: str | None = None,
    max_attempts: int = MAX_ATTEMPTS,
    org_id: str = "",
) -> int:
    """Queue a job and return its id. If an unfinished job has the `key`, nothing is added; the id is that job's.

    The unfinished job may already have read the data that this transaction changes. If that matters, put a version in
    the key.
    """
    now = clock.now()
    text = json.dumps(payload, separators=(",", ":"), allow_nan=False)
    row = await tx.fetch_one(_ADD, kind, text, key, now if run_at is None else run_at, max_attempts, now, org_id)
    assert row is not None
    return row["id"]


async def claim(
    db: Database,
    worker: str,
    kinds: Sequence[str],
    *,
    limit: int,
    lease: int,
    additional: int = 0,
    now: int | None = None,
) -> list[Job]:
    """Claim up to `limit` due jobs for `lease` microseconds, those of dead workers first. Organisations take turns.

    Up to `additional` more jobs are claimed of organisations that have no running job.
    """
    now = clock.now() if now is None else now
    if not kinds or limit + additional < 1 or await db.fetch_one(_ANY_DUE, now) is None:
        return []  # an idle worker only reads

    async def take(tx: Transaction) -> list[Job]:
        async def take_some(where: dict[str, str], count: int, *org_id: str) -> list[Job]:
            sql = _claim_sql(db.dialect, len(kinds), where)
            rows = await tx.fetch(sql, now, count, worker, now + lease, *kinds, *org_id)
            return sorted(map(_job, rows), key=lambda job: (job.run_at, job.id))

        await tx.execute(_MARK_CRASHED_DEAD, now)
        taken = await take_some(_ABANDONED, limit) if limit > 0 else []
        rows = [row for row in await tx.fetch(_TURNS) if row["first_run_at"] <= now]
        waiting = {row["org_id"]: row["running"] for row in sorted(rows, key=lambda row: row["first_run_at"])}
        while waiting and len(taken) < limit + additional:
            org_id = min(waiting, key=lambda org: waiting[org])
            if len(taken) >= limit and waiting[org_id]:
                break
            count = limit - len(taken) if len(waiting) == 1 else 1
            jobs = await take_some(_QUEUED, max(count, 1), org_id)
            running = waiting.pop(org_id)
            if jobs:
                waiting[org_id] = running + len(jobs)  # behind the others
            taken += jobs
        return taken

    return await db.write(take)


async def extend(db: Database, jobs: Sequence[Job], lease: int, *, now: int | None = None) -> list[Job]:
    """Extend leases to `lease` microseconds from now. Returns the jobs that the worker still holds."""
    until = (clock.now() if now is None else now) + lease
    return await _update_held(db, jobs, _EXTEND, until)


async def finish(tx: Transaction, job: Job, *, now: int | None = None) -> bool:
    """Mark a job done, in the transaction of its effect. False: the worker no longer holds it; drop the effect."""
    return await tx.execute(_FINISH, job.id, job.fence, clock.now() if now is None else now) == 1


async def fail(db: Database, job: Job, error: str, retry_in: int | None = None, *, now: int | None = None) -> bool:
    """Queue a job for another attempt; mark it dead after the last one. False: the worker no longer holds it."""
    if job.attempts >= job.max_attempts:
        return await mark_dead(db, job, error, now=now)
    wait = backoff(job.attempts) if retry_in is None else retry_in
    at = clock.now() if now is None else now
    return bool(await _update_held(db, [job], _REQUEUE, at + wait, _shorten(error), at))


async def mark_dead(db: Database, job: Job, error: str, *, now: int | None = None) -> bool:
    """Mark a job dead and keep it for an operator. False: the worker no longer holds it."""
    at = clock.now() if now is None else now
    return bool(await _update_held(db, [job], _MARK_DEAD, at, _shorten(error)))


async def release(db: Database, jobs: Sequence[Job]) -> list[Job]:
    """Undo the claim of jobs, for a worker that stops. Returns the jobs that it still held."""
    return await _update_held(db, jobs, _RELEASE)


async def retry(db: Database, id: int, *, now: int | None = None) -> bool:
    """Queue a dead job again, with all its attempts. False: it is not dead, or an unfinished job has its key."""
    at = clock.now() if now is None else now
    return await db.write(lambda tx: tx.execute(_RETRY, id, at)) == 1


async def discard(db: Database, id: int) -> bool:
    """Remove a dead job. False: it is not dead."""
    return await db.write(lambda tx: tx.execute("DELETE FROM jobs WHERE id = $1 AND state = 'dead'", id)) == 1


async def correct_future_times(db: Database, *, now: int | None = None) -> int:
    """Make jobs due whose times the clock cannot have given yet. Returns their number.

    Such times remain when the clock is set back. The jobs would wait until the clock reaches them again.
    """
    now = clock.now() if now is None else now
    if await db.fetch_one(_ANY_FUTURE, now, now + MAX_CLOCK_SKEW, now + MAX_LEASE) is None:
        return 0  # the usual case, without a write

    async def correct(tx: Transaction) -> int:
        queued = await tx.execute(_CORRECT_QUEUED, now, now + MAX_CLOCK_SKEW)
        return queued + await tx.execute(_CORRECT_LEASE, now, now + MAX_LEASE)

    return await db.write(correct)


async def find(db: Database, state: str, limit: int = 100) -> list[Job]:
    """The jobs in one state: queued jobs in the order in which they run, finished ones newest first."""
    return [_job(row) for row in await db.scan(_FIND[state], limit)]


async def is_dead(db: Reader, key: str) -> bool:
    """Whether the newest job with this key is dead."""
    rows = await db.fetch("SELECT state FROM jobs WHERE key = $1 ORDER BY id DESC LIMIT 1", key)
    return [row["state"] for row in rows] == ["dead"]


async def counts(db: Database) -> dict[str, int]:
    """The numbers of queued, running and dead jobs."""
    row = (await db.scan(_COUNT))[0]
    return {state: row[state] for state in ("queued", "running", "dead")}


async def prune(tx: Transaction, before: int) -> int:
    """Remove the jobs done before a timestamp. Returns their number. Dead jobs stay until an operator acts."""
    return await tx.execute("DELETE FROM jobs WHERE state = 'done' AND finished_at < $1", before)


def backoff(attempts: int) -> int:
    """The delay after so many attempts. It doubles, with a random factor, so that many jobs do not retry at once."""
    wait = min(MIN_RETRY_DELAY * 2 ** min(attempts - 1, 20), MAX_RETRY_DELAY)
    return int(wait * random.uniform(0.5, 1.5))  # noqa: S311


def _claim_sql(dialect: str, kinds: int, where: dict[str, str]) -> str:
    condition = where["condition"].format(org=f"${5 + kinds}")
    return _CLAIM.format(
        kinds=placeholders(kinds, 5),
        skip_locked=_SKIP_LOCKED[dialect],
        columns=_COLUMNS,
        order=where["order"],
        condition=condition,
    )


async def _update_held(db: Database, jobs: Sequence[Job], sql: str, *args: Value) -> list[Job]:
    if not jobs:
        return []

    async def update(tx: Transaction) -> list[Job]:
        ordered = sorted(jobs, key=lambda job: job.id)  # every worker locks in this order, so there is no deadlock
        return [job for job in ordered if await tx.execute(sql, job.id, job.fence, *args)]

    return await db.write(update)


def _shorten(error: str) -> str:
    """The beginning of an error, without NUL and surrogates, which PostgreSQL cannot store."""
    return error[:MAX_ERROR_CHARS].replace("\x00", "�").encode("utf-8", "replace").decode()


def _job(row: Row) -> Job:
    values = {name: row[name] for name in Job.__dataclass_fields__}
    return Job(**{**values, "payload": json.loads(values["payload"])})
