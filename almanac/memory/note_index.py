"""Keeps search up to date with notes, in the transaction that changes them.

The notes of an organisation are in four collections: live, superseded, expired, and both. A search for live notes
therefore never reads the others, however many there are.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from almanac.core.database import Transaction
from almanac.memory.note import Note
from almanac.search import passage_store, sources
from almanac.search.index import title_index
from almanac.search.passage import Passage
from almanac.search.passage_store import AnalysedPassages
from almanac.search.sources import Source
from almanac.search.splitting import split_prose

KIND = "note"
NOTE_PASSAGE_CHARS = 2_000


def collection_of(org_id: str, *, is_superseded: bool = False, is_expired: bool = False) -> str:
    """The name of one of the four collections of an organisation."""
    return f"memory:{org_id}{':superseded' if is_superseded else ''}{':expired' if is_expired else ''}"


def collections_of(org_id: str, *, superseded: bool, expired: bool) -> tuple[str, ...]:
    """The collections of the live notes and, on request, of superseded and expired notes."""
    return tuple(
        collection_of(org_id, is_superseded=is_superseded, is_expired=is_expired)
        for is_superseded in ([False, True] if superseded else [False])
        for is_expired in ([False, True] if expired else [False])
    )


def prepare(title: str, body: str, tags: Sequence[str], context: str) -> AnalysedPassages:
    """Split a note into passages and count their words. Call it before the transaction: it takes milliseconds."""
    headings = (" ".join(tags),) if tags else ()
    spans = split_prose(body, NOTE_PASSAGE_CHARS)
    passages = [Passage(start, end, body[start:end], headings=headings) for start, end in spans]
    return passage_store.analyse(title, passages, context)


async def add(tx: Transaction, note: Note, prepared: AnalysedPassages) -> None:
    """Index a new note. Keyword search finds it after the commit, vector search after the embedding job."""
    await _add_collection(tx, note)
    source_id = await passage_store.replace(tx, _source(note, prepared.context), prepared)
    await title_index.add(tx, _collection(note), {source_id: note.title})


async def update(tx: Transaction, note: Note) -> None:
    """Move a note that was superseded or has expired to its new collection."""
    sql = "SELECT collection, context FROM sources WHERE kind = $1 AND owner_id = $2"
    row = await tx.fetch_one(sql, KIND, note.id)
    if row is not None:
        links = await tx.fetch("SELECT DISTINCT task_id FROM task_knowledge WHERE note_id = $1", note.id)
        await _add_collection(tx, note)
        source = _source(replace(note, tasks=tuple(link["task_id"] for link in links)), row["context"])
        source_id = await sources.put(tx, source)
        await title_index.move(tx, source_id, note.title, row["collection"], source.collection)


async def _add_collection(tx: Transaction, note: Note) -> None:
    """Add the collection of a note if it is missing. It has the model of the live collection and shares its vectors."""
    sql = (
        "INSERT INTO collections (name, org_id, model) SELECT $1, $2, coalesce((SELECT model FROM collections"
        " WHERE name = $3), '') WHERE 1 = 1 ON CONFLICT (name) DO NOTHING"
    )
    await tx.execute(sql, _collection(note), note.org_id, collection_of(note.org_id))


def _collection(note: Note) -> str:
    return collection_of(note.org_id, is_superseded=note.head_id is not None, is_expired=note.is_expired)


def _source(note: Note, context: str) -> Source:
    metadata: dict[str, Any] = {
        "expires_at": note.expires_at,
        "superseded_at": note.superseded_at,
        "tasks": list(note.tasks),
    }
    return Source(
        org_id=note.org_id,
        collection=_collection(note),
        kind=KIND,
        object_id=note.id,
        title=note.title,
        created_at=note.created_at,
        updated_at=note.superseded_at or note.created_at,
        tags=note.tags,
        metadata={name: value for name, value in metadata.items() if value},
        context=context,
    )
