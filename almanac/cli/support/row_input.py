"""Rows that a command reads: lines of JSON, or one JSON array, in parts of bounded size."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from almanac.core.errors import BadRequest

MAX_PART_ROWS = 50_000
MAX_PART_BYTES = 16 * 1024 * 1024  # of the text of a part
MAX_LINE_BYTES = 16 * 1024 * 1024

Row = dict[str, Any]


@contextmanager
def open_input(file: Path | None, standard_input: BinaryIO) -> Generator[BinaryIO]:
    """Open a file, or take standard input if it is None or `-`."""
    if file is None or str(file) == "-":
        yield standard_input
        return
    try:
        with file.open("rb") as opened:
            yield opened
    except OSError as error:
        raise BadRequest(f"The file {str(file)!r} cannot be read: {error.strerror}.") from None


def read_parts(source: BinaryIO) -> Iterator[list[Row]]:
    """Read rows in parts. Lines are read as they come; an array is read whole."""
    first = _first_line(source)
    if first.lstrip()[:1] == b"[":
        rows = _parse_array(first + source.read())
        yield from (rows[start : start + MAX_PART_ROWS] for start in range(0, len(rows), MAX_PART_ROWS))
    else:
        yield from _line_parts(_lines(first, source))


def _first_line(source: BinaryIO) -> bytes:
    """The first line that is not blank, without a byte order mark."""
    line = source.readline(MAX_LINE_BYTES + 1).removeprefix(b"\xef\xbb\xbf")
    while line and not line.strip():
        line = source.readline(MAX_LINE_BYTES + 1)
    return line


def _lines(first: bytes, source: BinaryIO) -> Iterator[bytes]:
    line = first
    while line:
        yield line
        line = source.readline(MAX_LINE_BYTES + 1)


def _line_parts(lines: Iterable[bytes]) -> Iterator[list[Row]]:
    part: list[Row] = []
    size = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            part.append(_parse_line(line, number))
            size += len(line)
        if len(part) >= MAX_PART_ROWS or size >= MAX_PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _parse_line(line: bytes, number: int) -> Row:
    if len(line) > MAX_LINE_BYTES:
        raise BadRequest(f"Line {number} has more than {MAX_LINE_BYTES // 1024**2} MiB.")
    return _object(_parse(line, f"Line {number}"), f"Line {number}")


def _parse_array(text: bytes) -> list[Row]:
    values = cast("list[Any]", _parse(text, "The array"))
    return [_object(value, f"Row {number}") for number, value in enumerate(values, 1)]


def _parse(text: bytes, name: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRequest(
            f"{name} is not JSON: {error.msg}.", remedy="Give one JSON object on each line, or one array of objects."
        ) from None


def _object(value: Any, name: str) -> Row:
    if not isinstance(value, dict):
        raise BadRequest(f"{name} is not a JSON object.", remedy='A row is an object, such as {"city": "Graz"}.')
    return cast("Row", value)
