"""The worker of the kill tests of the index: the real jobs, a slow model that uses no CPU, and constant compaction.

python -m tests.kill.indexer
"""

import asyncio
import hashlib
import signal
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from almanac.ai.embedder import Vectors
from almanac.bootstrap import load_settings, open_database
from almanac.core import clock
from almanac.core.database import Database
from almanac.core.settings import Settings
from almanac.jobs.worker import Worker
from almanac.search import backends
from almanac.search.index.embedded import compaction
from almanac.search.index.postgres import postgres_index
from almanac.search.jobs import embed_passages
from almanac.search.jobs.analyse_passages import AnalysePassages
from almanac.search.jobs.embed_passages import DeleteOldVectors, EmbedPassages

DIMENSION = 16
AT_ONCE = 8  # passages: many small batches, so that kills happen between batches and within them


class Slow:
    """A slow embedder with vectors that depend only on the text."""

    name = "slow"
    dimension = DIMENSION
    languages = frozenset[str]()

    async def passages(self, texts: Sequence[str]) -> Vectors:
        await asyncio.sleep(0.01)
        return np.stack([vector_of(text) for text in texts])

    async def query(self, text: str) -> Vectors:
        return vector_of(text)

    async def close(self) -> None:
        """Nothing is open."""


def vector_of(text: str) -> Vectors:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    row = np.random.default_rng(seed).standard_normal(DIMENSION)
    return (row / np.linalg.norm(row)).astype(np.float32)


async def tend(settings: Settings, db: Database, stop: asyncio.Event) -> None:
    """Run continuously the jobs that the schedule starts every half minute."""
    while not stop.is_set():
        if settings.on_sqlite:
            await compaction.compact(db, backends.folder_of(settings), least=1, masked=0.1)
        else:
            await postgres_index.maintain(db)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await stop.wait()


async def work() -> None:
    settings = load_settings().settings
    embed_passages.BATCH_SIZE = AT_ONCE
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_database(settings) as db:
        handlers = {
            "embed_passages": EmbedPassages(db, Slow()),
            "delete_old_vectors": DeleteOldVectors(db),
            "analyse_passages": AnalysePassages(db),
        }
        lease = round(settings.job_lease_seconds * clock.SECOND)
        worker = Worker(db, handlers, lease=lease, poll=clock.SECOND // 20)
        await asyncio.gather(worker.run(stop), tend(settings, db, stop))


if __name__ == "__main__":
    asyncio.run(work())
