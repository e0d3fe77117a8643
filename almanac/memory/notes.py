"""Notes: storing and reading facts that agents share with their organisation."""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace

import orjson

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import NotFound, QuotaExceeded
from almanac.core.fair_slots import compute
from almanac.db.sql import placeholders
from almanac.memory import note_index, note_text
from almanac.memory.note import SELECT, Note, NoteDraft, TaskLink, note_from_row, require_access
from almanac.quotas import monthly_quotas
from almanac.quotas.idempotency import IdempotencyStore
from almanac.search.analysis import surrounding_text
from almanac.search.passage_store import AnalysedPassages

STORED_NOTES_METRIC = "knowledge_stored"
IDEMPOTENCY_SECONDS = 60  # calls with the same client token within this time store one note
MAX_CITED_NOTES = 50
MAX_CONTEXT_AGE = clock.DAY  # older notes do not count as context
_MAX_INLINE_CHARS = 4_000  # a longer body is analysed in a thread, to keep the event loop responsive

_INSERT = """
INSERT INTO notes (id, org_id, author_id, source, title, body, tags, confidence, created_at, expires_at, is_expired)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (id) DO NOTHING RETURNING number
"""
_PREVIOUS = """
SELECT n.title, n.body, n.org_id, n.created_at, t.task_id FROM notes n LEFT JOIN task_knowledge t ON t.note_id = n.id
WHERE n.author_id = $1 ORDER BY n.number DESC LIMIT 2
"""


async def store(
    call: Call, draft: NoteDraft, idempotency: IdempotencyStore, default_quota: int, client_token: str | None = None
) -> Note:
    """Store a note. Calls with the same client token within a minute return the same note, even concurrent ones."""
    require_access(call)
    org_id, id = call.actor.org_id, str(uuid.uuid4())
    if client_token is not None:
        # The first call determines the id. All calls insert under this id, and only one insert succeeds.
        id = await idempotency.get_or_set(_idempotency_key(call, client_token), id, IDEMPOTENCY_SECONDS)
        if existing := await find(call.db, org_id, [id]):
            return _recorded(call, existing[0])
    limit = await monthly_quotas.monthly_limit(call.db, org_id, STORED_NOTES_METRIC, default_quota)
    try:
        await monthly_quotas.check(call.db, org_id, STORED_NOTES_METRIC, limit)
        prepared = await prepare(call.db, call, draft)
        return _recorded(call, await call.db.write(lambda tx: add(tx, call, id, draft, prepared, limit)))
    except QuotaExceeded:
        # A concurrent call with the same token may have used up the quota.
        if client_token is None or not (existing := await find(call.db, org_id, [id])):
            raise
        return _recorded(call, existing[0])


async def stored(call: Call, idempotency: IdempotencyStore, client_token: str | None) -> Note | None:
    """The note that a call with this client token stored within the last minute, or None.

    Check this before validating the arguments: an expiry that was valid in the first call may be past in the repeat.
    """
    require_access(call)
    id = None if client_token is None else await idempotency.get(_idempotency_key(call, client_token))
    existing = await find(call.db, call.actor.org_id, [id]) if id else []
    return _recorded(call, existing[0]) if existing else None


async def prepare(db: Reader, call: Call, draft: NoteDraft) -> AnalysedPassages:
    """Analyse a draft for search. Call it before the transaction, because it takes milliseconds."""
    context = await _context(db, call, draft)
    if len(draft.body) <= _MAX_INLINE_CHARS:
        return note_index.prepare(draft.title, draft.body, draft.tags, context)
    return await compute(note_index.prepare, draft.title, draft.body, draft.tags, context)


async def add(
    tx: Transaction, call: Call, id: str, draft: NoteDraft, prepared: AnalysedPassages, limit: int | None
) -> Note:
    """Store, count and index a note in one transaction. If a note with this id exists, return that one instead."""
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
    # Last, because the lock on the counter blocks other stores of this organisation until the commit.
    await monthly_quotas.consume(tx, note.org_id, STORED_NOTES_METRIC, 1, limit)
    return replace(note, number=number)


async def insert(tx: Transaction, note: Note, links: Iterable[TaskLink]) -> int | None:
    """Insert a note and its task links. Returns its number, or None if the id exists."""
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
        sql = (
            "INSERT INTO task_knowledge (org_id, task_id, note_id, kind) VALUES ($1, $2, $3, $4)"
            " ON CONFLICT (org_id, task_id, note_id, kind) DO NOTHING"
        )
        await tx.execute(sql, note.org_id, link.task_id, note.id, link.kind)
    return row["number"]


