"""JSON: a list of objects, lines with an object each, an object with a list of rows, or an object of columns."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from almanac.data.imports.bad_rows import BadRows
from almanac.data.imports.row_lines import Rows
from almanac.data.parquet_source import text
from almanac.sandbox.errors import WorkRejected

MAX_ROW_BYTES = 16 * 1024 * 1024
MAX_WHOLE_BYTES = 32 * 1024 * 1024  # a larger list is read element by element
ROWS_PER_FETCH = 1_000
NO_JSON_NUMBER = "a number that JSON does not have"

_Object = dict[str, Any]


def open_rows(connection: Any, path: Path, bad: BadRows) -> tuple[Rows, str]:
    """Return the rows of a file, and a description of its structure."""
    with path.open("rb") as file:
        start = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"[") and path.stat().st_size > MAX_WHOLE_BYTES:
        return lambda: _array(connection, path, bad), "list"
    if not start.startswith(b"[") and _has_lines(path):
        return lambda: _lines(path, bad), "lines"
    content = _load(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    rows, structure = _rows_of(content)
    return lambda: _objects(rows, bad), structure


def _array(connection: Any, path: Path, bad: BadRows) -> Iterator[_Object]:
    """The elements of a list. The engine separates them, so that the file is never whole in memory."""
    options = f"format = 'array', maximum_object_size = {MAX_ROW_BYTES}"
    result = connection.execute(f"SELECT json FROM read_json_objects({text(str(path))}, {options})")  # noqa: S608
    number = 0
    while fetched := result.fetchmany(ROWS_PER_FETCH):
        for (content,) in fetched:
            number += 1
            if (row := _object(number, content, bad)) is not None:
                yield row


def _lines(path: Path, bad: BadRows) -> Iterator[_Object]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_ROW_BYTES + 1):
            number += 1
            if len(line) > MAX_ROW_BYTES:
                raise WorkRejected("row_size", str(number))
            content = line.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else line.strip()
            if content and (row := _object(number, content.decode(), bad)) is not None:
                yield row


def _objects(rows: list[Any], bad: BadRows) -> Iterator[_Object]:
    for number, row in enumerate(rows, 1):
        if isinstance(row, dict):
            yield cast(_Object, row)
        else:
            bad.add(number, "not an object", json.dumps(row, default=str))


def _object(number: int, content: str, bad: BadRows) -> _Object | None:
    try:
        row = json.loads(content, parse_constant=_no_number)
    except RecursionError:
        bad.add(number, "nested too deeply", content)
        return None
    except json.JSONDecodeError as error:
        bad.add(number, f"not valid JSON: {error.msg} at character {error.pos}", content)
        return None
    except ValueError:
        bad.add(number, NO_JSON_NUMBER, content)
        return None
    if not isinstance(row, dict):
        bad.add(number, "not an object", content)
        return None
    return cast(_Object, row)


def _has_lines(path: Path) -> bool:
    """Whether the first line is a complete object, and another line follows."""
    with path.open("rb") as file:
        first = file.readline(MAX_ROW_BYTES).removeprefix(b"\xef\xbb\xbf").strip()
        has_more = bool(file.read(4096).strip())
    if not has_more:
        # One object on one line: a row, unless it has the rows in it.
        return False
    return re.fullmatch(rb"\{.*\}", first, re.DOTALL) is not None


def _load(content: bytes) -> Any:
    try:
        return json.loads(content.decode(), parse_constant=_no_number)
    except RecursionError:
        raise WorkRejected("recursion_limit", "nested too deeply") from None
    except json.JSONDecodeError as error:
        raise WorkRejected("malformed", f"{error.msg} in line {error.lineno}, column {error.colno}") from None
    except ValueError:
        raise WorkRejected("malformed", NO_JSON_NUMBER) from None


def _rows_of(content: Any) -> tuple[list[Any], str]:
    """The rows in an object: a list of objects under one of its keys, columns of equal length, or the object itself."""
    if isinstance(content, list):
        return cast("list[Any]", content), "list"
    if not isinstance(content, dict):
        raise WorkRejected("no_table", "no object or list of objects")
    value = cast(_Object, content)
    lists = {name: cast("list[Any]", each) for name, each in value.items() if isinstance(each, list)}
    tables = {name: each for name, each in lists.items() if each and all(isinstance(row, dict) for row in each)}
    if tables:
        name = max(tables, key=lambda each: len(tables[each]))
        return tables[name], f"list under {name!r}"
    if lists and len(lists) == len(value) and len({len(each) for each in lists.values()}) == 1:
        return _from_columns(lists), "columns"
    return _inner(value) or ([value], "one object")


def _from_columns(columns: Mapping[str, list[Any]]) -> list[Any]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _inner(value: _Object) -> tuple[list[Any], str] | None:
    """The rows one level deeper, as in {"result": {"rows": […]}}."""
    for name, each in value.items():
        if isinstance(each, dict):
            inner = cast(_Object, each)
            for key, found in inner.items():
                rows = cast("list[Any]", found) if isinstance(found, list) else []
                if rows and all(isinstance(row, dict) for row in rows):
                    return rows, f"list under {name + '.' + key!r}"
    return None


def _no_number(name: str) -> Any:
    raise ValueError(name)
