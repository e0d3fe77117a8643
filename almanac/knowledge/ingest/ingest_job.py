"""The job that parses a stored file and makes its text readable and searchable.

The file is parsed in a sandboxed child process. The text, the passages and the status `success` are then written in one
transaction, together with the end of the job. Readers therefore see either the old document or the new one, and an
interrupted job starts again from the beginning.
"""

import asyncio

import orjson

from almanac.core import clock
from almanac.core.database import Database, Transaction
from almanac.core.fair_slots import FairSlots
from almanac.files.file_store import FileStore
from almanac.jobs.queue import Job
from almanac.jobs.worker import Effect
from almanac.knowledge import bases, document_index, document_text
from almanac.knowledge.documents import SELECT, Document, document_from_row
from almanac.knowledge.ingest.queue import HAS_JOB, IS_UNFINISHED
from almanac.knowledge.parsers.parse_message import ParsedDocument
from almanac.knowledge.parsers.parsed_file import UnreadableFile
from almanac.knowledge.parsers.sandboxed_parse import parse_in_sandbox
from almanac.sandbox.errors import SandboxUnavailable
from almanac.sandbox.pool import SandboxPool
from almanac.search import passage_store
from almanac.search.passage_store import AnalysedPassages

MAX_QUICK_PASSAGES = 100  # are indexed so quickly that the status `indexing` is not worth a write
_ABANDONED_AFTER = 10 * clock.MINUTE
_IS_CURRENT = "WHERE id = $1 AND generation = $2 AND removed_at IS NULL"  # not replaced or removed in the meantime


class Ingest:
    """The handler of ingest jobs."""

    def __init__(self, db: Database, files: FileStore, sandbox: SandboxPool, max_parsers: int) -> None:
        self._db = db
        self._files = files
        self._sandbox = sandbox
        self._slots = FairSlots(max_parsers)  # parsing only computes: more than one per core gains nothing

    async def __call__(self, job: Job) -> Effect | None:
        """Parse the document of a job."""
        row = await self._db.fetch_one(f"{SELECT} WHERE d.id = $1", job.payload["document_id"])
        document = None if row is None else document_from_row(row)
        if document is None or document.generation != job.payload["generation"] or document.removed_at is not None:
            return None
        base = await bases.get_or_none(self._db, document.base_id)
        assert base is not None
        async with self._slots.hold():
            await self._mark(document, "converting")
            try:
                parsed = await self._parse(document, base.splitter.as_options())
            except UnreadableFile as error:
                reason = error  # Python deletes `error` at the end of the block
                return lambda tx: fail(tx, document, "conversion", reason)
            except SandboxUnavailable:
                await self._mark(document, "pending_conversion")
                raise
        if len(parsed.passages) > MAX_QUICK_PASSAGES:
            await self._mark(document, "indexing")
        passages = await asyncio.to_thread(passage_store.analyse, parsed.title or document.name, parsed.passages)
        return lambda tx: _store(tx, document, parsed, passages)

    async def _parse(self, document: Document, options: dict[str, object]) -> ParsedDocument:
        path = self._files.path(document.blob_name)
        if not path.exists():
            raise UnreadableFile(
                "file_missing", "The stored file is missing; add the document again and check the disk.", retryable=True
            )
        return await parse_in_sandbox(self._sandbox, path, document.name, options)

    async def _mark(self, document: Document, status: str) -> None:
        await self._db.write(
            lambda tx: tx.execute(
                f"UPDATE documents SET index_status = $3 {_IS_CURRENT}",  # noqa: S608
                document.id,
                document.generation,
                status,
            )
        )


async def fail(tx: Transaction, document: Document, stage: str, reason: UnreadableFile) -> None:
    """Store the reason why a document could not be parsed, and remove its text and passages."""
    now = clock.now()
    failure = {
        "stage": stage,
        "code": reason.code,
        "message": reason.message,
        "retryable": reason.retryable,
        "generation": document.generation,
        "occurred_at": now,
    }
    if await tx.execute(
        f"UPDATE documents SET index_status = 'failed', failure = $3, updated_at = $4 {_IS_CURRENT}",  # noqa: S608
        document.id,
        document.generation,
        orjson.dumps(failure).decode(),
        now,
    ):
        await document_text.remove(tx, [document.id])
        await document_index.remove(tx, [document.id])


async def sweep(db: Database) -> int:
    """Fail the documents whose job is dead because it killed every worker that ran it; return their number."""
    sql = f"{SELECT} WHERE {IS_UNFINISHED} AND NOT {HAS_JOB} AND d.updated_at < $1 AND d.removed_at IS NULL LIMIT 1000"
    rows = await db.scan(sql, clock.now() - _ABANDONED_AFTER)
    reason = UnreadableFile(
        "processing_failed", "Parsing failed several times and was stopped; retry the document.", retryable=True
    )
    for row in rows:
        document = document_from_row(row)
        await db.write(lambda tx, document=document: fail(tx, document, "system", reason))
    return len(rows)


async def _store(tx: Transaction, document: Document, parsed: ParsedDocument, passages: AnalysedPassages) -> None:
    if not await tx.execute(
        "UPDATE documents SET index_status = 'success', failure = NULL, mime_type = $3, extension = $4,"  # noqa: S608
        " source_type = CASE WHEN source_type IN ('web', 'text') THEN source_type ELSE $5 END, updated_at = $6"
        f" {_IS_CURRENT}",
        document.id,
        document.generation,
        parsed.mime_type,
        parsed.extension,
        parsed.source_type,
        clock.now(),
    ):
        return
    await document_text.save(tx, document.id, document.generation, parsed)
    source = await document_index.describe(tx, document.id)  # with its current base, folder and name
    assert source is not None
    await passage_store.replace(tx, source, passages)
