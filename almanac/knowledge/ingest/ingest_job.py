"""Ingest: from a stored file to a document that can be read and searched.

The file is read in a confined child. What it was read as, its passages and the status `success` are then written in one
transaction, together with the job's end: whoever looks sees the old document or the new one, and whoever is
interrupted begins again.
"""

import asyncio

import orjson

from almanac.core import clock
from almanac.core.database import Database, Transaction
from almanac.jobs.queue import Job
from almanac.jobs.worker import Effect
from almanac.knowledge import bases, document_index, document_text
from almanac.knowledge.documents import SELECT, UNFINISHED_STATUSES, Document, document_from_row
from almanac.knowledge.files import FileStore
from almanac.knowledge.parsers.parse_file import ParsedDocument, unpack
from almanac.knowledge.parsers.parsed_file import UnreadableFile
from almanac.sandbox.errors import SandboxUnavailable, WorkRejected
from almanac.sandbox.pool import SandboxPool
from almanac.search import passage_store
from almanac.search.passage_store import AnalysedPassages

_LARGE = 1_000_000  # bytes; a larger answer is unpacked in a thread, for the loop has leases to keep
_ABANDONED_AFTER = 10 * clock.MINUTE
_MINE = "WHERE id = $1 AND generation = $2 AND removed_at IS NULL"  # nobody has replaced or removed it meanwhile


class Ingest:
    """The handler of ingest jobs."""

    def __init__(self, db: Database, files: FileStore, nursery: SandboxPool, at_once: int) -> None:
        self._db = db
        self._files = files
        self._nursery = nursery
        self._slots = asyncio.Semaphore(at_once)  # parsing is all computing: more than there are cores gain nothing

    async def __call__(self, job: Job) -> Effect | None:
        """Read the document of a job."""
        row = await self._db.fetch_one(f"{SELECT} WHERE d.id = $1", job.payload["document_id"])
        document = None if row is None else document_from_row(row)
        if document is None or document.generation != job.payload["generation"] or document.removed_at is not None:
            return None
        base = await bases.get_or_none(self._db, document.base_id)
        assert base is not None
        async with self._slots:
            await self._mark(document, "converting")
            try:
                reading = await self._read(document, base.splitter.as_options())
            except WorkRejected as error:
                problem = error  # the name of an exception ends with its block
                return lambda tx: fail(tx, document, "conversion", problem)
            except SandboxUnavailable:
                await self._mark(document, "pending_conversion")
                raise
        title = document_index.title_of(reading.title, document.name)
        prepared = await asyncio.to_thread(passage_store.analyse, title, reading.passages)
        return lambda tx: _store(tx, document, reading, prepared)

    async def _read(self, document: Document, options: dict[str, object]) -> ParsedDocument:
        path = self._files.path(document.blob_name)
        if not path.exists():
            raise UnreadableFile(
                "file_missing", "The stored file is gone; add the document again, and look at the disk.", retryable=True
            )
        outcome = await self._nursery.parse(path, document.name, options)
        if len(outcome.result) > _LARGE:
            return await asyncio.to_thread(unpack, outcome.result)
        return unpack(outcome.result)

    async def _mark(self, document: Document, status: str) -> None:
        await self._db.write(
            lambda tx: tx.execute(
                f"UPDATE documents SET index_status = $3 {_MINE}",  # noqa: S608
                document.id,
                document.generation,
                status,
            )
        )


async def fail(tx: Transaction, document: Document, stage: str, problem: WorkRejected) -> None:
    """Note why a document could not be read. Nothing of it is to be found from then on."""
    now = clock.now()
    reason = {
        "stage": stage,
        "code": problem.code,
        "message": problem.message,
        "retryable": problem.retryable,
        "generation": document.generation,
        "occurred_at": now,
    }
    if await tx.execute(
        f"UPDATE documents SET index_status = 'failed', failure = $3, updated_at = $4 {_MINE}",  # noqa: S608
        document.id,
        document.generation,
        orjson.dumps(reason).decode(),
        now,
    ):
        await document_text.remove(tx, [document.id])
        await document_index.remove(tx, [document.id])


async def sweep(db: Database) -> int:
    """Give up on documents whose job is gone: one that killed every worker that tried it. How many."""
    waiting = ", ".join(f"'{status}'" for status in UNFINISHED_STATUSES)
    rows = await db.scan(
        f"{SELECT} WHERE d.index_status IN ({waiting}) AND d.updated_at < $1 AND d.removed_at IS NULL"  # noqa: S608
        " AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.key = 'ingest:' || d.id || ':' || d.generation"
        " AND j.state IN ('queued', 'running')) LIMIT 1000",
        clock.now() - _ABANDONED_AFTER,
    )
    gone = UnreadableFile(
        "processing_failed", "Reading it was given up after several attempts; retry it.", retryable=True
    )
    for row in rows:
        document = document_from_row(row)
        await db.write(lambda tx, document=document: fail(tx, document, "system", gone))
    return len(rows)


async def _store(tx: Transaction, document: Document, reading: ParsedDocument, prepared: AnalysedPassages) -> None:
    if not await tx.execute(
        "UPDATE documents SET index_status = 'success', failure = NULL, mime_type = $3, extension = $4,"  # noqa: S608
        " source_type = CASE WHEN source_type IN ('web', 'text') THEN source_type ELSE $5 END, updated_at = $6"
        f" {_MINE}",
        document.id,
        document.generation,
        reading.mime_type,
        reading.extension,
        reading.source_type,
        clock.now(),
    ):
        return
    await document_text.save(tx, document.id, document.generation, reading)
    source = await document_index.describe(tx, document.id)  # where and what it is by now
    assert source is not None
    await passage_store.replace(tx, source, prepared)
