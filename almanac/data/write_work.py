"""One write in a confined child process: a Parquet file from new rows, from the files of a dataset, or from both.

The engine reads, and the file is written by another library through Python: the engine itself could write only to a
path, and the confinement has no folder that a child may write to.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import arro3.io
import duckdb

from almanac.data.fields import Field, field_from_value
from almanac.data.parquet_source import ParquetFile, column_of, engine_type, quoted, source_sql, text
from almanac.sandbox.errors import WorkRejected

COMPRESSION = "zstd(3)"
MAX_LINE_BYTES = 16 * 1024 * 1024  # of one row

_CONFIGURATION: dict[str, str | bool | int | float | list[str]] = {
    "threads": "1",
    "async_threads": "0",
    "temp_directory": "",
    "max_temp_directory_size": "0B",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
    "pin_threads": "off",
}

_connections: list[Any] = []  # one after `preload`


def preload() -> None:
    """Open the connection that all children inherit, and use each part once."""
    connection: Any = duckdb.connect(":memory:", config=_CONFIGURATION)
    connection.execute("SET TimeZone = 'UTC'")
    _connections.append(connection)
    arro3.io.write_parquet(connection.sql("SELECT 1 AS a"), io.BytesIO(), compression=COMPRESSION)


def write_file(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    """Return the number of rows as a line, followed by the content of a Parquet file."""
    connection = engine(files, options)
    try:
        sql, output = _sql(files, options), io.BytesIO()
        count = options["row_count"]
        if count is None:
            [(count,)] = connection.sql(f"SELECT count(*) FROM ({sql})").fetchall()  # noqa: S608
        arro3.io.write_parquet(connection.sql(sql), output, compression=COMPRESSION)
    except duckdb.OutOfMemoryException:
        raise MemoryError from None
    except duckdb.Error as error:
        # The engine's message quotes values, so only the kind of the failure leaves the process.
        raise WorkRejected("unwritable", type(error).__name__) from None
    return b"%d\n%b" % (count, output.getvalue())


def engine(files: Sequence[Path], options: Mapping[str, Any]) -> Any:
    """Return the connection, which from now on can read these files only."""
    [connection] = _connections
    paths = ", ".join(text(str(path)) for path in files)
    connection.execute(
        f"SET allowed_paths = [{paths}]; SET enable_external_access = false;"
        f" SET memory_limit = '{int(options['memory_mib'])}MiB'; SET lock_configuration = true"
    )
    return connection


def _sql(files: Sequence[Path], options: dict[str, Any]) -> str:
    fields = [field_from_value(each) for each in options["fields"]]
    parts: list[str] = []
    new = options["new_rows"]
    if (existing := options["existing"]) is not None:
        parts.append(_existing(files, existing, fields, new, options["keys"]))
    if new is not None:
        parts.append(f"SELECT {_columns(fields)} FROM ({_new_rows(files, new, fields)})")  # noqa: S608
    sql = " UNION ALL ".join(parts)
    if options["date_field"]:
        column, since = quoted(options["date_field"]), text(options["since"])
        sql = f"SELECT * FROM ({sql}) WHERE {column} IS NULL OR {column} >= CAST({since} AS TIMESTAMP)"  # noqa: S608
    return sql


def _existing(
    files: Sequence[Path],
    existing: Sequence[Mapping[str, Any]],
    fields: Sequence[Field],
    new: Mapping[str, Any] | None,
    keys: Sequence[str],
) -> str:
    stored = [
        ParquetFile(files[int(each["file"])], tuple(field_from_value(field) for field in each["fields"]))
        for each in existing
    ]
    sql = source_sql(stored, fields)
    if not keys or new is None:
        return sql
    same = " AND ".join(f"old.{quoted(key)} IS NOT DISTINCT FROM new.{quoted(key)}" for key in keys)
    return (
        f"SELECT * FROM ({sql}) AS old WHERE NOT EXISTS"  # noqa: S608
        f" (SELECT 1 FROM ({_new_rows(files, new, fields)}) AS new WHERE {same})"
    )


def _new_rows(files: Sequence[Path], new: Mapping[str, Any], fields: Sequence[Field]) -> str:
    """A SELECT of the lines of JSON, with all fields. A line has its values under `c0`, `c1` and so on."""
    given = [field_from_value(each) for each in new["fields"]]
    keys = {column_of(each): f"c{index}" for index, each in enumerate(given)}
    types = {column_of(each): each.type for each in given}
    columns = ", ".join(f"{text(keys[column_of(each)])}: {text(engine_type(each.type))}" for each in given)
    selected = ", ".join(
        f"CAST({keys[column_of(each)]} AS {engine_type(each.type)}) AS {quoted(column_of(each))}"
        if column_of(each) in types
        else f"NULL::{engine_type(each.type)} AS {quoted(column_of(each))}"
        for each in fields
    )
    source = text(str(files[int(new["file"])]))
    return (
        f"SELECT {selected} FROM read_json({source}, columns = {{{columns}}}, format = 'newline_delimited',"  # noqa: S608
        f" maximum_object_size = {MAX_LINE_BYTES})"
    )


def _columns(fields: Sequence[Field]) -> str:
    return ", ".join(quoted(column_of(each)) for each in fields)
