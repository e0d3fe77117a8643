"""Upkeep: how far an index is, and having it made anew while it is searched.

Nothing is taken away before what replaces it is there: passages keep their words until they have been analysed anew,
and their vectors until they have been embedded anew. Each batch is a transaction, so that whoever stops half-way leaves
a mixture of old and new, and nothing broken.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from almanac.ai.embedder import Embedder
from almanac.core import clock
from almanac.core.database import Database, Reader, Row, Transaction
from almanac.core.settings import Settings
from almanac.jobs import queue
from almanac.jobs.queue import Job
from almanac.jobs.worker import Effect
from almanac.search import backends, sources
from almanac.search.analysis import analyser, surrounding_text
from almanac.search.index import tables
from almanac.search.index.embedded import change_log, compaction
from almanac.search.index.postgres import postgres_index, rebuild
from almanac.search.index.postgres.rebuild import Part
from almanac.search.index.protocol import Coverage, SearchIndex
from almanac.search.jobs import embed_passages

AT_ONCE = 500  # passages analysed and stored together
JOB_TIME_SLICE = 20 * clock.SECOND  # after which other jobs have their turn
DEAD_JOB_RETRY_DELAY = clock.HOUR  # before what was given up is tried once more

_WAITING = """
SELECT c.name, coalesce(c.next_model, c.model) AS model FROM collections c WHERE c.name IN ({names})
    AND EXISTS (SELECT 1 FROM sources s WHERE s.collection = c.name AND s.is_embedded = 0)
"""
_UNDER_WAY = """
SELECT 1 FROM jobs WHERE key = $1 AND (state = 'running' OR (state = 'queued' AND run_at <= $2))
"""
_FORGOTTEN = """
SELECT c.name FROM collections c
WHERE EXISTS (SELECT 1 FROM sources s WHERE s.collection = c.name AND s.is_embedded = 0)
    AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.key = 'embed:' || c.name AND j.state IN ('queued', 'running'))
    AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.key = 'embed:' || c.name AND j.state = 'dead' AND j.finished_at > $1)
"""
_COLUMNS = f"p.id, p.source_id, p.ordinal, p.headings, p.text, p.words, s.title, {surrounding_text.COLUMNS}"
_UNREAD = f"""
SELECT {_COLUMNS} FROM passages p JOIN sources s ON s.id = p.source_id {surrounding_text.JOINS}
WHERE p.words IS NULL ORDER BY p.id LIMIT $1
"""  # noqa: S608 - a constant
_NEXT = f"""
SELECT {_COLUMNS} FROM sources s JOIN passages p ON p.source_id = s.id {surrounding_text.JOINS}
WHERE s.collection = $1 AND s.id >= $2 AND (s.id > $2 OR p.ordinal > $3) ORDER BY s.id, p.ordinal LIMIT $4
"""  # noqa: S608 - a constant
_PRESENT = """
SELECT p.id, s.title, s.collection FROM passages p JOIN sources s ON s.id = p.source_id WHERE p.id IN ({ids})
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
    """How far a collection is."""

    collection: str
    passages: int
    unread: int  # passages whose words have not been analysed
    model: str  # that it is searched by; empty while nothing has been embedded
    embedded: int  # passages with a vector of it
    next_model: str | None  # that takes over once every passage has a vector of it
    next_embedded: int

    @property
    def is_embedded(self) -> bool:
        """Whether nothing is left to be embedded."""
        return self.next_model is None and self.embedded >= self.passages

    @property
    def reached(self) -> int:
        """How many passages have the vectors they are to have."""
        return self.embedded if self.next_model is None else self.next_embedded


# How far it is


async def coverages(db: Reader, index: SearchIndex, collections: Sequence[str]) -> dict[str, Coverage]:
    """Those of some collections in which passages still lack vectors; a look at the others costs next to nothing."""
    if not collections:
        return {}
    names = ", ".join(f"${number}" for number in range(1, len(collections) + 1))
    rows = await db.fetch(_WAITING.format(names=names), *collections)
    found = {row["name"]: await index.coverage([row["name"]], row["model"]) for row in rows}
    return {name: covered for name, covered in found.items() if covered.embedded < covered.passages}


async def coverage(db: Reader, index: SearchIndex, collection: str) -> Coverage:
    """How many passages a collection has, and how many of them have the vectors they are to have."""
    if waiting := await coverages(db, index, [collection]):
        return waiting[collection]
    passages = (await index.coverage([collection], "")).passages
    return Coverage(passages, passages)


async def is_under_way(db: Reader, collection: str) -> bool:
    """Whether a collection is being embedded, or is as soon as a worker has time for it."""
    return await db.fetch_one(_UNDER_WAY, f"embed:{collection}", clock.now()) is not None


