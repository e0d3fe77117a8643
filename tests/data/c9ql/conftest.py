"""A database for the tests of C9QL."""

from collections.abc import Iterator

import duckdb
import pytest


@pytest.fixture
def data() -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a connection to an empty DuckDB in memory."""
    connection = duckdb.connect(config={"threads": 1})
    yield connection
    connection.close()
