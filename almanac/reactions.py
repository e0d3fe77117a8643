"""The background work: the handlers of all job kinds, and the schedules."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from almanac.ai.cpu import cpu_count
from almanac.ai.embedder_choice import open_embedder
from almanac.assist import agent_tasks
from almanac.audit import agent_executions, trail
from almanac.catalogue import attachments
from almanac.catalogue.entity_index import REINDEX_CATEGORY_JOB, ReindexCategory
from almanac.core import clock
from almanac.core.database import Database, Transaction
from almanac.core.settings import Settings
from almanac.data import profiles, retention, versions
from almanac.data.compaction import CompactDataset
from almanac.data.engine import create_engine
from almanac.data.profile_job import ProfileDataset
from almanac.files.file_store import FileStore
from almanac.identity import tokens
from almanac.jobs import process_memory, queue, schedule
from almanac.jobs.queue import Job
from almanac.jobs.schedule import Every, Schedule
from almanac.jobs.worker import Effect, Handler
from almanac.knowledge import trash
from almanac.knowledge.ingest import ingest_job
from almanac.knowledge.ingest.ingest_job import Ingest
from almanac.knowledge.parsers import parse_file
from almanac.memory import expiry
from almanac.operations.image_text import RecogniseImageText
from almanac.quotas import idempotency
from almanac.sandbox.confinement import MIB, SandboxLimits
from almanac.sandbox.pool import SandboxPool
from almanac.search import backends
from almanac.search.jobs import analyse_passages, embed_passages, embed_queue
from almanac.search.jobs.analyse_passages import AnalysePassages
from almanac.search.jobs.embed_passages import DeleteOldVectors, EmbedPassages

# Finished jobs are kept for a while for operators.
FINISHED_JOB_RETENTION = 7 * clock.DAY

SCHEDULES = (
    Schedule("purge_expired", "purge_expired", Every(3600), skip_while_unfinished=True),
    Schedule("repair_interrupted", "repair_interrupted", Every(300), skip_while_unfinished=True),
    Schedule("maintain_index", "maintain_index", Every(30), skip_while_unfinished=True),
)


@asynccontextmanager
async def open_job_handlers(db: Database, settings: Settings) -> AsyncGenerator[Mapping[str, Handler]]:
    """Yield the handler of each job kind, with its resources open."""
    files = FileStore(settings.home, settings.max_file_bytes)
    pool = _open_parser_pool(settings)
    embedder = open_embedder(settings)
    data = create_engine(files, b"", settings)  # jobs sign no receipts

    async def purge_expired(_: Job) -> Effect | None:
        return await _purge_expired(db, settings)

    async def repair_interrupted(_: Job) -> Effect | None:
        """Repair interrupted work and remove unused files."""
        await ingest_job.sweep(db)
        await files.clear(db)
        await files.remove_unused(db)
        await analyse_passages.enqueue_missing(db)
        await embed_queue.retry_dead(db)
        await profiles.enqueue_missing(db)
        if settings.embedding:
            await embed_passages.enqueue_missing(db, embedder.name)
        return None

    async def maintain_index(_: Job) -> Effect | None:
        """Maintain the search index."""
        await expiry.sweep(db)
        await backends.maintain(settings, db)
        await asyncio.to_thread(process_memory.trim_heap)
        return None

    try:
        # Searches do not find passages that a migration left unanalysed, so these do not wait for the next repair.
        await analyse_passages.enqueue_missing(db)
        await embed_queue.retry_dead(db)
        yield {
            "purge_expired": purge_expired,
            "repair_interrupted": repair_interrupted,
            "maintain_index": maintain_index,
            embed_queue.KIND: EmbedPassages(db, embedder) if settings.embedding else _skip_embedding,
            embed_passages.DELETE_OLD_VECTORS_JOB: DeleteOldVectors(db),
            analyse_passages.KIND: AnalysePassages(db),
            REINDEX_CATEGORY_JOB: ReindexCategory(db),
            attachments.IMAGE_TEXT_JOB: RecogniseImageText(db, files, pool),
            versions.COMPACT_JOB: CompactDataset(db, data),
            profiles.PROFILE_JOB: ProfileDataset(db, files, data.pool),
            "ingest": Ingest(db, files, pool, settings.parsers or cpu_count()),
        }
    finally:
        await data.close()
        await pool.close()
        await embedder.close()
        files.close()


async def _purge_expired(db: Database, settings: Settings) -> Effect:
    """Remove what has expired: audit rows, login tokens, finished jobs, schedule entries, conversations, trash."""
    await trash.purge(db, clock.now() - settings.trash_days * clock.DAY)

    await retention.purge(db, settings)

    async def effect(tx: Transaction) -> None:
        now = clock.now()
        await queue.prune(tx, now - FINISHED_JOB_RETENTION)
        await schedule.prune(tx, now - FINISHED_JOB_RETENTION)
        await idempotency.prune(tx, now)
        await tokens.prune_login_tokens(tx, now)
        await agent_tasks.prune(tx, now - settings.conversation_hours * clock.HOUR)
        await _prune_audit(tx, settings, now)

    return effect


async def _prune_audit(tx: Transaction, settings: Settings, now: int) -> None:
    """Remove expired audit rows and agent executions."""
    if settings.audit_retention_days:
        await trail.prune(tx, now - settings.audit_retention_days * clock.DAY)
    if settings.agent_execution_days:
        await agent_executions.prune(tx, now - settings.agent_execution_days * clock.DAY)


async def _skip_embedding(_: Job) -> Effect | None:
    """Finish a job that was queued before embedding was switched off."""
    return None


def _open_parser_pool(settings: Settings) -> SandboxPool:
    limits = SandboxLimits(
        memory_bytes=settings.parser_memory_mb * MIB,
        cpu_seconds=settings.parser_seconds,
        wall_seconds=settings.parser_seconds,
    )
    return SandboxPool(parse_file.PARSE_FUNCTION, limits)
