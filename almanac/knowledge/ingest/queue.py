"""Generations of a document: each content it has had, and each attempt to read it afresh, has a number and a job.

A job that runs may already have looked at the document and found it in the trash or gone, so that what has to be read
from now on is never left to a job that is there already: it gets the next number, and a job of its own.
"""

from almanac.core import clock
from almanac.core.database import Transaction
from almanac.jobs import queue

UNFINISHED_STATUSES = ("queued", "pending_conversion", "converting", "indexing")


async def enqueue(tx: Transaction, document_id: int, generation: int) -> None:
    """Have this generation of a document read as soon as a worker can."""
    payload = {"document_id": document_id, "generation": generation}
    await queue.add(tx, "ingest", payload, key=f"ingest:{document_id}:{generation}")


async def requeue(tx: Transaction, document_id: int) -> None:
    """Have a document read again, as its next generation. What was read before stays until then."""
    row = await tx.fetch_one(
        "UPDATE documents SET generation = generation + 1, index_status = 'queued', failure = NULL, updated_at = $2"
        " WHERE id = $1 RETURNING generation",
        document_id,
        clock.now(),
    )
    assert row is not None
    await enqueue(tx, document_id, row["generation"])
