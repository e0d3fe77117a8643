"""Queries on their way to a model: those that arrive while it is busy go together, and the last ones are remembered."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from almanac.ai.embedder import Vectors

MOST_REMEMBERED = 10_000  # vectors, of 1.5 kB each at 384 dimensions
MOST_AT_ONCE = 32


class _Batch:
    """Texts that go together, and what becomes of them."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.rows: asyncio.Task[Vectors] | None = None

    async def get(self, text: str) -> Vectors:
        place = self.places.setdefault(text, len(self.places))
        assert self.rows is not None
        rows = await asyncio.shield(self.rows)  # who gives up does not take it from the others
        return rows[place]


class QueryBatcher:
    """Vectors by their texts, from a function that embeds several at once."""

    def __init__(self, embed: Callable[[list[str]], Awaitable[Vectors]]) -> None:
        self._embed = embed
        self._known: OrderedDict[str, Vectors] = OrderedDict()
        self._turn = asyncio.Lock()
        self._filling: _Batch | None = None
        self._under_way: _Batch | None = None
        self._tasks: set[asyncio.Task[Vectors]] = set()

    async def get(self, text: str) -> Vectors:
        """The vector of a query."""
        known = self._known.get(text)
        if known is not None:
            self._known.move_to_end(text)
            return known
        if self._under_way is not None and text in self._under_way.places:
            return await self._under_way.get(text)
        if self._filling is None or len(self._filling.places) >= MOST_AT_ONCE:
            self._filling = self._begin()
        return await self._filling.get(text)

    async def close(self) -> None:
        """Stop; whoever still waits is told so."""
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
            task.exception()  # seen, even if everyone who asked has gone

    async def _run(self, batch: _Batch) -> Vectors:
        async with self._turn:
            if self._filling is batch:
                self._filling = None
            self._under_way = batch
            try:
                rows = await self._embed(list(batch.places))
            finally:
                self._under_way = None
        rows.setflags(write=False)
        for text, row in zip(batch.places, rows, strict=True):
            self._known[text] = row
        while len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        return rows
