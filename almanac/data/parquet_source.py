"""The SQL that reads the files of a dataset as one table.

A file keeps the types that it was written with, and a version may have wider ones. Each group of files with equal
fields is read at once, and its columns are converted explicitly: the engine's own unification turns truth values into
numbers. Only names and numbers of this module and quoted names of fields become SQL.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from almanac.data.fields import TEXT, DataType, Field, Kind

_ENGINE_TYPES = {
    Kind.INTEGER: "BIGINT",
    Kind.DECIMAL: "DOUBLE",
    Kind.BOOLEAN: "BOOLEAN",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP",
}


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """A file of a dataset, with the fields that it contains."""

    path: Path
    fields: tuple[Field, ...]


def source_sql(files: Sequence[ParquetFile], fields: Sequence[Field]) -> str:
    """Return a SELECT of the rows of all files, in their order, with the columns of `fields`."""
    if not files:
        nothing = ", ".join(f"NULL::{engine_type(each.type)} AS {quoted(column_of(each))}" for each in fields)
        return f"SELECT {nothing or 'NULL AS nothing'} WHERE false"
    return " UNION ALL ".join(
        _select([file.path for file in group], of_files, fields)
        for of_files, group in groupby(files, key=lambda file: file.fields)
    )


def engine_type(data_type: DataType) -> str:
    """Return the engine's type, as SQL. Values of unknown structure are JSON text."""
    if data_type.element is not None:
        return f"{engine_type(data_type.element)}[]"
    if data_type.fields:
        parts = (f"{quoted(each.name)} {engine_type(each.type)}" for each in data_type.fields)
        return f"STRUCT({', '.join(parts)})"
    return _ENGINE_TYPES.get(data_type.kind, "VARCHAR")


def column_of(field: Field) -> str:
    """Return the name of the stored column of a field."""
    return field.column or field.name


def quoted(name: str) -> str:
    """Return a name as SQL."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """Return a text as SQL."""
    return "'" + value.replace("'", "''") + "'"


def _select(paths: Sequence[Path], of_files: Sequence[Field], fields: Sequence[Field]) -> str:
    stored = {column_of(each): each.type for each in of_files}
    columns = ", ".join(_column(each, stored.get(column_of(each))) for each in fields)
    listed = ", ".join(text(str(path)) for path in paths)
    return f"SELECT {columns} FROM read_parquet([{listed}], hive_partitioning = false)"  # noqa: S608


def _column(field: Field, stored: DataType | None) -> str:
    name = quoted(column_of(field))
    if stored is None:
        return f"NULL::{engine_type(field.type)} AS {name}"
    return f"{_converted(name, stored, field.type)} AS {name}"


def _converted(value: str, stored: DataType, wanted: DataType) -> str:
    if stored == wanted:
        return value
    is_json_text = _is_json_text(wanted) or wanted == TEXT
    if is_json_text and stored.kind in (Kind.LIST, Kind.RECORD):
        return value if _is_json_text(stored) else f"to_json({value})::VARCHAR"
    return f"CAST({value} AS {engine_type(wanted)})"


def _is_json_text(data_type: DataType) -> bool:
    return data_type.kind in (Kind.LIST, Kind.RECORD) and data_type.element is None and not data_type.fields
