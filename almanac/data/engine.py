"""The open resources of datasets in one process: the file store, the processes that query and write, and the cache."""

from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson

from almanac.data.queries.query_plan import QueryResult
from almanac.data.queries.query_pool import QueryLimits, QueryPool
from almanac.data.row_writer import RowWriter, WriteLimits
from almanac.files.file_store import FileStore

MAX_CACHE_BYTES = 64 * 1024 * 1024
MAX_CACHED_RESULT_BYTES = 2 * 1024 * 1024


class ResultCache:
    """The latest results, by versions, query and rights. Its size in bytes is bounded."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._results: OrderedDict[str, tuple[int, QueryResult]] = OrderedDict()

    def get(self, key: str) -> QueryResult | None:
        """Return a result, or None."""
        if key not in self._results:
            return None
        self._results.move_to_end(key)
        return self._results[key][1]

    def put(self, key: str, result: QueryResult) -> None:
        """Keep a result, unless it is large."""
        size = len(orjson.dumps(result.rows)) if len(result.rows) <= 10_000 else MAX_CACHED_RESULT_BYTES + 1
        if size > MAX_CACHED_RESULT_BYTES or key in self._results:
            return
        self._results[key] = (size, result)
        self._size += size
        while self._size > self._max_bytes:
            _, (freed, _) = self._results.popitem(last=False)
            self._size -= freed


@dataclass(frozen=True, slots=True)
class DataEngine:
    """What reads and writes rows."""

    files: FileStore
    pool: QueryPool
    writer: RowWriter
    key: bytes = field(repr=False)  # signs receipts
    cache: ResultCache = field(default_factory=ResultCache)


@asynccontextmanager
async def open_data(
    files: FileStore, key: bytes, queries: QueryLimits | None = None, writes: WriteLimits | None = None
) -> AsyncGenerator[DataEngine]:
    """Yield the engine. Its processes start with the first query and the first write."""
    engine = DataEngine(files, QueryPool(queries or QueryLimits()), RowWriter(writes or WriteLimits()), key)
    try:
        yield engine
    finally:
        await engine.pool.close()
        await engine.writer.close()
