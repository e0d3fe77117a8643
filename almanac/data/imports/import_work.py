"""One step of an import in a confined child process. The file is untrusted, and so are the libraries that read it.

transcode   a text in another encoding → the same text in UTF-8
rows        JSON, XML or Excel → lines of JSON with the types of their fields
load        CSV, Parquet or such lines → a Parquet file

Each step reads its file as a stream and writes its output as one. The output ends with a report in JSON and, in eight
bytes, the length of the report.
"""

import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import arro3.io
import duckdb
import orjson

from almanac.data import new_rows
from almanac.data.fields import Field, field_from_value, field_to_value
from almanac.data.imports import csv_file, json_file, row_lines, text_columns
from almanac.data.imports.bad_rows import BadRows
from almanac.data.parquet_source import column_of, engine_type, quoted, text
from almanac.data.queries.json_columns import field_type, json_expression
from almanac.data.write_work import COMPRESSION
from almanac.data.write_work import engine as open_engine
from almanac.data.write_work import preload as preload_engine
from almanac.sandbox.child import open_output
from almanac.sandbox.errors import WorkRejected

CHUNK_BYTES = 1024 * 1024
PREVIEW_ROWS = 20
MAX_PREVIEW_BYTES = 1_000_000
REPORT_LENGTH_BYTES = 8
ROWS_PER_GROUP = 122_880  # of the Parquet file; the writer holds one group in memory

Report = dict[str, Any]
Options = Mapping[str, Any]


def preload() -> None:
    """Load the engine, which all children use."""
    preload_engine()


def run(files: list[Path], name: str, options: dict[str, Any]) -> None:
    """Run one step."""
    step = {"transcode": _transcode, "rows": _write_rows, "load": _load}[options["step"]]
    with open_output() as output:
        try:
            report = step(files[0], options, output)
        except duckdb.OutOfMemoryException:
            raise MemoryError from None
        except duckdb.Error as error:
            # The engine's message quotes values, so only the kind of the failure leaves the process.
            raise WorkRejected("unreadable", type(error).__name__) from None
        packed = orjson.dumps(report)
        output.write(packed + len(packed).to_bytes(REPORT_LENGTH_BYTES, "big"))


# Steps


def _transcode(path: Path, options: Options, output: BinaryIO) -> Report:
    decoder = codecs.getincrementaldecoder(options["encoding"])("replace")
    is_first = True
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            decoded = decoder.decode(chunk)
            output.write((decoded.removeprefix("\ufeff") if is_first else decoded).encode("utf-8", "replace"))
            is_first = False
    output.write(decoder.decode(b"", True).encode("utf-8", "replace"))
    return {}


def _write_rows(path: Path, options: Options, output: BinaryIO) -> Report:
    _check_utf_8(path)
    connection, bad = open_engine([path], options), BadRows()
    rows, structure = json_file.open_rows(connection, path, bad)
    count, types = row_lines.infer(rows, options["max_rows"])
    first_bad = bad.to_value()
    fields = row_lines.fields_of(types)
    row_lines.write(rows, fields, output)
    return {
        "fields": [field_to_value(each) for each in fields],
        "with_values": [types[each.name] is not None for each in fields],
        "row_count": count,
        "bad": first_bad,
        "assumed": {"structure": structure},
    }


def _load(path: Path, options: Options, output: BinaryIO) -> Report:
    connection = open_engine([path], options)
    loaded = _SOURCES[options["source"]](connection, path, options)
    _check_size(loaded, options)
    if loaded["row_count"]:
        arro3.io.write_parquet(
            connection.sql(loaded.pop("sql")), output, compression=COMPRESSION, max_row_group_size=ROWS_PER_GROUP
        )
    loaded.pop("sql", None)
    if options["source"] == "csv":
        loaded["bad"] = csv_file.bad_rows(connection).to_value()
    return loaded


# Sources. The report of each contains the SQL of the rows, their number, the fields and the assumptions.


def _csv(connection: Any, path: Path, options: Options) -> Report:
    _check_utf_8(path)
    dialect = csv_file.detect_dialect(connection, path, options["csv"])
    if dialect.width > new_rows.MAX_FIELDS:
        raise WorkRejected("columns", str(dialect.width))
    names, source = csv_file.read_names(connection, path, dialect), csv_file.source_of(path, dialect)
    keys = [f"c{index}" for index in range(dialect.width)]
    count, typed = text_columns.find_types(connection, source, keys, prefers_comma=dialect.delimiter == ";")
    fields = _with_columns([Field(name, each.type) for name, each in zip(names, typed, strict=True)], options)
    selected = (f"{each.sql} AS {quoted(column_of(field))}" for each, field in zip(typed, fields, strict=True))
    sql = f"SELECT {', '.join(selected)} FROM {source}"  # noqa: S608 - names are quoted
    notes = {
        field.name: each.notation.description
        for field, each in zip(fields, typed, strict=True)
        if each.notation and each.notation.description
    }
    assumed = {**dialect.to_value(), **({"fields": notes} if notes else {})}
    return _report(connection, sql, fields, [each.has_values for each in typed], count, assumed)


