"""Embedding: the job that gives passages the vectors they lack, a collection at a time.

A collection is searched by the vectors of one model. Where the operator has chosen another since, its passages are
embedded anew beside the old vectors, and the collection changes over when the last of them has its new one.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
import orjson
import structlog
from numpy.typing import NDArray

from almanac.ai.cpu import cpu_count
from almanac.ai.embedder import Embedder
from almanac.ai.errors import EmbeddingRefused, EmbeddingUnavailable, WrongDimension
from almanac.core import clock
from almanac.core.database import Database, Row, Transaction
from almanac.jobs import queue
from almanac.jobs.queue import Job
from almanac.jobs.worker import Effect
from almanac.search import sources
from almanac.search.analysis import surrounding_text
from almanac.search.index import tables

AT_ONCE = 64 * cpu_count()  # passages embedded and stored together: what is lost with a worker that is killed
SOURCES_AT_ONCE = 200  # whose outdated vectors are removed together
JOB_TIME_SLICE = 20 * clock.SECOND  # after which another collection has its turn
TURN = 2 * clock.SECOND  # between two looks at whether another collection's round is over
PAUSE = clock.MINUTE  # before the next attempt where the model cannot be reached

_LACKING = f"""
SELECT p.id, p.source_id, p.headings, p.text, s.title, {surrounding_text.COLUMNS}
FROM sources s JOIN passages p ON p.source_id = s.id {surrounding_text.JOINS}
WHERE s.collection = $1 AND s.is_embedded = 0
    AND NOT EXISTS (SELECT 1 FROM vectors v WHERE v.passage_id = p.id AND v.model = $2)
ORDER BY s.id, p.ordinal LIMIT $3
"""  # noqa: S608 - constants
_COMPLETE = """
UPDATE sources SET is_embedded = 1 WHERE {which} AND is_embedded = 0 AND NOT EXISTS (
    SELECT 1 FROM passages p WHERE p.source_id = sources.id
    AND NOT EXISTS (SELECT 1 FROM vectors v WHERE v.passage_id = p.id AND v.model = $2))
"""

_SOURCES = "SELECT id FROM sources WHERE collection = $1 AND id > $2 ORDER BY id LIMIT $3"
_OUTDATED = """source_id IN ({ids}) AND EXISTS (
    SELECT 1 FROM sources s JOIN collections c ON c.name = s.collection
    WHERE s.id = vectors.source_id AND c.model NOT IN ('', vectors.model)
    AND coalesce(c.next_model, c.model) <> vectors.model)"""

_log = structlog.get_logger("almanac.embedding")


def text_of(row: Row) -> str:
    """What of a passage is embedded: where it stands, what was said before one that is short, and what it says."""
    place = " › ".join(dict.fromkeys((row["title"], *orjson.loads(row["headings"]))))
    return "\n".join(filter(None, (place, surrounding_text.preceding_text(row), row["text"])))


class EmbedPassages:
    """The handler of embed jobs."""

    def __init__(self, db: Database, embedder: Embedder) -> None:
        self._db = db
        self._embedder = embedder
        self._turn = asyncio.Lock()  # a model keeps every core busy by itself

    async def __call__(self, job: Job) -> Effect | None:
        """Embed what a collection lacks, or as much of it as a round allows."""
        collection = job.payload["collection"]
        if self._turn.locked():  # not to hold a place that reading documents could have
            return lambda tx: enqueue(tx, collection, clock.now() + TURN)
        async with self._turn:
            await self._db.write(lambda tx: _choose(tx, collection, self._embedder.name))
            try:
                if not await self._embed(collection, clock.now() + JOB_TIME_SLICE):
                    return lambda tx: enqueue(tx, collection)
            except (EmbeddingUnavailable, EmbeddingRefused, WrongDimension) as error:
                _log.warning("embedding_waits", collection=collection, error=str(error))
                return lambda tx: enqueue(tx, collection, clock.now() + PAUSE)
        return lambda tx: _finish(tx, collection, self._embedder.name)

    async def _embed(self, collection: str, until: int) -> bool:
        """Whether nothing is left to do."""
        model = self._embedder.name
        while rows := await self._db.scan(_LACKING, collection, model, AT_ONCE):
            vectors = await self._embedder.passages([text_of(row) for row in rows])
            known = await tables.dimension(self._db, collection, model)
            if known not in (None, vectors.shape[1]):  # the model is another one now, under the same name
                raise WrongDimension(
                    f"The model {model} gives {vectors.shape[1]} numbers; its vectors here have {known}."
                )
            await self._db.write(lambda tx, rows=rows, vectors=vectors: _store(tx, model, rows, vectors))
            if clock.now() > until:
                return False
        return True


class DeleteOldVectors:
    """The handler of forget jobs: removes the vectors of models that a collection has come away from."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def __call__(self, job: Job) -> Effect | None:
        last = 0
        while rows := await self._db.scan(_SOURCES, job.payload["collection"], last, SOURCES_AT_ONCE):
            last = rows[-1]["id"]
            await self._db.write(lambda tx, ids=tuple(row["id"] for row in rows): _forget(tx, ids))
        return None