async def collection_statuses(db: Database) -> list[CollectionStatus]:
    """How far every collection is, by the rows: takes a second or two for a million passages."""
    counts = {
        (what, row["collection"], row["model"]): row["number"]
        for what, sql in _COUNTS.items()
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


async def unread(db: Database) -> int:
    """How many passages have not been analysed."""
    return (await db.scan("SELECT count(*) FROM passages WHERE words IS NULL"))[0][0]


async def parts(settings: Settings, db: Database) -> list[Part]:
    """What the index is made of: files, or what PostgreSQL keeps."""
    if not settings.on_sqlite:
        return await rebuild.parts(db)
    folder = backends.folder_of(settings)
    return [Part(file.name, _size(folder / file.name)) for file in await change_log.files(db)]


async def changes(settings: Settings, db: Database) -> int:
    """How many changes no file has yet; PostgreSQL has none that wait."""
    return (await change_log.waiting(db))[0] if settings.on_sqlite else 0


async def compare(settings: Settings, db: Database) -> list[str]:
    """Where the index and what it was made of differ: a sentence for each difference."""
    if not settings.on_sqlite:
        return await postgres_index.compare(db)
    folder = backends.folder_of(settings)
    found = [
        f"in {each.collection}, {each.lacking} {each.what} are lacking and {each.surplus} are too many"
        for each in await compaction.compare(db, folder)
    ]
    lost = await compaction.lost(db, folder)
    return [*found, f"files of it are missing or damaged ({', '.join(lost)})"] if lost else found


# Words


class AnalysePassages:
    """The handler of reword jobs: analyses the passages whose words nobody has counted yet."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def __call__(self, _: Job) -> Effect | None:
        until = clock.now() + JOB_TIME_SLICE
        while rows := await self._db.scan(_UNREAD, AT_ONCE):
            await analyse(self._db, rows)
            if clock.now() > until:
                return _again
        return None


async def enqueue_missing(db: Database) -> None:
    """Have passages analysed if there are any that have not been, as a migration leaves them; and those embedded that
    a job was given up on, which may have been the fault of whatever stopped its workers."""
    if await db.fetch_one("SELECT 1 FROM passages WHERE words IS NULL LIMIT 1"):
        await db.write(_again)
    for row in await db.scan(_FORGOTTEN, clock.now() - DEAD_JOB_RETRY_DELAY):
        await db.write(lambda tx, name=row["name"]: embed_passages.enqueue(tx, name))


async def analyse(db: Database, rows: Sequence[Row]) -> int:
    """Analyse passages as `walk` gives them, and store the words of those that had others; how many these were."""
    packed = await asyncio.to_thread(_pack, rows)
    changed = {row["id"]: words for row, words in zip(rows, packed, strict=True) if row["words"] != words}
    if changed:
        await db.write(lambda tx: _write_words(tx, [row for row in rows if row["id"] in changed], changed))
    return len(changed)


async def _again(tx: Transaction) -> None:
    await queue.add(tx, "reword", {}, key="reword")


async def _write_words(tx: Transaction, rows: Sequence[Row], words: dict[int, bytes]) -> None:
    present = await _hold(tx, rows)
    by_source: dict[int, list[Row]] = {}
    for row in rows:
        if row["id"] in present:
            by_source.setdefault(row["source_id"], []).append(row)
    for source_id, own in by_source.items():
        collection = present[own[0]["id"]]
        await tables.write_words(tx, source_id, collection, [(row["id"], words[row["id"]]) for row in own])


def _pack(rows: Iterable[Row]) -> list[bytes]:
    return [
        analyser.encode_terms(
            row["title"], orjson.loads(row["headings"]), row["text"], surrounding_text.beside_row(row)
        )
        for row in rows
    ]


# Made anew


async def walk(db: Database, collection: str, at_once: int) -> AsyncGenerator[list[Row]]:
    """All passages of a collection, a batch at a time, with what `analyse` and `embed` need."""
    source_id, ordinal = 0, -1
    while rows := await db.scan(_NEXT, collection, source_id, ordinal, at_once):
        yield rows
        source_id, ordinal = rows[-1]["source_id"], rows[-1]["ordinal"]


async def embed(db: Database, embedder: Embedder, rows: Sequence[Row]) -> None:
    """Put new vectors in the place of those that passages have of the same model."""
    vectors = await embedder.passages([embed_passages.text_of(row) for row in rows])

    async def store(tx: Transaction) -> None:
        present = await _hold(tx, rows)
        kept = [place for place, row in enumerate(rows) if row["id"] in present]
        owners = [(rows[place]["id"], rows[place]["source_id"], present[rows[place]["id"]]) for place in kept]
        await tables.write_vectors(tx, embedder.name, owners, vectors[kept])

    await db.write(store)


async def renew(settings: Settings, db: Database, collection: str | None, told: Callable[[int], None]) -> None:
    """Make what is derived from words and vectors anew, of one collection or of all; `told` hears how many sources
    are done, where that can be said."""
    if not settings.on_sqlite:
        await rebuild.renew(db, collection, told)
        return
    folder = backends.folder_of(settings)
    if collection is None:
        await compaction.rebuild(db, folder)
        return
    # As if all of it had changed: whatever files have of it no longer counts, and a new file has it.
    for ids in await rebuild.source_ids(db, collection):
        await db.write(lambda tx, ids=ids: sources.mark_changed(tx, ids))
        told(len(ids))
    await compaction.compact(db, folder, least=1)


async def _hold(tx: Transaction, rows: Iterable[Row]) -> dict[int, str]:
    """Keep the sources of passages as they are; the collections of those that are still as they were read. The others
    have been removed, or belong to what has been renamed: its words and vectors are no longer those of the title."""
    read = {row["id"]: row["title"] for row in rows}
    await sources.mark_changed(tx, {row["source_id"] for row in rows})
    found = await tx.fetch(_PRESENT.format(ids=", ".join(map(str, read))))
    return {row["id"]: row["collection"] for row in found if row["title"] == read[row["id"]]}


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0
