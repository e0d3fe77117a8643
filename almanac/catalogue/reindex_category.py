"""Shelving: the job that tells search anew of a category's entities, which are found by its name too."""

from almanac.catalogue import entities, entity_index
from almanac.core.database import Database, Transaction
from almanac.jobs.queue import Job
from almanac.jobs.worker import Effect

AT_ONCE = 100


class ReindexCategory:
    """The handler of shelve jobs."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def __call__(self, job: Job) -> Effect | None:
        """Go through the category; done twice, it does no harm."""
        number = int(job.payload["category"])
        row = await self._db.fetch_one("SELECT org_id FROM categories WHERE number = $1", number)
        last = ""
        while row and (part := await entities.after(self._db, row["org_id"], last, AT_ONCE, number)):
            ids = [each.id for each in part]
            await self._db.write(lambda tx, ids=ids, org_id=row["org_id"]: _shelve(tx, org_id, ids))
            last = ids[-1]
        return None


async def _shelve(tx: Transaction, org_id: str, ids: list[str]) -> None:
    """Those of them that are still there, as they are now."""
    found = await entities.get_many(tx, org_id, ids)
    await entity_index.put(tx, [(entity, entity_index.prepare(entity)) for entity in found.values()])