async def enqueue_missing(db: Database, model: str) -> None:
    """Have collections embedded anew whose vectors are of another model than is used now."""
    rows = await db.fetch("SELECT name FROM collections WHERE model <> $1 OR next_model IS NOT NULL", model)
    for row in rows:
        await db.write(lambda tx, name=row["name"]: enqueue(tx, name))


async def enqueue(tx: Transaction, collection: str, at: int | None = None) -> None:
    """Have a collection looked at once more, now or at a later moment."""
    await queue.add(tx, "embed", {"collection": collection}, key=f"embed:{collection}", run_at=at)


async def _choose(tx: Transaction, collection: str, model: str) -> None:
    await tx.execute("UPDATE collections SET model = $2 WHERE name = $1 AND model = ''", collection, model)
    # Another model than before, or back to the first before another took over: no source is sure to have its vectors.
    if await tx.execute(
        "UPDATE collections SET next_model = CASE WHEN model = $2 THEN NULL ELSE $2 END"
        " WHERE name = $1 AND coalesce(next_model, model) <> $2",
        collection,
        model,
    ):
        await tx.execute("UPDATE sources SET is_embedded = 0 WHERE collection = $1", collection)


async def _store(tx: Transaction, model: str, rows: Sequence[Row], vectors: NDArray[np.float32]) -> None:
    """Store the vectors of those passages that have not been replaced or removed meanwhile."""
    owners = sorted({row["source_id"] for row in rows})
    await sources.mark_changed(tx, owners)  # first, for whoever replaces passages locks their source first too
    ids = ", ".join(str(row["id"]) for row in rows)
    found = await tx.fetch(
        "SELECT p.id, s.collection, s.title FROM passages p JOIN sources s ON s.id = p.source_id"  # noqa: S608
        f" WHERE p.id IN ({ids})"
    )
    titles = {row["id"]: row["title"] for row in rows}  # a vector of another title would not be the passage's
    there = {row["id"]: row["collection"] for row in found if row["title"] == titles[row["id"]]}
    kept = [place for place, row in enumerate(rows) if row["id"] in there]
    places = [(rows[place]["id"], rows[place]["source_id"], there[rows[place]["id"]]) for place in kept]
    await tables.write_vectors(tx, model, places, vectors[kept])
    await tx.execute_many(_COMPLETE.format(which="id = $1"), [(owner, model) for owner in owners])


async def _forget(tx: Transaction, source_ids: Sequence[int]) -> None:
    outdated = _OUTDATED.format(ids=", ".join(map(str, source_ids)))
    rows = await tx.fetch(f"SELECT DISTINCT source_id FROM vectors WHERE {outdated}")  # noqa: S608 - numbers
    await sources.mark_changed(tx, [row["source_id"] for row in rows])  # else the files of the index would keep them
    await tx.execute(f"DELETE FROM vectors WHERE {outdated}")  # noqa: S608 - likewise


async def _finish(tx: Transaction, collection: str, model: str) -> None:
    """Change over to the model if every passage has its vector; go on where more have come meanwhile."""
    await tx.execute(_COMPLETE.format(which="collection = $1"), collection, model)  # those that came with their vectors
    if await tx.fetch_one("SELECT 1 FROM sources WHERE collection = $1 AND is_embedded = 0 LIMIT 1", collection):
        await enqueue(tx, collection)
    elif await tx.execute(
        "UPDATE collections SET model = $2, next_model = NULL WHERE name = $1 AND next_model = $2", collection, model
    ):
        # Those of the model before go afterwards, a few at a time: a million of them would hold all other writes up.
        await queue.add(tx, "forget", {"collection": collection}, key=f"forget:{collection}:{model}")
