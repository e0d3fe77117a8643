"""One query in a confined child process: read the caller's text, open the files, run, and shape the result.

The fork server has loaded DuckDB, sqlglot and C9QL, and has a connection open without threads. A child inherits them.
It reads the caller's text, gives the connection the paths of its files, closes all other access and locks the settings
before the engine runs anything of the caller. DuckDB's error messages stay here: they quote stored values.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import orjson

from almanac.data.c9ql import Context, compile_query, parse
from almanac.data.c9ql.errors import C9qlError
from almanac.data.fields import Field, field_from_value, field_to_value
from almanac.data.parquet_source import ParquetFile, quoted, source_sql, text
from almanac.data.queries.json_columns import field_type, json_expression
from almanac.data.sql.errors import SqlError
from almanac.data.sql.read_sql import CheckedQuery, check_query, read_condition, read_sql
from almanac.sandbox.errors import WorkRejected

ROWS_PER_FETCH = 2_000
MAX_ENGINE_MESSAGE_CHARS = 300

# Set in the fork server, before anything of a caller is known. Without threads, so that the process can fork, and so
# that no thread escapes the confinement of a child.
_CONFIGURATION: dict[str, Any] = {
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

_ENGINE_PATH = re.compile(r"/\S*")


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the request."""

    files: Sequence[Path]
    fields: Sequence[Field]
    columns: Sequence[str]  # that the caller may see
    condition: str | None
    stored: Sequence[tuple[Field, ...]]  # the fields of each file; empty: `fields`
    explains_condition: bool

    @property
    def all_columns(self) -> list[str]:
        """The names of all columns, hidden ones included."""
        return [each.column or each.name for each in self.fields]


def preload() -> None:
    """Open the connection that all children inherit, and use each part once."""
    connection: Any = duckdb.connect(":memory:", config=_CONFIGURATION)
    connection.execute("SET TimeZone = 'UTC'")
    _connections.append(connection)
    prepare()


def prepare() -> None:
    """Use each part once. A child then has its own copies of the memory pages that a query writes to."""
    [connection] = _connections
    query = read_sql("SELECT sum(a) AS total FROM t WHERE a > 1", {"t": ["a"]}, datetime(2000, 1, 1, tzinfo=UTC))
    name = quoted(query.tables["t"])
    connection.execute(f"CREATE TEMP TABLE {name} AS SELECT range AS a FROM range(3)")  # noqa: S608 - a constant
    _fetch(connection, query.sql, 1, 1000)
    connection.execute(f"DROP TABLE {name}")


