"""The queue of embedding jobs. A collection has at most one waiting job; its key is the name of the collection."""

from almanac.core import clock
from almanac.core.database import Database, Reader, Transaction
from almanac.jobs import queue

KIND = "embed_passages"
BUSY_RETRY_DELAY = 2 * clock.SECOND  # while another collection is being embedded
DEAD_JOB_RETRY_DELAY = clock.HOUR

_UNDER_WAY = "SELECT 1 FROM jobs WHERE key = $1 AND (state = 'running' OR (state = 'queued' AND run_at <= $2))"
_ABANDONED = f"""
SELECT c.name FROM collections c
WHERE EXISTS (SELECT 1 FROM sources s WHERE s.collection = c.name AND s.is_embedded = 0)
    AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.key = '{KIND}:' || c.name AND (j.state IN ('queued', 'running')
        OR (j.state = 'dead' AND j.finished_at > $1)))
"""  # noqa: S608 - a constant


async def enqueue(tx: Transaction, collection: str, run_at: int | None = None) -> None:
    """Add a job that embeds the passages of a collection, now or at a later time."""
    await queue.add(tx, KIND, {"collection": collection}, key=_key(collection), run_at=run_at)


async def is_under_way(db: Reader, collection: str) -> bool:
    """Return True if the job of a collection is running, or waits for a worker or for another collection. A job that
    waits longer, because the model cannot be reached, does not count."""
    return await db.fetch_one(_UNDER_WAY, _key(collection), clock.now() + BUSY_RETRY_DELAY) is not None


async def is_dead(db: Reader, collection: str) -> bool:
    """Return True if the last job of a collection has failed finally."""
    return await queue.is_dead(db, _key(collection))


async def retry_dead(db: Database) -> None:
    """Add jobs for the collections whose job died some time ago. The cause may have been an interruption of its
    workers."""
    for row in await db.scan(_ABANDONED, clock.now() - DEAD_JOB_RETRY_DELAY):
        await db.write(lambda tx, name=row["name"]: enqueue(tx, name))


def _key(collection: str) -> str:
    return f"{KIND}:{collection}"
