"""Clearing: everything in a tenant's catalogue goes; the tenant, its people and its documents stay."""

from almanac.catalogue import entity_index, rights
from almanac.core.call import Call
from almanac.core.database import Transaction

AT_ONCE = 500  # things removed in one transaction, so that others can write between two of them

_FRAME = ("namespaces", "categories", "vocabulary")


async def clear(call: Call) -> None:
    """Remove all of the caller's catalogue. Cut short, what is left is whole, and the next call goes on with it."""
    db, org_id = call.db, call.actor.org_id
    await rights.require_write(db, call)
    is_left = True
    while is_left:  # until nobody has added anything meanwhile
        for table, kind in (("entities", entity_index.ENTITY), ("attachments", entity_index.IMAGE)):
            while await db.write(lambda tx, table=table, kind=kind: _remove_some(tx, org_id, table, kind)):
                pass
        is_left = not await db.write(lambda tx: _remove_frame(tx, org_id))
    call.record_access("catalogue", org_id)


async def _remove_some(tx: Transaction, org_id: str, table: str, kind: str) -> int:
    rows = await tx.fetch(f"SELECT id FROM {table} WHERE org_id = $1 ORDER BY id LIMIT {AT_ONCE}", org_id)  # noqa: S608 - ours
    found = [row["id"] for row in rows]
    if found:
        await tx.execute_many(f"DELETE FROM {table} WHERE id = $1", [(id,) for id in found])  # noqa: S608 - ours
        await entity_index.remove(tx, kind, found)
    return len(found)


async def _remove_frame(tx: Transaction, org_id: str) -> bool:
    """Remove what entities stand in, if there are none."""
    left = "SELECT 1 FROM entities WHERE org_id = $1 UNION ALL SELECT 1 FROM attachments WHERE org_id = $1 LIMIT 1"
    if await tx.fetch_one(left, org_id):
        return False
    for table in _FRAME:
        await tx.execute(f"DELETE FROM {table} WHERE org_id = $1", org_id)  # noqa: S608 - ours
    return True
