"""Analysis of stored passages: counts the words of passages that have no counts, or outdated ones.

Passages keep their old words until the new ones are stored. Each batch is one transaction, so an interruption leaves a
mixture of old and new words, which searches can use.
"""

import asyncio
from collections.abc import Iterable, Sequence

import orjson

from almanac.core import clock
from almanac.core.database import Database, Row, Transaction
from almanac.jobs import queue
from almanac.jobs.queue import Job
from almanac.jobs.worker import Effect
from almanac.search.analysis import analyser, surrounding_text
from almanac.search.index import tables
from almanac.search.jobs import passage_batches

KIND = "analyse_passages"
BATCH_SIZE = 500  # passages analysed and stored together
JOB_TIME_SLICE = 20 * clock.SECOND  # then other jobs run


class AnalysePassages:
    """The handler of reword jobs: analyses the passages that have no words yet, as a migration may leave them."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def __call__(self, _: Job) -> Effect | None:
        until = clock.now() + JOB_TIME_SLICE
        while rows := await passage_batches.not_analysed(self._db, BATCH_SIZE):
            await analyse(self._db, rows)
            if clock.now() > until:
                return _enqueue
        return None


async def enqueue_missing(db: Database) -> None:
    """Add a job if some passages have not been analysed."""
    if await db.fetch_one("SELECT 1 FROM passages WHERE words IS NULL LIMIT 1"):
        await db.write(_enqueue)


async def analyse(db: Database, rows: Sequence[Row]) -> int:
    """Analyse a batch of passages, store the words that have changed, and return the number of these passages."""
    encoded = await asyncio.to_thread(_encode, rows)
    changed = {row["id"]: words for row, words in zip(rows, encoded, strict=True) if row["words"] != words}
    if changed:
        await db.write(lambda tx: _store(tx, [row for row in rows if row["id"] in changed], changed))
    return len(changed)


async def _enqueue(tx: Transaction) -> None:
    await queue.add(tx, KIND, {}, key=KIND)


async def _store(tx: Transaction, rows: Sequence[Row], words: dict[int, bytes]) -> None:
    unchanged = await passage_batches.lock_unchanged(tx, rows)
    by_source: dict[tuple[int, str], list[tuple[int, bytes]]] = {}
    for row in rows:
        if (collection := unchanged.get(row["id"])) is not None:
            by_source.setdefault((row["source_id"], collection), []).append((row["id"], words[row["id"]]))
    for (source_id, collection), pairs in by_source.items():
        await tables.write_words(tx, source_id, collection, pairs)


def _encode(rows: Iterable[Row]) -> list[bytes]:
    return [
        analyser.encode_terms(
            row["title"], orjson.loads(row["headings"]), row["text"], surrounding_text.beside_row(row)
        )
        for row in rows
    ]
