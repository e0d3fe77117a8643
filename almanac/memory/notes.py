"""Notes: what agents have learnt, kept as they said it, for everyone of their organisation."""

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace

import orjson

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import NotFound, QuotaExceeded
from almanac.memory import note_index, note_text
from almanac.memory.note import SELECT, Note, NoteDraft, TaskLink, note_from_row
from almanac.quotas import allowances
from almanac.quotas.idempotency import IdempotencyStore
from almanac.search.analysis import surrounding_text
from almanac.search.passage_store import AnalysedPassages

STORED_NOTES_METRIC = "knowledge_stored"
IDEMPOTENCY_SECONDS = 60  # seconds for which the same token means the same note
MOST_CITED = 50
MAX_CONTEXT_AGE = clock.DAY  # what was said longer ago than this is no longer what was said just before
_LONG = 4_000  # characters whose words are counted in a thread

_INSERT = """
INSERT INTO notes (id, org_id, author_id, source, title, body, tags, confidence, created_at, expires_at, is_expired)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (id) DO NOTHING RETURNING number
"""
_BEFORE = """
SELECT n.title, n.body, n.org_id, n.created_at, t.task_id FROM notes n LEFT JOIN task_knowledge t ON t.note_id = n.id
WHERE n.author_id = $1 ORDER BY n.number DESC LIMIT 2
"""


async def store(
    call: Call, draft: NoteDraft, repeats: IdempotencyStore, usual_quota: int, client_token: str | None = None
) -> Note:
    """Keep what an agent says. The same token within a minute gives the same note, also to two calls at once."""
    org_id, id = call.actor.org_id, str(uuid.uuid4())
    if client_token is not None:
        # Whoever comes first says which id it is to be; everyone stores under that one, and only one can.
        id = await repeats.get_or_set(_key(call, client_token), id, IDEMPOTENCY_SECONDS)
        if known := await find(call.db, org_id, [id]):
            return _touched(call, known[0])
    limit = await allowances.monthly_limit(call.db, org_id, STORED_NOTES_METRIC, usual_quota)
    try:
        await allowances.check(call.db, org_id, STORED_NOTES_METRIC, limit)
        prepared = await prepare(call.db, call, draft)
        return _touched(call, await call.db.write(lambda tx: add(tx, call, id, draft, prepared, limit)))
    except QuotaExceeded:
        # The same call may have used up what was left.
        if client_token is None or not (known := await find(call.db, org_id, [id])):
            raise
        return _touched(call, known[0])


async def stored(call: Call, repeats: IdempotencyStore, client_token: str | None) -> Note | None:
    """The note that a call with this token has stored, if there was one within a minute. To be asked before a call is
    judged: what it brought, such as a moment to come, may have been right then and not be so now."""
    id = None if client_token is None else await repeats.get(_key(call, client_token))
    found = await find(call.db, call.actor.org_id, [id]) if id else []
    return _touched(call, found[0]) if found else None


async def prepare(db: Reader, call: Call, draft: NoteDraft) -> AnalysedPassages:
    """What search needs of a draft: before the transaction, for it takes milliseconds."""
    context = await _context(db, call, draft)
    if len(draft.body) <= _LONG:
        return note_index.prepare(draft.title, draft.body, draft.tags, context)
    return await asyncio.to_thread(note_index.prepare, draft.title, draft.body, draft.tags, context)


async def add(
    tx: Transaction, call: Call, id: str, draft: NoteDraft, prepared: AnalysedPassages, limit: int | None
) -> Note:
    """Store a draft under an id, count it, and let it be found: all of it or nothing. A note that is there stays."""
    note = Note(
        number=0,
        id=id,
        org_id=call.actor.org_id,
        author_id=call.actor.id,
        author=call.actor.name,
        source=draft.source,
        title=draft.title,
        body=draft.body,
        tags=draft.tags,
        confidence=draft.confidence,
        created_at=clock.now(),
        expires_at=draft.expires_at,
        tasks=(draft.task.task_id,) if draft.task else (),
    )
    number = await insert(tx, note, [draft.task] if draft.task else [])
    if number is None:
        return (await find(tx, note.org_id, [id]))[0]
    await cite(tx, note, draft.cites)
    await note_index.add(tx, note, prepared)
    # Last, so that whoever else stores for this organisation waits for no more than the commit.
    await allowances.consume(tx, note.org_id, STORED_NOTES_METRIC, limit)
    return replace(note, number=number)


