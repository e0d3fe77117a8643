"""Expiry: searches leave a note out from the moment that it expires.

A job moves expired notes to a collection of their own, so that most searches need no condition on the expiry time.
Between the expiry of a note and the next run of the job, searches of that organisation use such a condition.
"""

from almanac.core import clock
from almanac.core.database import Database, Reader, Transaction
from almanac.memory import note_index
from almanac.memory.note import SELECT, note_from_row

_BATCH_NOTES = 200
_UNINDEXED = "n.org_id = $1 AND n.expires_at IS NOT NULL AND n.is_expired = 0 AND n.expires_at <= $2"
_NEXT = f"SELECT n.id FROM notes n WHERE {_UNINDEXED} ORDER BY n.number LIMIT {_BATCH_NOTES}"  # noqa: S608 - constants


async def has_unindexed_expiry(db: Reader, org_id: str, now: int) -> bool:
    """Whether a note has expired that the job has not moved yet."""
    return await db.fetch_one(f"SELECT 1 FROM notes n WHERE {_UNINDEXED} LIMIT 1", org_id, now) is not None  # noqa: S608


async def sweep(db: Database) -> int:
    """Mark and move all notes that have expired. Returns their number."""
    moved = 0
    for org in await db.fetch("SELECT id FROM orgs"):
        while rows := await db.fetch(_NEXT, org["id"], clock.now()):
            await db.write(lambda tx, ids=[row["id"] for row in rows]: _expire(tx, ids))
            moved += len(rows)
    return moved


async def _expire(tx: Transaction, ids: list[str]) -> None:
    for id in ids:
        await tx.execute("UPDATE notes SET is_expired = 1 WHERE id = $1", id)
        row = await tx.fetch_one(f"{SELECT} WHERE n.id = $1", id)  # read here: it may have been superseded meanwhile
        assert row is not None
        await note_index.update(tx, note_from_row(row))