def _lines(connection: Any, path: Path, options: Options) -> Report:
    """The lines of the step `rows`."""
    given = options["lines"]
    fields = _with_columns([field_from_value(each) for each in given["fields"]], options)
    columns = ", ".join(f"'c{n}': {text(engine_type(each.type))}" for n, each in enumerate(fields))
    selected = ", ".join(f"c{n} AS {quoted(column_of(each))}" for n, each in enumerate(fields))
    sql = (
        f"SELECT {selected} FROM read_json({text(str(path))}, columns = {{{columns}}},"  # noqa: S608
        f" format = 'newline_delimited', maximum_object_size = {2 * json_file.MAX_ROW_BYTES})"
    )
    return _report(connection, sql, fields, given["with_values"], given["row_count"], given["assumed"])


def _parquet(connection: Any, path: Path, options: Options) -> Report:
    source = f"read_parquet({text(str(path))}, hive_partitioning = false)"
    relation = connection.sql(f"SELECT * FROM {source}")  # noqa: S608
    if len(relation.columns) > new_rows.MAX_FIELDS:
        raise WorkRejected("columns", str(len(relation.columns)))
    types = [field_type(each) for each in relation.types]
    fields = _with_columns([Field(*each) for each in zip(relation.columns, types, strict=True)], options)
    stored = zip(relation.columns, relation.types, fields, strict=True)
    selected = ", ".join(
        f"{_as_stored(quoted(name), kind, each)} AS {quoted(column_of(each))}" for name, kind, each in stored
    )
    counts = ", ".join(f"count({quoted(name)})" for name in relation.columns)
    [(count, *present)] = connection.sql(f"SELECT count(*), {counts} FROM {source}").fetchall()  # noqa: S608
    sql = f"SELECT {selected} FROM {source}"  # noqa: S608
    return _report(connection, sql, fields, [each > 0 for each in present], count, {})


_SOURCES = {"csv": _csv, "lines": _lines, "parquet": _parquet}


def _as_stored(value: str, kind: Any, field: Field) -> str:
    """A value of a Parquet file as a value of the type of its field."""
    if kind.id == "map":
        return f"CAST(map_entries({value}) AS {engine_type(field.type)})"
    if kind.id == "timestamp with time zone":
        return f"timezone('UTC', {value})"
    if kind.id == "blob":
        return f"base64({value})"
    if kind.id in ("hugeint", "uhugeint", "ubigint"):
        return f"CAST({value} AS BIGINT)"
    return f"CAST({value} AS {engine_type(field.type)})"


def _report(
    connection: Any, sql: str, fields: Sequence[Field], with_values: Sequence[bool], count: int, assumed: Report
) -> Report:
    return {
        "sql": sql,
        "fields": [field_to_value(each) for each in fields],
        "with_values": list(with_values),
        "row_count": count,
        "assumed": assumed,
        "preview": _preview(connection, sql) if count else [],
    }


def _preview(connection: Any, sql: str) -> list[Any]:
    """The first rows, each as a list of JSON values."""
    relation = connection.sql(sql)
    columns = [f"c{index}" for index in range(len(relation.columns))]
    values = ", ".join(json_expression(column, kind) for column, kind in zip(columns, relation.types, strict=True))
    statement = f"SELECT json_array({values})::VARCHAR FROM ({sql}) AS r({', '.join(columns)}) LIMIT {PREVIEW_ROWS}"  # noqa: S608
    rows, size = list[Any](), 0
    for (row,) in connection.sql(statement).fetchall():
        size += len(row)
        if size > MAX_PREVIEW_BYTES:
            break
        rows.append(orjson.loads(row))
    return rows


def _with_columns(fields: Sequence[Field], options: Options) -> tuple[Field, ...]:
    try:
        new_rows.check_names({each.name: None for each in fields})
    except new_rows.BadRequest as error:
        raise WorkRejected("names", error.message) from None
    return new_rows.with_columns(fields, [field_from_value(each) for each in options["known"]])


def _check_size(loaded: Report, options: Options) -> None:
    if loaded["row_count"] > options["max_rows"]:
        raise WorkRejected("rows", str(loaded["row_count"]))


def _check_utf_8(path: Path) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                decoder.decode(chunk)
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        raise WorkRejected("encoding", "not UTF-8") from None
