"""What runs in the background: one table of job kinds, one of schedules."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from almanac.ai.choice import open_embedder
from almanac.ai.machine import cores
from almanac.assist import tasks
from almanac.assist.pictures import ReadPicture
from almanac.audit import trail
from almanac.catalogue import attachments
from almanac.catalogue.categories import SHELVE
from almanac.catalogue.shelving import Shelve
from almanac.core import allotment, clock
from almanac.core.database import Database, Transaction
from almanac.core.settings import Settings
from almanac.jobs import queue, schedule
from almanac.jobs.queue import Job
from almanac.jobs.schedule import Every, Schedule
from almanac.jobs.worker import Effect, Handler
from almanac.knowledge import ingest, trash
from almanac.knowledge.files import Files
from almanac.knowledge.ingest import Ingest
from almanac.knowledge.parsers.confinement import MIB, Limits
from almanac.knowledge.parsers.nursery import Nursery
from almanac.memory import expiry
from almanac.quotas import repeats
from almanac.search import embedding, opening, upkeep
from almanac.search.embedding import Embed, Forget
from almanac.search.upkeep import Reword

# Finished jobs are kept for a while, for whoever asks what happened.
KEEP_JOBS = 7 * clock.DAY

SCHEDULES = (
    Schedule("housekeeping", "housekeeping", Every(3600), is_alone=True),
    Schedule("tidy", "tidy", Every(300), is_alone=True),
    Schedule("index", "index", Every(30), is_alone=True),
)


@asynccontextmanager
async def handlers(db: Database, settings: Settings) -> AsyncGenerator[Mapping[str, Handler]]:
    """The kinds of jobs there are, each with what does it, for as long as what they need is open."""
    files = Files(settings.home, settings.max_file_bytes)
    nursery = Nursery(_limits(settings))
    embedder = open_embedder(settings)

    async def housekeeping(_: Job) -> Effect | None:
        """Remove what is past keeping: old audit rows, finished jobs, schedule entries, conversations,
        the trash."""
        await trash.purge(db, clock.now() - settings.trash_days * clock.DAY)

        async def effect(tx: Transaction) -> None:
            now = clock.now()
            await queue.prune(tx, now - KEEP_JOBS)
            await schedule.prune(tx, now - KEEP_JOBS)
            await repeats.prune(tx, now)
            await tasks.prune(tx, now - settings.conversation_hours * clock.HOUR)
            if settings.audit_retention_days:
                await trail.prune(tx, now - settings.audit_retention_days * clock.DAY)

        return effect

    async def tidy(_: Job) -> Effect | None:
        """See to what interrupted work left behind, and to files nobody needs any more."""
        await ingest.sweep(db)
        await files.clear(db)
        await trash.remove_unused(db, files)
        await upkeep.survey(db)
        if settings.embedding:
            await embedding.survey(db, embedder.name)
        return None

    async def no_vectors(_: Job) -> Effect | None:
        """They are not wanted; what asked for them needs no answer."""
        return None

    async def index(_: Job) -> Effect | None:
        """Keep what searches read in good shape."""
        await expiry.sweep(db)
        await opening.maintain(settings, db)
        await asyncio.to_thread(allotment.give_back)
        return None

    try:
        await upkeep.survey(db)  # what a migration left unread is found by nobody, so it does not wait for `tidy`
        yield {
            "housekeeping": housekeeping,
            "tidy": tidy,
            "index": index,
            "embed": Embed(db, embedder) if settings.embedding else no_vectors,
            "forget": Forget(db),
            "reword": Reword(db),
            SHELVE: Shelve(db),
            attachments.READ: ReadPicture(db, files, nursery),
            "ingest": Ingest(db, files, nursery, settings.parsers or cores()),
        }
    finally:
        await nursery.close()
        await embedder.close()
        files.close()


def _limits(settings: Settings) -> Limits:
    return Limits(
        memory_bytes=settings.parser_memory_mb * MIB,
        cpu_seconds=settings.parser_seconds,
        wall_seconds=settings.parser_seconds,
    )
