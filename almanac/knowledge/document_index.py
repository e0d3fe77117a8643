"""The shelf: what search is told of documents.

Search keeps its own note of every document that has been read: where it is, what it is called, and what it can be
filtered by. Whatever changes about a document is told from here, in the transaction that changes it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from almanac.core.database import Database, Row, Transaction
from almanac.knowledge.ingest import queue
from almanac.search import sources
from almanac.search.sources import Source

KIND = "document"

_SELECT = """
SELECT d.id, d.base_id, b.org_id, d.name, d.mime_type, d.folder_id, d.tags, d.metadata, d.created_at, d.updated_at,
    d.is_enabled, d.removed_at, r.title
FROM documents d JOIN bases b ON b.id = d.base_id JOIN readings r ON r.document_id = d.id
WHERE d.id = $1
"""
# Documents that have been read, and of which search knows nothing, or something else than it should.
_DIFFERENT = """
SELECT d.id, CASE WHEN s.id IS NULL THEN 1 ELSE 0 END AS is_unknown
FROM documents d JOIN readings r ON r.document_id = d.id
    LEFT JOIN sources s ON s.kind = 'document' AND s.owner_id = CAST(d.id AS TEXT)
WHERE s.id IS NULL OR s.collection <> 'base:' || CAST(d.base_id AS TEXT)
    OR s.is_live <> CASE WHEN d.is_enabled = 1 AND d.removed_at IS NULL THEN 1 ELSE 0 END
ORDER BY d.id
"""
_SURPLUS = """
SELECT s.owner_id FROM sources s WHERE s.kind = 'document'
    AND NOT EXISTS (SELECT 1 FROM readings r WHERE r.document_id = CAST(s.owner_id AS BIGINT)) ORDER BY s.id
"""


@dataclass(frozen=True, slots=True)
class IndexDifferences:
    """Where documents and what search knows of them differ. There should be nothing."""

    unknown: tuple[int, ...]  # documents that search does not know
    wrong: tuple[int, ...]  # that it knows in another base, or shows or hides against what holds
    surplus: tuple[int, ...]  # that it knows, and that are not there or have not been read


async def compare(db: Database) -> IndexDifferences:
    """Compare all documents with what search knows of them."""
    rows = await db.scan(_DIFFERENT)
    return IndexDifferences(
        tuple(row["id"] for row in rows if row["is_unknown"]),
        tuple(row["id"] for row in rows if not row["is_unknown"]),
        tuple(int(row["owner_id"]) for row in await db.scan(_SURPLUS)),
    )


async def repair(db: Database) -> int:
    """Let search know again what it has lost or got wrong; of how many documents."""
    found = await compare(db)

    async def body(tx: Transaction) -> None:
        # One that has been read since it was compared is no surplus any more.
        await remove(tx, [id for id in found.surplus if await describe(tx, id) is None])
        await update(tx, found.wrong)
        for document_id in found.unknown:
            await queue.requeue(tx, document_id)

    await db.write(body)
    return len(found.surplus) + len(found.wrong) + len(found.unknown)


async def update(tx: Transaction, document_ids: Iterable[int]) -> None:
    """Let search know how documents are now, those of them that have been read."""
    for document_id in document_ids:
        if source := await describe(tx, document_id):
            await sources.put(tx, source)


async def describe(tx: Transaction, document_id: int) -> Source | None:
    """A document that has been read, as search knows it."""
    row = await tx.fetch_one(_SELECT, document_id)
    return None if row is None else _source(row)


def title_of(title: str | None, name: str) -> str:
    """What a document is found by the name of: the title it gives itself, or its file's name."""
    return title or name


def collection_of(base_id: int) -> str:
    """What the passages of a knowledge base are searched by."""
    return f"base:{base_id}"


async def set_searchable(tx: Transaction, document_ids: Iterable[int], *, is_live: bool) -> None:
    """Let documents be found, or hide them."""
    await sources.show(tx, KIND, map(str, document_ids), is_live=is_live)


async def remove(tx: Transaction, document_ids: Iterable[int]) -> None:
    """Let nothing of documents be found any more."""
    await sources.remove(tx, KIND, map(str, document_ids))


def _source(row: Row) -> Source:
    return Source(
        org_id=row["org_id"],
        collection=collection_of(row["base_id"]),
        kind=KIND,
        object_id=str(row["id"]),
        title=title_of(row["title"], row["name"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        folder_id=row["folder_id"],
        tags=tuple(orjson.loads(row["tags"])),
        metadata=orjson.loads(row["metadata"]),
        media=row["mime_type"],
        is_live=bool(row["is_enabled"]) and row["removed_at"] is None,
    )