async def cite(tx: Transaction, note: Note, ids: Sequence[str]) -> None:
    """Store a note's citations: the given notes, which must exist, and the notes whose URIs are in its body."""
    for id in (*ids, *note_text.linked_ids(note.body)[:MAX_CITED_NOTES]):
        does_exist = await exists(tx, note.org_id, id)
        if not does_exist and id in ids:
            raise missing(id)
        if does_exist and id != note.id:
            await tx.execute(
                "INSERT INTO note_citations (cited_id, note_id) VALUES ($1, $2) ON CONFLICT (cited_id, note_id)"
                " DO NOTHING",
                id,
                note.id,
            )


async def get(db: Reader, call: Call, id: str) -> Note:
    """The note with this id in the actor's organisation. Raises NotFound."""
    require_access(call)
    existing = await find(db, call.actor.org_id, [id])
    if not existing:
        raise missing(id)
    return _recorded(call, existing[0])


async def find(db: Reader, org_id: str, ids: Sequence[str]) -> list[Note]:
    """The existing notes of an organisation with these ids."""
    if not ids:
        return []
    # With a condition on org_id alone, SQLite would read all notes of the organisation instead of looking up the ids.
    where = f"n.id IN ({placeholders(len(ids), 2)}) AND n.org_id || '' = $1"
    return [note_from_row(row) for row in await db.fetch(f"{SELECT} WHERE {where}", org_id, *ids)]


async def newest(call: Call, below: int, limit: int) -> list[Note]:
    """The newest notes with a number below this one that are neither superseded nor expired."""
    require_access(call)
    live = "n.org_id = $1 AND n.number < $2 AND n.head_id IS NULL AND (n.expires_at IS NULL OR n.expires_at > $3)"
    sql = f"{SELECT} WHERE {live} ORDER BY n.number DESC LIMIT $4"
    return [note_from_row(row) for row in await call.db.scan(sql, call.actor.org_id, below, clock.now(), limit)]


async def exists(db: Reader, org_id: str, id: str) -> bool:
    """Whether an organisation has a note with this id."""
    return await db.fetch_one("SELECT 1 FROM notes WHERE id = $1 AND org_id = $2", id, org_id) is not None


async def tasks(db: Reader, note: Note) -> list[TaskLink]:
    """The task links of a note."""
    rows = await db.fetch("SELECT task_id, kind FROM task_knowledge WHERE note_id = $1 ORDER BY task_id, kind", note.id)
    return [TaskLink(row["task_id"], row["kind"]) for row in rows]


async def cited(db: Reader, note: Note) -> list[str]:
    """The ids of the notes that a note cites."""
    rows = await db.fetch("SELECT cited_id FROM note_citations WHERE note_id = $1 ORDER BY cited_id", note.id)
    return [row["cited_id"] for row in rows]


def missing(id: str) -> NotFound:
    """The error for a note that does not exist or belongs to another organisation: callers cannot tell them apart."""
    return NotFound(f"There is no note {id}.", remedy="Search for it; it may have been stored elsewhere.")


async def _context(db: Reader, call: Call, draft: NoteDraft) -> str:
    """The author's previous one or two short notes with the same title or task, which a short note often continues.

    The context is indexed with the note and never shown as part of it.
    """
    if len(draft.body) > surrounding_text.SHORT_PASSAGE_CHARS:
        return ""
    bodies: list[str] = []
    for row in await db.fetch(_PREVIOUS, call.actor.id):
        is_related = row["title"] == draft.title or (draft.task is not None and row["task_id"] == draft.task.task_id)
        is_recent = row["created_at"] > clock.now() - MAX_CONTEXT_AGE and row["org_id"] == call.actor.org_id
        if not (is_related and is_recent) or len(row["body"]) > surrounding_text.SHORT_PASSAGE_CHARS:
            break
        bodies.insert(0, row["body"])
    return "\n".join(bodies)


def _idempotency_key(call: Call, client_token: str) -> str:
    return f"idem:k.store:{call.actor.org_id}:{call.actor.id}:{client_token}"


def _recorded(call: Call, note: Note) -> Note:
    call.record_access("note", note.id)
    return note
