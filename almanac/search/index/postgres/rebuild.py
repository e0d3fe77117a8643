"""Rebuilds the tables and indexes that PostgreSQL keeps for searching, while searches continue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from almanac.core.database import Database, Transaction
from almanac.db.sql import id_list
from almanac.search import sources
from almanac.search.index import tables
from almanac.search.index.postgres import postgres_index

SOURCES_AT_ONCE = 50

_PARTS = """
SELECT c.relname AS name, pg_relation_size(c.oid) AS bytes
FROM pg_class c WHERE c.oid IN (CAST('terms' AS regclass), CAST('vectors' AS regclass))
UNION ALL
SELECT c.relname, pg_relation_size(c.oid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid IN (CAST('terms' AS regclass), CAST('vectors' AS regclass))
ORDER BY 1
"""
# Invalid indexes, which an interrupted REINDEX leaves behind.
_INVALID = """
SELECT c.relname AS name FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid IN (CAST('terms' AS regclass), CAST('vectors' AS regclass)) AND NOT i.indisvalid
"""
# The indexes that searches use: the posting lists and the graphs.
_SEARCHED = """
SELECT c.relname AS name FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE (i.indrelid = CAST('terms' AS regclass) AND c.relname = 'terms_terms')
    OR (i.indrelid = CAST('vectors' AS regclass) AND starts_with(c.relname, 'vectors_near_'))
"""
_REPAIRS = (
    "DELETE FROM terms t USING passages p WHERE p.id = t.passage_id AND p.source_id <> t.source_id",
    "UPDATE vectors v SET source_id = p.source_id FROM passages p WHERE p.id = v.passage_id"
    " AND p.source_id <> v.source_id",
)


@dataclass(frozen=True, slots=True)
class IndexPart:
    """A file, table or database index that the search index consists of."""

    name: str
    bytes: int


async def parts(db: Database) -> list[IndexPart]:
    """Return the tables that are searched, and their indexes."""
    return [IndexPart(row["name"], row["bytes"]) for row in await db.scan(_PARTS)]


async def source_batches(db: Database, collection: str) -> list[list[int]]:
    """Return the ids of the sources of a collection, in batches."""
    rows = await db.scan("SELECT id FROM sources WHERE collection = $1 ORDER BY id", collection)
    ids = [row["id"] for row in rows]
    return [ids[start : start + SOURCES_AT_ONCE] for start in range(0, len(ids), SOURCES_AT_ONCE)]


async def rebuild(db: Database, collection: str | None, on_progress: Callable[[int], None]) -> None:
    """Rewrite the terms of one collection or of all, then count them and, if it is all, rebuild the database indexes.
    `on_progress` receives the number of sources in each finished batch."""
    for sql in _REPAIRS:
        await db.write(lambda tx, sql=sql: tx.execute(sql))
    expire = "UPDATE frequencies SET counted_at = 0 WHERE collection = $1"
    for name in [collection] if collection is not None else await tables.collection_names(db):
        for ids in await source_batches(db, name):
            await db.write(lambda tx, ids=ids: _index(tx, ids))
            on_progress(len(ids))
        await db.write(lambda tx, name=name: tx.execute(expire, name))
    if collection is None:
        async with db.lock("index"):
            await _rebuild_indexes(db)
    await postgres_index.maintain(db)


async def _index(tx: Transaction, ids: Sequence[int]) -> None:
    await sources.mark_changed(tx, ids)  # this also locks them
    for row in await tx.fetch(f"SELECT id, collection FROM sources WHERE id IN ({id_list(ids)})"):  # noqa: S608
        await tables.move_source(tx, row["id"], row["collection"])


async def _rebuild_indexes(db: Database) -> None:
    for row in await db.scan(_INVALID):
        await db.scan(f"DROP INDEX CONCURRENTLY IF EXISTS {row['name']}")
    for row in await db.scan(_SEARCHED):
        await db.scan(f"REINDEX INDEX CONCURRENTLY {row['name']}")
