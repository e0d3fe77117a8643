"""Updates the search index when documents change.

Search has a row of its own for every parsed document: a source, with its collection, its title and the values that
filters compare. Each function here runs in the transaction that changes the document.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from almanac.core.database import Database, Transaction
from almanac.knowledge.ingest import queue
from almanac.search import sources
from almanac.search.sources import Source

KIND = "document"
_COLLECTION_PREFIX = "base:"

_SELECT = """
SELECT d.id, d.base_id, b.org_id, d.name, d.mime_type, d.folder_id, d.tags, d.metadata, d.created_at, d.updated_at,
    d.is_enabled, d.removed_at, r.title
FROM documents d JOIN bases b ON b.id = d.base_id JOIN readings r ON r.document_id = d.id
WHERE d.id = $1
"""
# Parsed documents without a source, or with a wrong one.
_DIFFERENT = f"""
SELECT d.id, CASE WHEN s.id IS NULL THEN 1 ELSE 0 END AS has_no_source
FROM documents d JOIN readings r ON r.document_id = d.id
    LEFT JOIN sources s ON s.kind = 'document' AND s.owner_id = CAST(d.id AS TEXT)
WHERE s.id IS NULL OR s.collection <> '{_COLLECTION_PREFIX}' || CAST(d.base_id AS TEXT)
    OR s.is_live <> CASE WHEN d.is_enabled = 1 AND d.removed_at IS NULL THEN 1 ELSE 0 END
ORDER BY d.id
"""  # noqa: S608 - constants
_SURPLUS = """
SELECT s.owner_id FROM sources s WHERE s.kind = 'document'
    AND NOT EXISTS (SELECT 1 FROM readings r WHERE r.document_id = CAST(s.owner_id AS BIGINT)) ORDER BY s.id
"""


@dataclass(frozen=True, slots=True)
class IndexDifferences:
    """Ids of documents whose sources are wrong. All three are empty unless there is a fault."""

    unknown: tuple[int, ...]  # parsed documents without a source
    wrong: tuple[int, ...]  # documents whose source is in another collection, or is searchable when it should not be
    surplus: tuple[int, ...]  # sources without a parsed document


async def compare(db: Database) -> IndexDifferences:
    """Compare all documents with their sources."""
    rows = await db.scan(_DIFFERENT)
    return IndexDifferences(
        tuple(row["id"] for row in rows if row["has_no_source"]),
        tuple(row["id"] for row in rows if not row["has_no_source"]),
        tuple(int(row["owner_id"]) for row in await db.scan(_SURPLUS)),
    )


async def repair(db: Database) -> int:
    """Correct all differences; return their number."""
    differences = await compare(db)

    async def body(tx: Transaction) -> None:
        # A document that was parsed after the comparison is no longer surplus.
        await remove(tx, [id for id in differences.surplus if await describe(tx, id) is None])
        await update(tx, differences.wrong)
        for document_id in differences.unknown:
            await queue.requeue(tx, document_id)

    await db.write(body)
    return len(differences.surplus) + len(differences.wrong) + len(differences.unknown)


async def update(tx: Transaction, document_ids: Iterable[int]) -> None:
    """Write the sources of documents again. Documents that have not been parsed have none."""
    for document_id in document_ids:
        if source := await describe(tx, document_id):
            await sources.put(tx, source)


async def describe(tx: Transaction, document_id: int) -> Source | None:
    """The source of a document, if it has been parsed."""
    row = await tx.fetch_one(_SELECT, document_id)
    if row is None:
        return None
    return Source(
        org_id=row["org_id"],
        collection=collection_of(row["base_id"]),
        kind=KIND,
        object_id=str(row["id"]),
        title=row["title"] or row["name"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        folder_id=row["folder_id"],
        tags=tuple(orjson.loads(row["tags"])),
        metadata=orjson.loads(row["metadata"]),
        media=row["mime_type"],
        is_live=bool(row["is_enabled"]) and row["removed_at"] is None,
    )


def collection_of(base_id: int) -> str:
    """The name of the collection with the passages of a knowledge base."""
    return f"{_COLLECTION_PREFIX}{base_id}"


async def set_searchable(tx: Transaction, document_ids: Iterable[int], *, is_live: bool) -> None:
    """Include documents in search, or exclude them."""
    await sources.show(tx, KIND, map(str, document_ids), is_live=is_live)


async def remove(tx: Transaction, document_ids: Iterable[int]) -> None:
    """Remove documents from search."""
    await sources.remove(tx, KIND, map(str, document_ids))
