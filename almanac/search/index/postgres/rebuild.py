"""What PostgreSQL keeps for searching, made anew from the passages while it is searched."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from almanac.core.database import Database, Transaction
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
# What an interrupted REINDEX leaves behind, and what a search reads: the lists of terms, and the graphs.
_BROKEN = """
SELECT c.relname AS name FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid IN (CAST('terms' AS regclass), CAST('vectors' AS regclass)) AND NOT i.indisvalid
"""
_READ = """
SELECT c.relname AS name FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE (i.indrelid = CAST('terms' AS regclass) AND c.relname = 'terms_terms')
    OR (i.indrelid = CAST('vectors' AS regclass) AND starts_with(c.relname, 'vectors_near_'))
"""
_STRAY = (
    "DELETE FROM terms t USING passages p WHERE p.id = t.passage_id AND p.source_id <> t.source_id",
    "UPDATE vectors v SET source_id = p.source_id FROM passages p WHERE p.id = v.passage_id"
    " AND p.source_id <> v.source_id",
)


@dataclass(frozen=True, slots=True)
class Part:
    """Something an index is made of."""

    name: str
    bytes: int


async def parts(db: Database) -> list[Part]:
    """The tables that are searched, and their indexes."""
    return [Part(row["name"], row["bytes"]) for row in await db.scan(_PARTS)]


async def source_ids(db: Database, collection: str) -> list[list[int]]:
    """The sources of a collection, as many together as are renewed together."""
    rows = await db.scan("SELECT id FROM sources WHERE collection = $1 ORDER BY id", collection)
    ids = [row["id"] for row in rows]
    return [ids[start : start + SOURCES_AT_ONCE] for start in range(0, len(ids), SOURCES_AT_ONCE)]


async def renew(db: Database, collection: str | None, told: Callable[[int], None]) -> None:
    """List all passages of one collection or of all under their terms anew, then count the terms and, if it is all of
    them, build the indexes anew. `told` hears how many sources are done."""
    for sql in _STRAY:
        await db.write(lambda tx, sql=sql: tx.execute(sql))
    for name in [collection] if collection is not None else await _collections(db):
        for ids in await source_ids(db, name):
            await db.write(lambda tx, ids=ids: _list(tx, ids))
            told(len(ids))
        await db.write(lambda tx, name=name: tx.execute("UPDATE frequencies SET counted_at = 0 WHERE collection = $1",
                                                        name))  # fmt: skip
    if collection is None:
        async with db.lock("index"):
            await _build(db)
    await postgres_index.maintain(db)


async def _collections(db: Database) -> list[str]:
    return [row["name"] for row in await db.scan("SELECT name FROM collections ORDER BY name")]


async def _list(tx: Transaction, ids: Sequence[int]) -> None:
    await sources.mark_changed(tx, ids)  # and so nobody else changes them meanwhile
    wanted = ", ".join(map(str, ids))
    for row in await tx.fetch(f"SELECT id, collection FROM sources WHERE id IN ({wanted})"):  # noqa: S608 - numbers
        await tables.index_passages(tx, row["id"], row["collection"])
        await tables.move_vectors(tx, row["id"], row["collection"])


async def _build(db: Database) -> None:
    for row in await db.scan(_BROKEN):
        await db.scan(f"DROP INDEX CONCURRENTLY IF EXISTS {row['name']}")
    for row in await db.scan(_READ):
        await db.scan(f"REINDEX INDEX CONCURRENTLY {row['name']}")
