"""The state of each collection and of the index, and the rebuild of the index.

A rebuild removes nothing before its replacement is complete, so searches continue during it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from almanac.core.database import Database, Reader
from almanac.core.settings import Settings
from almanac.db.sql import placeholders
from almanac.search import backends, sources
from almanac.search.index.embedded import change_log, compaction
from almanac.search.index.postgres import postgres_index, rebuild
from almanac.search.index.postgres.rebuild import IndexPart
from almanac.search.index.protocol import Coverage, SearchIndex

_INCOMPLETE = """
SELECT c.name, coalesce(c.next_model, c.model) AS model FROM collections c WHERE c.name IN ({names})
    AND EXISTS (SELECT 1 FROM sources s WHERE s.collection = c.name AND s.is_embedded = 0)
"""
_COLLECTIONS = "SELECT name, model, next_model FROM collections ORDER BY name"
_COUNTS = {
    "passages": """
        SELECT s.collection, '' AS model, count(*) AS number FROM sources s JOIN passages p ON p.source_id = s.id
        WHERE s.is_live = 1 GROUP BY s.collection""",
    "unread": """
        SELECT s.collection, '' AS model, count(*) AS number FROM passages p JOIN sources s ON s.id = p.source_id
        WHERE p.words IS NULL AND s.is_live = 1 GROUP BY s.collection""",
    "vectors": """
        SELECT s.collection, v.model, count(*) AS number FROM sources s JOIN passages p ON p.source_id = s.id
            JOIN vectors v ON v.passage_id = p.id
        WHERE s.is_live = 1 GROUP BY s.collection, v.model""",
}


@dataclass(frozen=True, slots=True)
class CollectionStatus:
    """The progress of a collection. The command line prints the fields as JSON."""

    collection: str
    passages: int
    unread: int  # passages that have not been analysed
    model: str  # the model that searches use; empty before the first vector
    embedded: int  # passages with a vector of this model
    next_model: str | None  # the model that searches use once every passage has a vector of it
    next_embedded: int

    @property
    def is_embedded(self) -> bool:
        return self.next_model is None and self.embedded >= self.passages

    @property
    def finally_embedded(self) -> int:
        """The number of passages with a vector of the next model or, if there is none, of the present one."""
        return self.embedded if self.next_model is None else self.next_embedded


async def coverages(db: Reader, index: SearchIndex, collections: Sequence[str]) -> dict[str, Coverage]:
    """Return the coverage of those collections in which passages have no vector. Complete collections cost almost
    nothing."""
    if not collections:
        return {}
    rows = await db.fetch(_INCOMPLETE.format(names=placeholders(len(collections))), *collections)
    found = {row["name"]: await index.coverage([row["name"]], row["model"]) for row in rows}
    return {name: coverage for name, coverage in found.items() if coverage.embedded < coverage.passages}


async def coverage(db: Reader, index: SearchIndex, collection: str) -> Coverage:
    """Return the number of passages in a collection, and of those with a vector of the latest model."""
    if incomplete := await coverages(db, index, [collection]):
        return incomplete[collection]
    passages = (await index.coverage([collection], "")).passages
    return Coverage(passages, passages)


async def collection_statuses(db: Database) -> list[CollectionStatus]:
    """Count the rows of every collection. This takes a second or two for a million passages."""
    counts = {
        (name, row["collection"], row["model"]): row["number"]
        for name, sql in _COUNTS.items()
        for row in await db.scan(sql)
    }
    return [
        CollectionStatus(
            collection=row["name"],
            passages=counts.get(("passages", row["name"], ""), 0),
            unread=counts.get(("unread", row["name"], ""), 0),
            model=row["model"],
            embedded=counts.get(("vectors", row["name"], row["model"]), 0),
            next_model=row["next_model"],
            next_embedded=counts.get(("vectors", row["name"], row["next_model"]), 0),
        )
        for row in await db.scan(_COLLECTIONS)
    ]


async def count_not_analysed(db: Database) -> int:
    return (await db.scan("SELECT count(*) FROM passages WHERE words IS NULL"))[0][0]


async def index_parts(settings: Settings, db: Database) -> list[IndexPart]:
    """Return the files, or PostgreSQL's tables and indexes, that the index consists of."""
    if not settings.on_sqlite:
        return await rebuild.parts(db)
    folder = backends.folder_of(settings)
    return [IndexPart(file.name, _size(folder / file.name)) for file in await change_log.files(db)]


async def count_pending_changes(settings: Settings, db: Database) -> int:
    """Count the changes that no file contains. PostgreSQL has none."""
    return (await change_log.count_pending(db))[0] if settings.on_sqlite else 0


async def compare(settings: Settings, db: Database) -> list[str]:
    """Compare the index with the database. Return a sentence for each difference."""
    if not settings.on_sqlite:
        return await postgres_index.compare(db)
    folder = backends.folder_of(settings)
    found = [
        f"in {each.collection}, {each.missing} {each.part} are missing and {each.surplus} are surplus"
        for each in await compaction.compare(db, folder)
    ]
    missing = await compaction.missing_files(db, folder)
    return [*found, f"index files are missing or damaged ({', '.join(missing)})"] if missing else found


async def rebuild_index(
    settings: Settings, db: Database, collection: str | None, on_progress: Callable[[int], None]
) -> None:
    """Build the structures that are derived from words and vectors again, for one collection or for all. `on_progress`
    receives the number of sources in each finished batch, if the index is rebuilt in batches."""
    if not settings.on_sqlite:
        await rebuild.rebuild(db, collection, on_progress)
        return
    folder = backends.folder_of(settings)
    if collection is None:
        await compaction.rebuild(db, folder)
        return
    # Every source is marked as changed, so that a new file replaces its content in the old files.
    for ids in await rebuild.source_batches(db, collection):
        await db.write(lambda tx, ids=ids: sources.mark_changed(tx, ids))
        on_progress(len(ids))
    await compaction.compact(db, folder, least=1)


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0
