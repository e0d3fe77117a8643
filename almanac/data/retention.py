"""Removes datasets from the trash, old versions, and the keys of repeated pushes."""

from almanac.core import clock
from almanac.core.database import Database
from almanac.core.settings import Settings
from almanac.data import datasets, versions


async def purge(db: Database, settings: Settings) -> None:
    """Delete in steps, because other writers wait for each."""
    now = clock.now()
    while await db.write(lambda tx: datasets.purge(tx, now - settings.trash_days * clock.DAY)):
        pass
    while await db.write(lambda tx: versions.prune(tx, now - settings.data_version_days * clock.DAY)):
        pass
    await db.write(lambda tx: versions.forget_push_keys(tx, now - clock.DAY))