def run_query(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    """Run a query. Return the result or the reason for a refusal as JSON."""
    [connection] = _connections
    try:
        return _run(connection, files, options)
    except SqlError as error:
        return orjson.dumps({"error": error.to_value()})
    except C9qlError as error:
        return orjson.dumps({"error": SqlError(error.text).to_value()})
    except duckdb.OutOfMemoryException:
        raise MemoryError from None
    except duckdb.InterruptException:
        raise WorkRejected("timeout", "the time of a query") from None
    except duckdb.Error as error:
        return orjson.dumps({"error": SqlError(_explain(error)).to_value()})


def _run(connection: Any, files: list[Path], options: dict[str, Any]) -> bytes:
    tables = {name: _table(each, files) for name, each in options["tables"].items()}
    now = datetime.fromisoformat(options["now"])
    if options["language"] == "c9ql":
        [(name, table)] = tables.items()
        _lock(connection, files, options)
        query = _compile_c9ql(connection, options["text"], name, table, now)
    else:
        query = read_sql(options["text"], {name: each.columns for name, each in tables.items()}, now)
        _lock(connection, files, options)
        for name, internal_name in query.tables.items():
            _create(connection, internal_name, tables[name], query, now)
    return _pack(_fetch(connection, query.sql, options["limit"], options["max_bytes"]), query)


def _compile_c9ql(connection: Any, text: str, name: str, table: _Table, now: datetime) -> CheckedQuery:
    """Compile a query in C9QL, and make its dataset available. A transpose first asks for the keys of its fields."""
    fields = [each for each in table.fields if (each.column or each.name) in table.columns]
    parsed, keys = parse(text, fields), list[list[str]]()
    context = Context(now.astimezone(UTC).replace(tzinfo=None))
    while True:
        compiled = compile_query(parsed, fields, name, context=context, transposed=keys)
        query = replace(check_query(compiled.query, {name: table.columns}, now), reads_all_columns=True)
        if not keys:
            for internal_name in query.tables.values():
                _create(connection, internal_name, table, query, now)
        if not compiled.asks_for_keys:
            return query
        keys.append([key for (key,) in connection.execute(query.sql).fetchall()])


def _table(value: Mapping[str, Any], files: list[Path]) -> _Table:
    hidden = {name.casefold() for name in value["hidden"]}
    fields = [field_from_value(each) for each in value["fields"]]
    visible = [each.column or each.name for each in fields if each.name.casefold() not in hidden]
    first, end = value["files"]
    stored = [tuple(field_from_value(each) for each in of_file) for of_file in value["stored"]]
    return _Table(files[first:end], fields, visible, value["condition"], stored, bool(value["explains_condition"]))


def _lock(connection: Any, files: list[Path], options: Mapping[str, Any]) -> None:
    """Allow exactly the files of the request, then no other access, then no other settings."""
    paths = ", ".join(text(str(path)) for path in files)
    connection.execute(
        f"SET allowed_paths = [{paths}]; SET enable_external_access = false; SET threads = {int(options['threads'])}; "
        f"SET memory_limit = '{int(options['memory_mib'])}MiB'; "
        f"SET max_execution_time = {int(options['milliseconds'])}; SET lock_configuration = true"
    )


def _create(connection: Any, internal_name: str, table: _Table, query: CheckedQuery, now: datetime) -> None:
    """Make the visible part of a dataset available under its internal name."""
    if table.condition is not None:
        _copy_visible_rows(connection, internal_name, table, query, now)
        return
    try:
        connection.execute(f"CREATE TEMP VIEW {quoted(internal_name)} AS {_rows(table, table.columns)}")
    except (duckdb.DataError, duckdb.ProgrammingError, duckdb.IOException):
        raise SqlError("A file of the dataset cannot be read.", expected="Tell its owner.") from None


def _copy_visible_rows(connection: Any, internal_name: str, table: _Table, query: CheckedQuery, now: datetime) -> None:
    """Apply a row rule by a statement of its own, before the query.

    The engine moves conditions of a query into its views and into materialised parts. An error or the duration of the
    caller's condition on a hidden row would reveal the row.
    """
    columns = [name for name in table.columns if query.reads_all_columns or name.casefold() in query.names]
    rows = _rows(table, columns or table.columns[:1])
    try:
        condition = read_condition(table.condition or "", table.all_columns, now)
        connection.execute(f"CREATE TEMP TABLE {quoted(internal_name)} AS {rows} WHERE {condition}")
    except (SqlError, duckdb.DataError, duckdb.ProgrammingError):  # their messages name hidden fields and values
        if table.explains_condition:
            raise
        raise SqlError("A row rule of this dataset cannot be applied.", expected="Tell its owner.") from None


def _rows(table: _Table, columns: Sequence[str]) -> str:
    listed = ", ".join(map(quoted, columns)) or "NULL AS almanac_no_field"
    return f"SELECT {listed} FROM {_source(table)}"  # noqa: S608 - names are quoted


def _source(table: _Table) -> str:
    if table.stored or not table.files:
        files = [ParquetFile(path, fields) for path, fields in zip(table.files, table.stored, strict=True)]
        return f"({source_sql(files, table.fields)})"
    paths = ", ".join(text(str(path)) for path in table.files)
    union = ", union_by_name = true" if len(table.files) > 1 else ""
    return f"read_parquet([{paths}], hive_partitioning = false{union})"


def _bind(connection: Any, sql: str) -> Any:
    """Let the engine check names and types. It reads no rows for that, so its message contains no stored value."""
    try:
        return connection.sql(sql)
    except (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException) as error:
        first_line = _ENGINE_PATH.sub("", str(error).splitlines()[0])[:MAX_ENGINE_MESSAGE_CHARS]
        raise SqlError(first_line.partition(": ")[2] or first_line) from None


@dataclass(frozen=True, slots=True)
class _Shaped:
    fields: list[dict[str, Any]]
    rows: list[str]  # each a list in JSON
    total: int
    stopped_by_bytes: bool


def _fetch(connection: Any, sql: str, limit: int, max_bytes: int) -> _Shaped:
    relation = _bind(connection, sql)
    names = _unique(relation.columns)
    columns = [f"c{index}" for index in range(len(names))]
    values = ", ".join(json_expression(column, kind) for column, kind in zip(columns, relation.types, strict=True))
    fields = [field_to_value(Field(name, field_type(kind))) for name, kind in zip(names, relation.types, strict=True)]
    # The generator wrote this text, and the limit applies to the sorted rows of the query.
    limited = f"SELECT json_array({values})::VARCHAR FROM ({sql}) AS r({', '.join(columns)}) LIMIT {limit + 1}"  # noqa: S608
    rows: list[str] = []
    size, is_complete = 0, False
    result = connection.execute(limited)
    while len(rows) <= limit and size <= max_bytes:
        if not (fetched := result.fetchmany(ROWS_PER_FETCH)):
            is_complete = True
            break
        for (row,) in fetched:
            size += len(row.encode())
            rows.append(row)
            if size > max_bytes:
                break
    if is_complete and len(rows) <= limit:
        return _Shaped(fields, rows, len(rows), stopped_by_bytes=False)
    connection.abort()  # the rest of the result
    stopped_by_bytes = size > max_bytes
    kept = rows[:-1] if stopped_by_bytes else rows[:limit]
    [(total,)] = connection.sql(f"SELECT count(*) FROM ({sql}) AS r").fetchall()  # noqa: S608
    return _Shaped(fields, kept[:limit], total, stopped_by_bytes)


def _unique(names: Sequence[str]) -> list[str]:
    """The names of a result's columns, each different, as an object needs them."""
    used: set[str] = set()
    unique: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in used:
            number += 1
            candidate = f"{name}_{number}"
        used.add(candidate)
        unique.append(candidate)
    return unique


def _pack(shaped: _Shaped, query: CheckedQuery) -> bytes:
    head = {
        "fields": shaped.fields, "total_rows": shaped.total, "stopped_by_bytes": shaped.stopped_by_bytes,
        "sql": query.sql, "tables": sorted(query.tables),
    }  # fmt: skip
    return orjson.dumps(head)[:-1] + b',"rows":[' + ",".join(shaped.rows).encode() + b"]}"


# Errors while rows are read, and the message for the caller. The engine's own message quotes the value.
_MESSAGES = (
    (duckdb.ConversionException, "A value cannot be converted. Use TRY_CAST, which gives NULL for such a value."),
    (duckdb.OutOfRangeException, "A number is too large for its type. Convert it with CAST(… AS DOUBLE) first."),
    (duckdb.InvalidInputException, "A function does not accept one of its values."),
    (duckdb.IOException, "A file of the dataset cannot be read."),
    (duckdb.PermissionException, "The query needs access that no query has."),
)  # fmt: skip


def _explain(error: duckdb.Error) -> str:
    for kind, message in _MESSAGES:
        if isinstance(error, kind):
            return message
    return f"The query failed ({type(error).__name__})."
