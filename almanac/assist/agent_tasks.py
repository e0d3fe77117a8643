"""Tasks: messages to an agent, stored until their retention ends.

A task belongs to the sender of the message and does not exist for anyone else. Its answer is withheld from a caller who
may not read, or may no longer read, all knowledge bases behind it. The tasks of a session form the conversation that a
follow-up question refers to.
"""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import orjson

from almanac.assist.agent import Turn
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Database, Row, Transaction
from almanac.core.errors import Conflict, NotFound
from almanac.db.sql import from_row
from almanac.knowledge import bases

WORKING, COMPLETED, FAILED, CANCELED = "working", "completed", "failed", "canceled"
MAX_TURNS = 10  # of a session
ABANDONED_AFTER = clock.HOUR  # longer than the time limit of any message
WITHHELD = "The answer is withheld: you may not read, or may no longer read, a knowledge base that it is from."
_OWN = "org_id = $1 AND principal_id = $2 AND agent = $3"


@dataclass(frozen=True, slots=True)
class AgentTask:
    """One message and its answer."""

    id: str
    session_id: str
    question: str
    answer: str
    sources: list[dict[str, Any]]
    state: str
    updated_at: int


class TaskFinished(Conflict):
    """This task has ended and cannot be cancelled any more."""

    code = "task_finished"


async def begin(call: Call, agent: str, session_id: str, question: str) -> AgentTask:
    """Store a message as a task in the state `working`."""
    task = AgentTask(str(uuid.uuid4()), session_id, question, "", [], WORKING, clock.now())

    async def write(tx: Transaction) -> None:
        await tx.execute(
            "INSERT INTO agent_tasks (id, org_id, principal_id, agent, session_id, question, resolved, answer, "
            "sources, state, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $6, '', '[]', $7, $8, $8)",
            task.id, call.actor.org_id, call.actor.id, agent, session_id, question, WORKING, task.updated_at,
        )  # fmt: skip

    await call.db.write(write)
    return task


async def end(
    db: Database,
    id: str,
    state: str,
    *,
    resolved: str = "",
    answer: str = "",
    sources: list[dict[str, Any]] | None = None,
    base_ids: Iterable[int] = (),
) -> bool:
    """End a task that is in the state `working`. Returns False if it has ended already."""
    encoded_sources = orjson.dumps(sources or []).decode()
    sql = (
        "UPDATE agent_tasks SET state = $2, answer = $3, sources = $4, updated_at = $5, bases = $8, "
        "resolved = CASE WHEN $6 = '' THEN resolved ELSE $6 END WHERE id = $1 AND state = $7"
    )
    args = (id, state, answer, encoded_sources, clock.now(), resolved, WORKING, " ".join(map(str, sorted(base_ids))))
    return bool(await db.write(lambda tx: tx.execute(sql, *args)))


async def get(call: Call, agent: str, id: str) -> AgentTask:
    """A task of the actor. An answer that the actor may not read is replaced by `WITHHELD`."""
    actor = call.actor
    sql = f"SELECT * FROM agent_tasks WHERE {_OWN} AND id = $4"  # noqa: S608 - a constant
    row = await call.db.fetch_one(sql, actor.org_id, actor.id, agent, id)
    if row is None:
        raise NotFound("There is no such task, or it is not yours.")
    task = from_row(AgentTask, row, sources=orjson.loads(row["sources"]))
    is_readable = not task.answer or _is_readable(row, await _readable_ids(call, [row]))
    return task if is_readable else replace(task, answer=WITHHELD, sources=[])


async def cancel(call: Call, agent: str, id: str) -> AgentTask:
    """Cancel a task of the actor. The process that works on it notices within a second."""
    task = await get(call, agent, id)
    if not await end(call.db, task.id, CANCELED) and (task := await get(call, agent, id)).state != CANCELED:
        raise TaskFinished()
    return await get(call, agent, id)


async def is_cancelled(db: Database, id: str) -> bool:
    """Whether a task was cancelled or removed."""
    row = await db.fetch_one("SELECT state FROM agent_tasks WHERE id = $1", id)
    return row is None or row["state"] == CANCELED


async def turns(call: Call, agent: str, session_id: str, reader: Call) -> list[Turn]:
    """The last turns of a session of the actor, oldest first, as far as the reader may read their answers."""
    actor = call.actor
    rows = await call.db.fetch(
        f"SELECT question, resolved, answer, bases FROM agent_tasks WHERE {_OWN} AND session_id = $4 AND state = $5 "  # noqa: S608
        f"ORDER BY number DESC LIMIT {MAX_TURNS}",
        actor.org_id, actor.id, agent, session_id, COMPLETED,
    )  # fmt: skip
    readable = await _readable_ids(reader, rows)
    return [
        Turn(row["question"], row["resolved"], row["answer"], _base_ids(row))
        for row in reversed(rows)
        if _is_readable(row, readable)
    ]


async def prune(tx: Transaction, before: int) -> int:
    """Remove tasks created before a time, and mark tasks as failed if their process ended without finishing them."""
    sql = "UPDATE agent_tasks SET state = $1 WHERE state = $2 AND updated_at < $3"
    await tx.execute(sql, FAILED, WORKING, clock.now() - ABANDONED_AFTER)
    return await tx.execute("DELETE FROM agent_tasks WHERE created_at < $1", before)


async def _readable_ids(reader: Call, rows: Iterable[Row]) -> set[int]:
    """The knowledge bases behind the answers that the reader may read."""
    ids = sorted({id for row in rows for id in _base_ids(row)})
    return {base.id for base in await bases.get_many(reader, ids)}


def _is_readable(row: Row, readable_ids: set[int]) -> bool:
    # An answer of an earlier version does not have its bases.
    return row["bases"] is not None and _base_ids(row) <= readable_ids


def _base_ids(row: Row) -> frozenset[int]:
    return frozenset(map(int, (row["bases"] or "").split()))
