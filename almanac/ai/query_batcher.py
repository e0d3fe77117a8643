"""Batches queries for a model: queries that arrive while it is busy form one batch. The last vectors are cached.

Two organisations with the same query share neither a cached nor a computed vector. Otherwise the time of a search would
show whether another organisation has used the query.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from almanac.ai.embedder import Vectors
from almanac.core.fair_slots import ORG_ID

MAX_CACHED_VECTORS = 10_000  # of 1.5 kB each at 384 dimensions
MAX_BATCH_QUERIES = 32

QueryKey = tuple[str, str]  # organisation and text


class _Batch:
    """The texts of a batch, and the task that computes their vectors."""

    def __init__(self) -> None:
        self.positions: dict[QueryKey, int] = {}
        self.rows: asyncio.Task[Vectors] | None = None

    async def get(self, key: QueryKey) -> Vectors:
        position = self.positions.setdefault(key, len(self.positions))
        assert self.rows is not None
        rows = await asyncio.shield(self.rows)  # if one caller is cancelled, the others still receive their vectors
        return rows[position]


class QueryBatcher:
    """Returns the vectors of single texts from a function that embeds several at once."""

    def __init__(self, embed: Callable[[list[str]], Awaitable[Vectors]]) -> None:
        self._embed = embed
        self._cache: OrderedDict[QueryKey, Vectors] = OrderedDict()
        self._model_lock = asyncio.Lock()
        self._filling: _Batch | None = None
        self._running: _Batch | None = None
        self._tasks: set[asyncio.Task[Vectors]] = set()

    async def get(self, text: str) -> Vectors:
        """The vector of a query."""
        key = (ORG_ID.get(), text)
        cached = self._cache.get(key)
        if cached is not None:
            self._cache.move_to_end(key)
            return cached
        if self._running is not None and key in self._running.positions:
            return await self._running.get(key)
        if self._filling is None or len(self._filling.positions) >= MAX_BATCH_QUERIES:
            self._filling = self._begin()
        return await self._filling.get(key)

    async def close(self) -> None:
        """Cancel the running batches. Their callers receive CancelledError."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self) -> _Batch:
        batch = _Batch()
        batch.rows = asyncio.create_task(self._run(batch))
        self._tasks.add(batch.rows)
        batch.rows.add_done_callback(self._end)
        return batch

    def _end(self, task: asyncio.Task[Vectors]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved, in case all callers were cancelled

    async def _run(self, batch: _Batch) -> Vectors:
        async with self._model_lock:
            if self._filling is batch:
                self._filling = None
            self._running = batch
            try:
                rows = await self._embed([text for _, text in batch.positions])
            finally:
                self._running = None
        rows.setflags(write=False)
        for key, row in zip(batch.positions, rows, strict=True):
            self._cache[key] = row
        while len(self._cache) > MAX_CACHED_VECTORS:
            self._cache.popitem(last=False)
        return rows