async def insert(tx: Transaction, note: Note, links: Iterable[TaskLink]) -> int | None:
    """Write a note's own rows; its number, or None if there is one of this id."""
    row = await tx.fetch_one(
        _INSERT,
        note.id,
        note.org_id,
        note.author_id,
        note.source,
        note.title,
        note.body,
        orjson.dumps(note.tags).decode(),
        note.confidence,
        note.created_at,
        note.expires_at,
        int(note.is_expired),
    )
    if row is None:
        return None
    for link in links:
        await tx.execute(
            "INSERT INTO task_knowledge (org_id, task_id, note_id, kind) VALUES ($1, $2, $3, $4)"
            " ON CONFLICT (org_id, task_id, note_id, kind) DO NOTHING",
            note.org_id,
            link.task_id,
            note.id,
            link.kind,
        )
    return row["number"]


async def cite(tx: Transaction, note: Note, named: Sequence[str]) -> None:
    """Mark the notes that a note rests on: those it names, which must be there, and those it gives the address of."""
    for id in (*named, *note_text.addresses(note.body)[:MOST_CITED]):
        there = await tx.fetch_one("SELECT 1 FROM notes WHERE id = $1 AND org_id = $2", id, note.org_id)
        if there is None and id in named:
            raise missing(id)
        if there is not None and id != note.id:
            await tx.execute(
                "INSERT INTO note_citations (cited_id, note_id) VALUES ($1, $2) ON CONFLICT (cited_id, note_id)"
                " DO NOTHING",
                id,
                note.id,
            )


async def get(db: Reader, call: Call, id: str) -> Note:
    """A note of the caller's organisation; of another one, there is none."""
    found = await find(db, call.actor.org_id, [id])
    if not found:
        raise missing(id)
    return _touched(call, found[0])


async def find(db: Reader, org_id: str, ids: Sequence[str]) -> list[Note]:
    """Notes of an organisation by their ids, as far as they are there."""
    if not ids:
        return []
    names = ", ".join(f"${number}" for number in range(1, len(ids) + 1))
    rows = await db.fetch(f"{SELECT} WHERE n.id IN ({names})", *ids)
    # Not in the statement: SQLite would rather read all notes of the organisation than look each of these up.
    return [note_from_row(row) for row in rows if row["org_id"] == org_id]


async def tasks(db: Reader, note: Note) -> list[TaskLink]:
    """The tasks that a note has to do with."""
    rows = await db.fetch("SELECT task_id, kind FROM task_knowledge WHERE note_id = $1 ORDER BY task_id, kind", note.id)
    return [TaskLink(row["task_id"], row["kind"]) for row in rows]


async def cited(db: Reader, note: Note) -> list[str]:
    """The notes that a note rests on."""
    rows = await db.fetch("SELECT cited_id FROM note_citations WHERE note_id = $1 ORDER BY cited_id", note.id)
    return [row["cited_id"] for row in rows]


def missing(id: str) -> NotFound:
    """What is said of a note that is not there, or not there for the caller."""
    return NotFound(f"There is no note {id}.", remedy="Search for it; it may have been stored elsewhere.")


async def _context(db: Reader, call: Call, draft: NoteDraft) -> str:
    """What the same agent said just before, under the same title or about the same task: a short note is often the
    next turn of that. It helps to find the note, and is no part of it."""
    if len(draft.body) > surrounding_text.SHORT:
        return ""
    said: list[str] = []
    for row in await db.fetch(_BEFORE, call.actor.id):
        is_next = row["title"] == draft.title or (draft.task is not None and row["task_id"] == draft.task.task_id)
        is_just_before = row["created_at"] > clock.now() - MAX_CONTEXT_AGE and row["org_id"] == call.actor.org_id
        if not (is_next and is_just_before) or len(row["body"]) > surrounding_text.SHORT:
            break
        said.insert(0, row["body"])
    return "\n".join(said)


def _key(call: Call, client_token: str) -> str:
    return f"idem:k.store:{call.actor.org_id}:{call.actor.id}:{client_token}"


def _touched(call: Call, note: Note) -> Note:
    call.record_access("note", note.id)
    return note
