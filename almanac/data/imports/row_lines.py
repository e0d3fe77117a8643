"""Rows of a file as lines of JSON in the form that `write_work` reads, with the types of their fields.

The rows are read twice: the type of a field is known only at the end.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO

import orjson

from almanac.data import value_types
from almanac.data.fields import TEXT, DataType, Field
from almanac.data.new_rows import MAX_FIELDS
from almanac.sandbox.errors import WorkRejected

ROWS_AT_A_TIME = 1_000

Rows = Callable[[], Iterator[Mapping[str, Any]]]  # starts again at each call


def infer(rows: Rows, max_rows: int) -> tuple[int, dict[str, DataType | None]]:
    """Return the number of rows and the narrowest types of their fields; None for a field without values."""
    types: dict[str, DataType | None] = {}
    count, iterator = 0, rows()
    while batch := list(islice(iterator, ROWS_AT_A_TIME)):
        count += len(batch)
        if count > max_rows:
            raise WorkRejected("rows", str(max_rows))
        for name, data_type in value_types.infer_fields(batch).items():
            types[name] = value_types.widest((types.get(name), data_type))
        if len(types) > MAX_FIELDS:
            raise WorkRejected("columns", str(len(types)))
    return count, types


def write(rows: Rows, fields: Sequence[Field], output: BinaryIO) -> None:
    """Write a line for each row, with the values of the fields."""
    named = [(f"c{index}", field.name, field.type) for index, field in enumerate(fields)]
    for row in rows():
        line = {key: value_types.to_stored(row.get(name), data_type) for key, name, data_type in named}
        output.write(_to_line(line))


def fields_of(types: Mapping[str, DataType | None]) -> list[Field]:
    """Return the fields; one without values holds text."""
    return [Field(name, data_type or TEXT) for name, data_type in types.items()]


def _to_line(line: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a half of a pair of surrogates
        return orjson.dumps(_repaired(line), option=orjson.OPT_APPEND_NEWLINE)


def _repaired(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case list():
            return [_repaired(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
        case dict():
            return {_repaired(key): _repaired(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
