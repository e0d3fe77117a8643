"""The queue of documents that wait to be parsed: their statuses and their jobs.

Each content of a document, and each attempt to parse it again, is a generation with a job of its own. A job that is
running may already have found the document in the trash or replaced. Work that comes up later is therefore never left
to an existing job: it gets the next generation and another job.
"""

from almanac.core import clock
from almanac.core.database import Transaction
from almanac.jobs import queue

UNFINISHED_STATUSES = ("queued", "pending_conversion", "converting", "indexing")
STATUSES = (*UNFINISHED_STATUSES, "success", "not_indexed", "failed")

# The status of a row `d` of `documents` for callers. A parsed document that is disabled is stored as 'success'.
INDEX_STATUS = "CASE WHEN d.is_enabled = 0 AND d.index_status = 'success' THEN 'not_indexed' ELSE d.index_status END"

# Conditions on a row `d` of `documents`. A job and its effects end in one transaction, so that a single query with both
# conditions finds the documents that no job will finish. The first repeats the condition of the partial index
# `documents_unfinished` to the letter, or SQLite would not use the index.
IS_UNFINISHED = "d.index_status IN ('queued', 'pending_conversion', 'converting', 'indexing')"
_JOB_KEY = "'ingest:' || d.id || ':' || d.generation"
HAS_JOB = f"EXISTS (SELECT 1 FROM jobs j WHERE j.key = {_JOB_KEY} AND j.state IN ('queued', 'running'))"  # noqa: S608

_JOB_OF_DOCUMENT = f"""SELECT d.generation, b.org_id, {_JOB_KEY} AS job_key
    FROM documents d JOIN bases b ON b.id = d.base_id WHERE d.id = $1"""  # noqa: S608


async def enqueue(tx: Transaction, document_id: int) -> None:
    """Queue the job that parses the current generation of a document."""
    row = await tx.fetch_one(_JOB_OF_DOCUMENT, document_id)
    assert row is not None
    payload = {"document_id": document_id, "generation": row["generation"]}
    await queue.add(tx, "ingest", payload, key=row["job_key"], org_id=row["org_id"])


async def requeue(tx: Transaction, document_id: int) -> None:
    """Parse a document again, as its next generation. The text of the last generation stays until then."""
    await tx.execute(
        "UPDATE documents SET generation = generation + 1, index_status = 'queued', failure = NULL, updated_at = $2"
        " WHERE id = $1",
        document_id,
        clock.now(),
    )
    await enqueue(tx, document_id)
