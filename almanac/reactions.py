"""What runs in the background: one table of job kinds, one of schedules."""

from collections.abc import Mapping

from almanac.audit import trail
from almanac.core import clock
from almanac.core.database import Database, Transaction
from almanac.core.settings import Settings
from almanac.jobs import queue, schedule
from almanac.jobs.queue import Job
from almanac.jobs.schedule import Every, Schedule
from almanac.jobs.worker import Effect, Handler

# Finished jobs are kept for a while, for whoever asks what happened.
KEEP_JOBS = 7 * clock.DAY

SCHEDULES = (Schedule("housekeeping", "housekeeping", Every(3600)),)


def handlers(db: Database, settings: Settings) -> Mapping[str, Handler]:
    """The kinds of jobs there are, each with what does it."""

    async def housekeeping(_: Job) -> Effect | None:
        """Remove what is past keeping: old audit rows, finished jobs, schedule entries."""

        async def effect(tx: Transaction) -> None:
            now = clock.now()
            await queue.prune(tx, now - KEEP_JOBS)
            await schedule.prune(tx, now - KEEP_JOBS)
            if settings.audit_retention_days:
                await trail.prune(tx, now - settings.audit_retention_days * clock.DAY)

        return effect

    return {"housekeeping": housekeeping}
