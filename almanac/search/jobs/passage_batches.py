"""Reads passages in batches, to analyse or embed them, and locks them before the results are stored."""

from collections.abc import AsyncGenerator, Iterable

from almanac.core.database import Database, Row, Transaction
from almanac.db.sql import id_list
from almanac.search import sources
from almanac.search.analysis import surrounding_text

_COLUMNS = f"p.id, p.source_id, p.ordinal, p.headings, p.text, p.words, s.title, {surrounding_text.COLUMNS}"
_NEXT = f"""
SELECT {_COLUMNS} FROM sources s JOIN passages p ON p.source_id = s.id {surrounding_text.JOINS}
WHERE s.collection = $1 AND s.id >= $2 AND (s.id > $2 OR p.ordinal > $3) ORDER BY s.id, p.ordinal LIMIT $4
"""  # noqa: S608 - a constant
_NOT_ANALYSED = f"""
SELECT {_COLUMNS} FROM passages p JOIN sources s ON s.id = p.source_id {surrounding_text.JOINS}
WHERE p.words IS NULL ORDER BY p.id LIMIT $1
"""  # noqa: S608 - a constant
_WITHOUT_VECTOR = f"""
SELECT {_COLUMNS} FROM sources s JOIN passages p ON p.source_id = s.id {surrounding_text.JOINS}
WHERE s.collection = $1 AND s.is_embedded = 0
    AND NOT EXISTS (SELECT 1 FROM vectors v WHERE v.passage_id = p.id AND v.model = $2)
ORDER BY s.id, p.ordinal LIMIT $3
"""  # noqa: S608 - a constant
_PRESENT = """
SELECT p.id, s.title, s.collection FROM passages p JOIN sources s ON s.id = p.source_id WHERE p.id IN ({ids})
"""


async def walk(db: Database, collection: str, batch_size: int) -> AsyncGenerator[list[Row]]:
    """Yield all passages of a collection in batches."""
    source_id, ordinal = 0, -1
    while rows := await db.scan(_NEXT, collection, source_id, ordinal, batch_size):
        yield rows
        source_id, ordinal = rows[-1]["source_id"], rows[-1]["ordinal"]


async def not_analysed(db: Database, batch_size: int) -> list[Row]:
    """Return some passages that have not been analysed."""
    return await db.scan(_NOT_ANALYSED, batch_size)


async def without_vector(db: Database, collection: str, model: str, batch_size: int) -> list[Row]:
    """Return some passages of a collection that have no vector of a model."""
    return await db.scan(_WITHOUT_VECTOR, collection, model, batch_size)


async def lock_unchanged(tx: Transaction, rows: Iterable[Row]) -> dict[int, str]:
    """Lock the sources of passages. Return the collections of the passages that still exist under the same title; a
    new title changes the words and the vectors. The sources are locked before their passages are read, in the same
    order as in all other writers, which avoids deadlocks."""
    titles = {row["id"]: row["title"] for row in rows}
    await sources.mark_changed(tx, {row["source_id"] for row in rows})
    found = await tx.fetch(_PRESENT.format(ids=id_list(titles)))
    return {row["id"]: row["collection"] for row in found if row["title"] == titles[row["id"]]}
