"""The open resources of datasets in one process: the file store, the processes that query and write, and the cache."""

from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson

from almanac.core.settings import Settings
from almanac.data.imports.import_pool import ImportLimits, ImportPool
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
    """The open resources that read and write rows."""

    files: FileStore
    pool: QueryPool
    writer: RowWriter
    imports: ImportPool
    key: bytes = field(repr=False)  # signs receipts
    cache: ResultCache = field(default_factory=ResultCache)

    async def close(self) -> None:
        """End the processes."""
        await self.pool.close()
        await self.writer.close()
        await self.imports.close()


def create_engine(files: FileStore, key: bytes, settings: Settings | None = None) -> DataEngine:
    """Return an engine, which the caller closes. Its processes start with the first use of each."""
    queries, imports = QueryPool(_query_limits(settings)), ImportPool(ImportLimits())
    return DataEngine(files, queries, RowWriter(WriteLimits()), imports, key)


@asynccontextmanager
async def open_data(files: FileStore, key: bytes, settings: Settings | None = None) -> AsyncGenerator[DataEngine]:
    """Yield an engine."""
    engine = create_engine(files, key, settings)
    try:
        yield engine
    finally:
        await engine.close()


def _query_limits(settings: Settings | None) -> QueryLimits:
    limits = QueryLimits()
    if settings is None:
        return limits
    return QueryLimits(
        processes=settings.query_processes or limits.processes,
        memory_mib=settings.query_memory_mb,
        seconds=settings.query_seconds,
    )
