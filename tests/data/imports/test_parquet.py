"""Parquet files, with types that other programs write."""

from datetime import date, datetime
from pathlib import Path

import duckdb
import pytest

from almanac.core.errors import BadRequest
from tests.data.imports.importing import Importing


def parquet(path: Path, sql: str) -> bytes:
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({sql}) TO '{path}' (FORMAT parquet)")
    return path.read_bytes()


async def test_types_become_ours(importing: Importing, tmp_path: Path):
    sql = """SELECT 1::TINYINT AS "Net n", 2.5::DECIMAL(10,2) AS m, 'x' AS t, true AS b, DATE '2024-01-31' AS d,
        TIMESTAMP '2024-01-31 10:00' AS s, TIMESTAMPTZ '2024-01-31 10:00+02' AS z, [1,2] AS l, {'a': 1} AS r,
        MAP {'k': 1} AS p, TIME '10:00' AS c, NULL::INTEGER AS nothing"""
    result = await importing.load(parquet(tmp_path / "f.parquet", sql))
    assert result.format == "parquet"
    assert await importing.types() == {
        "Net n": "integer", "m": "decimal", "t": "text", "b": "boolean", "d": "date", "s": "timestamp",
        "z": "timestamp", "l": "list", "r": "record", "p": "list", "c": "text", "nothing": "integer",
    }  # fmt: skip
    assert await importing.rows() == [
        {
            "Net n": 1, "m": 2.5, "t": "x", "b": True, "d": date(2024, 1, 31), "s": datetime(2024, 1, 31, 10),
            "z": datetime(2024, 1, 31, 8), "l": [1, 2], "r": {"a": 1}, "p": [{"key": "k", "value": 1}],
            "c": "10:00:00", "nothing": None,
        }
    ]  # fmt: skip


@pytest.mark.parametrize("content", [b"PAR1", b"PAR1" + b"\xff" * 1000 + b"PAR1"], ids=["empty", "damaged"])
async def test_a_damaged_file_is_refused(importing: Importing, content: bytes):
    with pytest.raises(BadRequest, match="cannot be read"):
        await importing.load(content)
    assert not await importing.exists()
