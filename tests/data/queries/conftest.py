"""Parquet files, and one pool of query processes for all tests of a module."""

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
import pytest_asyncio

from almanac.data.fields import DATE, DECIMAL, INTEGER, TEXT, Field
from almanac.data.queries.query_plan import DatasetFiles
from almanac.data.queries.query_pool import QueryLimits, QueryPool

LIMITS = QueryLimits(processes=2, threads=2, memory_mib=256, seconds=20)

SALES = (
    Field("region", TEXT),
    Field("amount", DECIMAL),
    Field("count", INTEGER),
    Field("Order Date", DATE),
    Field("secret", TEXT),
)
ROWS = """
SELECT * FROM (VALUES
    ('north', 10.5, 1, DATE '2024-01-01', '1'), ('south', 20.25, 2, DATE '2024-01-02', '2'),
    ('north', 30.0, 3, DATE '2024-02-01', '3'), (NULL, NULL, NULL, NULL, NULL),
    ('hidden', 99.0, 4, DATE '2024-03-01', 'the-secret')
) AS v("region", "amount", "count", "Order Date", "secret")
"""

WriteParquet = Callable[[str, str], Path]


def write_parquet(path: Path, query: str) -> Path:
    """Write the rows of a query to a Parquet file. The tests, unlike the server, run DuckDB in their own process."""
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
    return path


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> DatasetFiles:
    path = write_parquet(tmp_path_factory.mktemp("files") / "sales.parquet", ROWS)
    return DatasetFiles([path], SALES)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[QueryPool]:
    async with QueryPool(LIMITS) as opened:
        yield opened


def rows_of(path: Path, query: str) -> Sequence[tuple[Any, ...]]:
    """The rows of a query over a Parquet file, which it calls t."""
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW t AS SELECT * FROM '{path}'")
        return connection.execute(query).fetchall()
