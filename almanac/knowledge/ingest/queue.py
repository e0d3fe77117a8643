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
HAS_JOB = """EXISTS (SELECT 1 FROM jobs j
    WHERE j.key = 'ingest:' || d.id || ':' || d.generation AND j.state IN ('queued', 'running'))"""

_ORG_OF_DOCUMENT = "SELECT b.org_id FROM documents d JOIN bases b ON b.id = d.base_id WHERE d.id = $1"


async def enqueue(tx: Transaction, document_id: int, generation: int) -> None:
    """Queue the job that parses this generation of a document."""
    payload = {"document_id": document_id, "generation": generation}
    key = f"ingest:{document_id}:{generation}"  # `HAS_JOB` builds the same key
    row = await tx.fetch_one(_ORG_OF_DOCUMENT, document_id)
    assert row is not None
    await queue.add(tx, "ingest", payload, key=key, org_id=row["org_id"])


async def requeue(tx: Transaction, document_id: int) -> None:
    """Parse a document again, as its next generation. The text of the last generation stays until then."""
    row = await tx.fetch_one(
        "UPDATE documents SET generation = generation + 1, index_status = 'queued', failure = NULL, updated_at = $2"
        " WHERE id = $1 RETURNING generation",
        document_id,
        clock.now(),
    )
    assert row is not None
    await enqueue(tx, document_id, row["generation"])
