"""Supersession: links from notes to the notes that replace them.

A note has at most one successor, so the links form trees, and the roots are the live notes. A superseded note stores
its successor and its head, the root of its tree, so that an old id leads to the live note in one step. A lock per
organisation serialises new links, so that two concurrent calls cannot create a cycle.

    a ──▶ b ──▶ d        a, b, c: head d
          c ──▶ d        d superseded by e: head e for all four
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import Conflict, Forbidden
from almanac.memory import note_index, notes
from almanac.memory.note import SELECT, Note, NoteDraft, note_from_row
from almanac.quotas import monthly_quotas

MAX_LISTED_NOTES = 100

_CITING_NOTES = """
SELECT n.id, n.title FROM (
    SELECT c.note_id FROM note_citations c WHERE c.cited_id = $1
    UNION SELECT c.note_id FROM notes a JOIN note_citations c ON c.cited_id = a.id WHERE a.head_id = $1
) c JOIN notes n ON n.id = c.note_id
WHERE n.head_id IS NULL AND n.id <> $2 AND n.id <> $1 ORDER BY n.number DESC LIMIT $3
"""
_CHAIN = """
WITH RECURSIVE chain(id, successor_id) AS (
    SELECT n.id, n.successor_id FROM notes n WHERE n.id = $1
    UNION ALL SELECT n.id, n.successor_id FROM chain c JOIN notes n ON n.id = c.successor_id WHERE {condition}
)
SELECT id FROM chain
"""
_TREE = f"""{SELECT} WHERE n.number IN (SELECT number FROM notes WHERE id = $1 UNION
    SELECT number FROM notes WHERE head_id = $1) ORDER BY n.number LIMIT $2"""  # noqa: S608 - a constant
_CHAIN_TO = _CHAIN.format(condition="c.id <> $2")
_CHAIN_AT = _CHAIN.format(condition="c.id IN (SELECT m.id FROM notes m WHERE m.id = c.id AND m.superseded_at <= $2)")


class SupersedeCycle(Conflict):
    """A note cannot supersede itself or a note that supersedes it."""

    code = "supersede_cycle"
    remedy = "Store a new note with the current facts and let it supersede the last note of the chain."


class AlreadySuperseded(Conflict):
    """This note has been superseded by another one already."""

    code = "already_superseded"


@dataclass(frozen=True, slots=True)
class CitingNote:
    """A live note that cites a superseded note."""

    id: str
    title: str


@dataclass(frozen=True, slots=True)
class SupersedeResult:
    """The outcome of a new link."""

    head_id: str
    moved: int  # the number of notes whose head changed
    cited_by: Sequence[CitingNote]  # live notes that cite the superseded note or one of its predecessors


@dataclass(frozen=True, slots=True)
class RevisionResult:
    """A new note, and the link from the note that it replaces."""

    note: Note
    superseded: SupersedeResult


async def revise(call: Call, old_id: str, draft: NoteDraft, default_quota: int) -> RevisionResult:
    """Store a note and let it supersede another, in one transaction."""
    org_id, id = call.actor.org_id, str(uuid.uuid4())
    limit = await monthly_quotas.monthly_limit(call.db, org_id, notes.STORED_NOTES_METRIC, default_quota)
    await monthly_quotas.check(call.db, org_id, notes.STORED_NOTES_METRIC, limit)
    await notes.get(call.db, call, old_id)  # raises NotFound before the expensive analysis
    prepared = await notes.prepare(call.db, call, draft)

    async def body(tx: Transaction) -> RevisionResult:
        note = await notes.add(tx, call, id, draft, prepared, limit)
        return RevisionResult(note, await supersede(call, tx, old_id, id))

    return await call.db.write(body)


async def supersede(call: Call, tx: Transaction, old_id: str, new_id: str, at: int | None = None) -> SupersedeResult:
    """Mark a note as superseded by another. The actor must have written one of them. Repeating it changes nothing."""
    lock_links = (
        "INSERT INTO memories (org_id, supersessions) VALUES ($1, 1) ON CONFLICT (org_id) DO UPDATE"
        " SET supersessions = memories.supersessions + 1"
    )
    await tx.execute(lock_links, call.actor.org_id)
    old, new = await notes.get(tx, call, old_id), await notes.get(tx, call, new_id)
    if not call.actor.is_operator and call.actor.id not in (old.author_id, new.author_id):
        raise Forbidden(
            "You wrote neither of these two notes.",
            remedy="Store a note of your own with the current facts; it may supersede any note.",
        )
    if old.id == new.id or await _reaches(tx, new, old):
        raise SupersedeCycle()
    head_id = new.head_id or new.id
    if old.head_id is not None:
        if old.successor_id != new.id and old.head_id != new.id:
            raise AlreadySuperseded(remedy=f"Supersede {old.head_id}, which holds now, instead.")
        return SupersedeResult(old.head_id, 0, await cited_by(tx, old, head_id))
    affected = await cited_by(tx, old, head_id)
    moved = await _link(tx, old, new.id, head_id, clock.now() if at is None else at)
    return SupersedeResult(head_id, moved, affected)


async def cited_by(db: Reader, old: Note, head_id: str) -> list[CitingNote]:
    """The live notes that cite a note or one of the notes that it superseded."""
    rows = await db.fetch(_CITING_NOTES, old.id, head_id, MAX_LISTED_NOTES)
    return [CitingNote(row["id"], row["title"]) for row in rows]


async def history(db: Reader, note: Note) -> list[Note]:
    """All notes of a note's tree, in the order in which they were stored."""
    head_id = note.head_id or note.id
    rows = await db.fetch(_TREE, head_id, MAX_LISTED_NOTES)
    return [note_from_row(row) for row in rows]


async def note_at(db: Reader, note: Note, at: int) -> Note | None:
    """A note as it was at a time, or None if it was stored later."""
    if note.created_at > at:
        return None
    if note.superseded_at is None or note.superseded_at > at:
        return replace(note, successor_id=None, head_id=None, superseded_at=None)
    chain = await db.fetch(_CHAIN_AT, note.id, at)
    return replace(note, head_id=chain[-1]["id"])


async def _reaches(tx: Transaction, new: Note, old: Note) -> bool:
    """Whether the chain of successors of `new` contains `old`. Notes of different trees need no chain query."""
    if old.head_id is None:
        return new.head_id == old.id
    if new.head_id != old.head_id:
        return False
    return any(row["id"] == old.id for row in await tx.fetch(_CHAIN_TO, new.id, old.id))


async def _link(tx: Transaction, old: Note, new_id: str, head_id: str, at: int) -> int:
    moved = await tx.execute("UPDATE notes SET head_id = $2 WHERE head_id = $1", old.id, head_id)
    sql = "UPDATE notes SET successor_id = $2, head_id = $3, superseded_at = $4 WHERE id = $1"
    moved += await tx.execute(sql, old.id, new_id, head_id, at)
    await note_index.update(tx, replace(old, successor_id=new_id, head_id=head_id, superseded_at=at))
    return moved
