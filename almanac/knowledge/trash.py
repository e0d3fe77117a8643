"""The trash. Removed folders, documents and bases can be restored for a while, and are then purged."""

from collections.abc import Sequence
from dataclasses import dataclass

from almanac.core.call import Call
from almanac.core.database import Database, Transaction
from almanac.knowledge import bases, document_index, document_text

BATCH_DOCUMENTS = 200  # purged in one transaction, because other writers wait for it

_EXPIRED = """
SELECT d.id FROM documents d LEFT JOIN bases b ON b.id = d.base_id
WHERE d.removed_at < $1 OR b.removed_at < $1 ORDER BY d.id LIMIT $2
"""
# The update locks the document, if it has not been restored in the meantime.
_LOCK_EXPIRED = """
UPDATE documents SET updated_at = updated_at
WHERE id = $2 AND (removed_at < $1 OR base_id IN (SELECT id FROM bases WHERE removed_at < $1)) RETURNING id
"""


@dataclass(frozen=True, slots=True)
class Removed:
    """A folder or document in the trash."""

    kind: str
    id: int
    name: str
    removed_at: int


async def find(call: Call, base_id: int, *, limit: int = 100, offset: int = 0) -> list[Removed]:
    """The folders and documents removed from a base, latest first, without the contents of removed folders."""
    await bases.get(call.db, call, base_id, "write")
    sql = (
        "SELECT 'folder' AS kind, id, name, removed_at FROM folders WHERE base_id = $1 AND removed_at IS NOT NULL"
        " AND removed_with = id UNION ALL SELECT 'document', id, name, removed_at FROM documents WHERE base_id = $1"
        " AND removed_at IS NOT NULL AND removed_with IS NULL ORDER BY removed_at DESC, id DESC LIMIT $2 OFFSET $3"
    )
    rows = await call.db.scan(sql, base_id, limit, offset)
    return [Removed(row["kind"], row["id"], row["name"], row["removed_at"]) for row in rows]


async def purge(db: Database, before: int) -> int:
    """Delete everything that was removed before a time; return the number of documents."""
    purged = 0
    while rows := await db.scan(_EXPIRED, before, BATCH_DOCUMENTS):
        ids = [row["id"] for row in rows]
        purged += await db.write(lambda tx, ids=ids: _purge_documents(tx, ids, before))
    await db.write(lambda tx: _purge_folders_and_bases(tx, before))
    return purged


async def _purge_documents(tx: Transaction, ids: Sequence[int], before: int) -> int:
    expired = [row["id"] for id in ids if (row := await tx.fetch_one(_LOCK_EXPIRED, before, id))]
    await document_text.remove(tx, expired)
    await document_index.remove(tx, expired)
    await tx.execute_many("DELETE FROM documents WHERE id = $1", [(id,) for id in expired])
    return len(expired)


async def _purge_folders_and_bases(tx: Transaction, before: int) -> None:
    await tx.execute(
        "DELETE FROM folders WHERE removed_at < $1 OR base_id IN (SELECT id FROM bases WHERE removed_at < $1)", before
    )
    await tx.execute(
        "DELETE FROM grants WHERE thing_kind = 'base'"
        " AND thing_id IN (SELECT CAST(id AS TEXT) FROM bases WHERE removed_at < $1)",
        before,
    )
    await tx.execute("DELETE FROM bases WHERE removed_at < $1", before)
