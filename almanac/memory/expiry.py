"""Expiry: what is past its time is left out of searches, from the very moment on.

A job tells search of notes that have expired, so that a search need not look at the time of every note. Between a
note's time and the job's next turn, searches of that organisation do look.
"""

from almanac.core import clock
from almanac.core.database import Database, Reader, Transaction
from almanac.memory import note_index
from almanac.memory.note import SELECT, Note, note_from_row

_AT_ONCE = 200
_LAPSED = "n.org_id = $1 AND n.expires_at IS NOT NULL AND n.is_expired = 0 AND n.expires_at <= $2"
_NEXT = f"{SELECT} WHERE {_LAPSED} ORDER BY n.number LIMIT {_AT_ONCE}"


async def has_unindexed_expiry(db: Reader, org_id: str, now: int) -> bool:
    """Whether a note has expired of which search has not been told."""
    return await db.fetch_one(f"SELECT 1 FROM notes n WHERE {_LAPSED} LIMIT 1", org_id, now) is not None  # noqa: S608


async def sweep(db: Database) -> int:
    """Tell search of all notes that have expired; how many."""
    told = 0
    for org in await db.fetch("SELECT id FROM orgs"):
        while found := await db.fetch(_NEXT, org["id"], clock.now()):
            await db.write(lambda tx, found=found: _tell(tx, [note_from_row(row) for row in found]))
            told += len(found)
    return told


async def _tell(tx: Transaction, expired: list[Note]) -> None:
    for note in expired:
        await tx.execute("UPDATE notes SET is_expired = 1 WHERE id = $1", note.id)
        row = await tx.fetch_one(f"{SELECT} WHERE n.id = $1", note.id)  # it may have been superseded meanwhile
        assert row is not None
        await note_index.tell(tx, note_from_row(row))
