"""The shelf: what search is told of notes.

An organisation's notes lie in four collections, by whether they are superseded and whether they have expired, so that
a search which leaves those out does not meet them at all, however many there are.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from almanac.core.database import Transaction
from almanac.memory.note import Note
from almanac.search import passage_store, sources
from almanac.search.passage import Passage
from almanac.search.passage_store import AnalysedPassages
from almanac.search.sources import Source

KIND = "note"
NOTE_PASSAGE_CHARS = 2_000  # characters of a passage

# Where a text is best cut: after a paragraph, a line, a sentence, a word.
_ENDS = tuple(map(re.compile, (r"\n\s*\n", r"\n", r"[.!?。！？]\s", r"\s")))


def collection_of(org_id: str, *, is_superseded: bool = False, is_expired: bool = False) -> str:
    """What the notes of an organisation are searched by."""
    return f"memory:{org_id}{':superseded' if is_superseded else ''}{':expired' if is_expired else ''}"


def collections_of(org_id: str, *, superseded: bool, expired: bool) -> tuple[str, ...]:
    """Those that a search looks in: the live notes and, where they are asked for, the others."""
    return tuple(
        collection_of(org_id, is_superseded=past, is_expired=over)
        for past in ([False, True] if superseded else [False])
        for over in ([False, True] if expired else [False])
    )


def prepare(title: str, body: str, tags: Sequence[str], context: str) -> AnalysedPassages:
    """The passages of a note, their words counted: not within a transaction, for it takes milliseconds."""
    headings = (" ".join(tags),) if tags else ()
    found = [Passage(start, end, body[start:end], headings=headings) for start, end in cut(body)]
    return passage_store.analyse(title, found, context)


async def add(tx: Transaction, note: Note, prepared: AnalysedPassages) -> None:
    """Let a new note be found: by its words at once, by its vectors as soon as a worker has made them."""
    await _open(tx, note)
    await passage_store.replace(tx, _source(note, prepared.context), prepared)


async def tell(tx: Transaction, note: Note) -> None:
    """Let search know that a note has been superseded, or has expired."""
    row = await tx.fetch_one("SELECT context FROM sources WHERE kind = $1 AND owner_id = $2", KIND, note.id)
    if row is not None:
        links = await tx.fetch("SELECT DISTINCT task_id FROM task_knowledge WHERE note_id = $1", note.id)
        await _open(tx, note)
        await sources.put(tx, _source(replace(note, tasks=tuple(link["task_id"] for link in links)), row["context"]))


def cut(body: str) -> list[tuple[int, int]]:
    """Where the passages of a text begin and end."""
    found: list[tuple[int, int]] = []
    start = 0
    while len(body) - start > NOTE_PASSAGE_CHARS:
        end = _end(body, start)
        found.append((start, end))
        start = end
    return [*found, (start, len(body))]


def _end(body: str, start: int) -> int:
    middle, most = start + NOTE_PASSAGE_CHARS // 2, start + NOTE_PASSAGE_CHARS
    for pattern in _ENDS:
        if ends := [match.end() for match in pattern.finditer(body, middle, most)]:
            return ends[-1]
    return most


async def _open(tx: Transaction, note: Note) -> None:
    """Have a collection that is new begin with the model of the live one: its vectors come from there."""
    await tx.execute(
        "INSERT INTO collections (name, org_id, model) SELECT $1, $2, coalesce((SELECT model FROM collections"
        " WHERE name = $3), '') WHERE 1 = 1 ON CONFLICT (name) DO NOTHING",
        _place(note),
        note.org_id,
        collection_of(note.org_id),
    )


def _place(note: Note) -> str:
    return collection_of(note.org_id, is_superseded=note.head_id is not None, is_expired=note.is_expired)


def _source(note: Note, context: str) -> Source:
    facts: dict[str, Any] = {
        "expires_at": note.expires_at,
        "superseded_at": note.superseded_at,
        "tasks": list(note.tasks),
    }
    return Source(
        org_id=note.org_id,
        collection=_place(note),
        kind=KIND,
        object_id=note.id,
        title=note.title,
        created_at=note.created_at,
        updated_at=note.superseded_at or note.created_at,
        tags=note.tags,
        metadata={name: value for name, value in facts.items() if value},
        context=context,
    )
