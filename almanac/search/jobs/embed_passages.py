"""The job that adds missing vectors to the passages of a collection.

A collection is searched with the vectors of one model. After the operator has chosen another model, the job adds its
vectors beside the old ones. The collection switches to the new model when all of its passages have the new vectors.
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
from almanac.db.sql import id_list
from almanac.jobs import queue
from almanac.jobs.queue import Job
from almanac.jobs.worker import Effect
from almanac.search import sources
from almanac.search.analysis import surrounding_text
from almanac.search.index import tables
from almanac.search.jobs import embed_queue, passage_batches

DELETE_OLD_VECTORS_JOB = "delete_old_vectors"
BATCH_SIZE = 64 * cpu_count()  # passages embedded and stored together; a killed worker loses the work on one batch
CLEANUP_BATCH_SIZE = 200  # sources whose outdated vectors are deleted together
JOB_TIME_SLICE = 20 * clock.SECOND  # then the job of another collection runs
UNAVAILABLE_RETRY_DELAY = clock.MINUTE  # if the model cannot be reached

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
    """Return the text that is embedded for a passage: its title and headings, the preceding text if the passage is
    short, and its own text."""
    place = " › ".join(dict.fromkeys((row["title"], *orjson.loads(row["headings"]))))
    return "\n".join(filter(None, (place, surrounding_text.preceding_text(row), row["text"])))


class EmbedPassages:
    """The handler of embed jobs."""

    def __init__(self, db: Database, embedder: Embedder) -> None:
        self._db = db
        self._embedder = embedder
        self._lock = asyncio.Lock()  # one model computation already uses every core

    async def __call__(self, job: Job) -> Effect | None:
        """Embed the passages of a collection that have no vector, for at most one time slice."""
        collection = job.payload["collection"]
        if self._lock.locked():  # waiting here would occupy a worker slot that an ingest job can use
            return lambda tx: embed_queue.enqueue(tx, collection, clock.now() + embed_queue.BUSY_RETRY_DELAY)
        async with self._lock:
            await self._db.write(lambda tx: _choose_model(tx, collection, self._embedder.name))
            try:
                if not await self._embed_missing(collection, clock.now() + JOB_TIME_SLICE):
                    return lambda tx: embed_queue.enqueue(tx, collection)
            except (EmbeddingUnavailable, EmbeddingRefused, WrongDimension) as error:
                _log.warning("embedding_waits", collection=collection, error=str(error))
                return lambda tx: embed_queue.enqueue(tx, collection, clock.now() + UNAVAILABLE_RETRY_DELAY)
        return lambda tx: _finish(tx, collection, self._embedder.name)

    async def _embed_missing(self, collection: str, until: int) -> bool:
        """Return True if no passage is left."""
        model = self._embedder.name
        while rows := await passage_batches.without_vector(self._db, collection, model, BATCH_SIZE):
            vectors = await self._embedder.passages([text_of(row) for row in rows])
            size = await tables.dimension(self._db, collection, model)
            if size not in (None, vectors.shape[1]):  # another model has the same name now
                raise WrongDimension(
                    f"The model {model} returns vectors of {vectors.shape[1]} dimensions,"
                    f" but its stored vectors have {size}."
                )
            await self._db.write(lambda tx, rows=rows, vectors=vectors: _store_missing(tx, model, rows, vectors))
            if clock.now() > until:
                return False
        return True


class DeleteOldVectors:
    """The handler of forget jobs: deletes the vectors of models that a collection no longer uses."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def __call__(self, job: Job) -> Effect | None:
        last = 0
        while rows := await self._db.scan(_SOURCES, job.payload["collection"], last, CLEANUP_BATCH_SIZE):
            last = rows[-1]["id"]
            await self._db.write(lambda tx, ids=tuple(row["id"] for row in rows): _delete_outdated(tx, ids))
        return None


async def enqueue_missing(db: Database, model: str) -> None:
    """Add jobs for the collections that have vectors of another model than the present one."""
    rows = await db.fetch("SELECT name FROM collections WHERE model <> $1 OR next_model IS NOT NULL", model)
    for row in rows:
        await db.write(lambda tx, name=row["name"]: embed_queue.enqueue(tx, name))


async def replace_vectors(db: Database, embedder: Embedder, rows: Sequence[Row]) -> None:
    """Embed a batch of passages again, and replace their vectors of the same model."""
    vectors = await embedder.passages([text_of(row) for row in rows])
    await db.write(lambda tx: _store(tx, embedder.name, rows, vectors))


async def _choose_model(tx: Transaction, collection: str, model: str) -> None:
    await tx.execute("UPDATE collections SET model = $2 WHERE name = $1 AND model = ''", collection, model)
    # After a change to another model, or back to the first one before the change was complete, no source is certain to
    # have all vectors of the model.
    if await tx.execute(
        "UPDATE collections SET next_model = CASE WHEN model = $2 THEN NULL ELSE $2 END"
        " WHERE name = $1 AND coalesce(next_model, model) <> $2",
        collection,
        model,
    ):
        await tx.execute("UPDATE sources SET is_embedded = 0 WHERE collection = $1", collection)


async def _store(tx: Transaction, model: str, rows: Sequence[Row], vectors: NDArray[np.float32]) -> None:
    """Store the vectors of the passages that still exist under the same title."""
    unchanged = await passage_batches.lock_unchanged(tx, rows)
    kept = [number for number, row in enumerate(rows) if row["id"] in unchanged]
    keys = [(rows[number]["id"], rows[number]["source_id"], unchanged[rows[number]["id"]]) for number in kept]
    await tables.write_vectors(tx, model, keys, vectors[kept])


async def _store_missing(tx: Transaction, model: str, rows: Sequence[Row], vectors: NDArray[np.float32]) -> None:
    await _store(tx, model, rows, vectors)
    source_ids = sorted({row["source_id"] for row in rows})
    await tx.execute_many(_COMPLETE.format(which="id = $1"), [(source_id, model) for source_id in source_ids])


async def _delete_outdated(tx: Transaction, source_ids: Sequence[int]) -> None:
    outdated = _OUTDATED.format(ids=id_list(source_ids))
    rows = await tx.fetch(f"SELECT DISTINCT source_id FROM vectors WHERE {outdated}")  # noqa: S608 - numbers
    await sources.mark_changed(tx, [row["source_id"] for row in rows])  # so that the index files drop the vectors too
    await tx.execute(f"DELETE FROM vectors WHERE {outdated}")  # noqa: S608 - likewise


async def _finish(tx: Transaction, collection: str, model: str) -> None:
    """Switch to the model if every passage has its vector. If passages were added meanwhile, enqueue another job."""
    await tx.execute(_COMPLETE.format(which="collection = $1"), collection, model)  # sources that moved with vectors
    if await tx.fetch_one("SELECT 1 FROM sources WHERE collection = $1 AND is_embedded = 0 LIMIT 1", collection):
        await embed_queue.enqueue(tx, collection)
    elif await tx.execute(
        "UPDATE collections SET model = $2, next_model = NULL WHERE name = $1 AND next_model = $2", collection, model
    ):
        # A job deletes the old vectors in batches, because deleting a million at once would block all other writes.
        await queue.add(
            tx, DELETE_OLD_VECTORS_JOB, {"collection": collection}, key=f"{DELETE_OLD_VECTORS_JOB}:{collection}:{model}"
        )
