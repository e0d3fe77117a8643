"""Permission to change the catalogue, and the removal of all of it.

The catalogue belongs to the organisation. Everyone in it may read, so reading needs no check: each statement of this
package selects the actor's own organisation. Administrators and holders of the Developer role may write.
"""

from almanac.catalogue import entity_index
from almanac.core.call import Call
from almanac.core.database import Reader, Transaction
from almanac.identity import access
from almanac.identity.access import ProtectedObject
from almanac.search import sources

BATCH_ROWS = 500  # rows removed in one transaction; other writers get their turn between two transactions

# Emptied last: entities and attachments refer to these tables.
_STRUCTURE_TABLES = ("namespaces", "categories", "vocabulary")


def protected_object(org_id: str) -> ProtectedObject:
    """The catalogue of an organisation as roles refer to it."""
    return ProtectedObject("catalogue", org_id, org_id, "organization")


async def require_write(db: Reader, call: Call) -> None:
    """Raise Forbidden unless the actor may change the catalogue."""
    await access.require(db, call, "write", protected_object(call.actor.org_id), name="the catalogue")


async def remove_all(call: Call) -> None:
    """Remove the organisation's catalogue for good. Documents and principals stay.

    After an interruption the remaining catalogue is consistent, and the next call removes the rest.
    """
    db, org_id = call.db, call.actor.org_id
    await require_write(db, call)
    is_empty = False
    while not is_empty:  # another call may add entities while this one removes them
        for table, kind in (("entities", entity_index.ENTITY), ("attachments", entity_index.IMAGE)):
            while await db.write(lambda tx, table=table, kind=kind: _remove_batch(tx, org_id, table, kind)):
                pass
        is_empty = await db.write(lambda tx: _remove_structure(tx, org_id))
    call.record_access("catalogue", org_id)


async def _remove_batch(tx: Transaction, org_id: str, table: str, kind: str) -> int:
    sql = f"SELECT id FROM {table} WHERE org_id = $1 ORDER BY id LIMIT {BATCH_ROWS}"  # noqa: S608 - our own names
    ids = [row["id"] for row in await tx.fetch(sql, org_id)]
    if ids:
        await tx.execute_many(f"DELETE FROM {table} WHERE id = $1", [(id,) for id in ids])  # noqa: S608 - our own names
        await sources.remove(tx, kind, ids)
    return len(ids)


async def _remove_structure(tx: Transaction, org_id: str) -> bool:
    """Remove namespaces, categories and vocabulary. False, and nothing removed, if entities or attachments remain."""
    sql = "SELECT 1 FROM entities WHERE org_id = $1 UNION ALL SELECT 1 FROM attachments WHERE org_id = $1 LIMIT 1"
    if await tx.fetch_one(sql, org_id):
        return False
    for table in _STRUCTURE_TABLES:
        await tx.execute(f"DELETE FROM {table} WHERE org_id = $1", org_id)  # noqa: S608 - our own names
    return True
