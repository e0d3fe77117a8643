"""CSV: finding the delimiter and the header, and reading all values as text.

The engine's own detection of types is not used. It looks at a sample, and reads 03/04/2024 without saying in which
order. Its detection of the delimiter sees whole values in quotation marks, which matters more than the number of rows.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from almanac.data.imports.bad_rows import MAX_SHOWN_BAD_ROWS, BadRow, BadRows
from almanac.data.imports.field_names import stable_names
from almanac.data.parquet_source import text
from almanac.sandbox.errors import WorkRejected

WHOLE_SAMPLE_BYTES = 16 * 1024 * 1024  # a larger file is not read as a whole to find its delimiter
SAMPLE_ROWS = 100_000
MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_REJECTS = 100_000

_SEPARATOR_LINE = re.compile(rb"(?:\xef\xbb\xbf)?sep=(.)\r?\n")  # written by Excel
_REASONS = {
    "MISSING COLUMNS": "too few values", "TOO MANY COLUMNS": "too many values",
    "UNQUOTED VALUE": "a quotation mark is not closed or stands inside a value", "INVALID ENCODING": "not valid UTF-8",
    "LINE SIZE OVER MAXIMUM": "the line is too long", "INVALID STATE": "a quotation mark is not closed",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the values of a CSV file are written."""

    delimiter: str
    quote: str
    escape: str
    skipped_lines: int
    has_header: bool
    width: int

    def to_value(self) -> dict[str, Any]:
        """The dialect in the form of the answer."""
        return {"delimiter": self.delimiter, "header": self.has_header, "skipped_lines": self.skipped_lines}


def detect_dialect(connection: Any, path: Path, given: Mapping[str, Any]) -> Dialect:
    """Find out how the file is written. `given` are the delimiter and the header that the caller knows."""
    size = path.stat().st_size
    options = [f"sample_size = {-1 if size <= WHOLE_SAMPLE_BYTES else SAMPLE_ROWS}", "all_varchar = true"]
    options.append(f"max_line_size = {MAX_LINE_BYTES}")
    with path.open("rb") as file:
        separator_line = _SEPARATOR_LINE.match(file.read(10))
    delimiter = given.get("delimiter") or (separator_line[1].decode("latin-1") if separator_line else None)
    if delimiter is not None:
        options.append(f"delim = {text(delimiter)}")
    if separator_line:
        options.append("skip = 1")
    if given.get("header") is not None:
        options.append(f"header = {'true' if given['header'] else 'false'}")
    return _best(connection, path, options)


def _best(connection: Any, path: Path, options: Sequence[str]) -> Dialect:
    """The stricter detection finds lines before the table; the other one tolerates rows of other widths."""
    strict = _sniff(connection, path, options)
    if strict is not None and strict.width > 1 and not (strict.skipped_lines and not strict.has_header):
        return strict
    tolerant = _sniff(connection, path, [*options, "ignore_errors = true"])
    if tolerant is not None and (strict is None or tolerant.width > 1):
        return tolerant
    if strict is None:
        raise WorkRejected("no_table", "no delimiter fits")
    return strict


def _sniff(connection: Any, path: Path, options: Sequence[str]) -> Dialect | None:
    found = "SELECT Delimiter, Quote, Escape, SkipRows, HasHeader, len(Columns)"
    sql = f"{found} FROM sniff_csv({text(str(path))}, {', '.join(options)})"
    try:
        [(delimiter, quote, escape, skipped, has_header, width)] = connection.sql(sql).fetchall()
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error:
        return None
    # Of a sample without quotation marks nothing is known, so the usual ones apply.
    quote = '"' if quote == "(empty)" else quote
    return Dialect(delimiter, quote, quote if escape == "(empty)" else escape, skipped, has_header, width)


def read_names(connection: Any, path: Path, dialect: Dialect) -> list[str]:
    """Return the names of the columns."""
    if not dialect.has_header:
        return [f"column_{number}" for number in range(1, dialect.width + 1)]
    source = _source(path, dialect, has_header=False)
    rows = connection.sql(f"SELECT * FROM {source} LIMIT 1").fetchall()  # noqa: S608
    return stable_names(rows[0] if rows else [None] * dialect.width)


def source_of(path: Path, dialect: Dialect) -> str:
    """Return the rows as SQL. All values are text, in the columns `c0`, `c1` and so on."""
    return _source(path, dialect, has_header=dialect.has_header)


def _source(path: Path, dialect: Dialect, *, has_header: bool) -> str:
    columns = ", ".join(f"'c{index}': 'VARCHAR'" for index in range(dialect.width))
    return (
        f"read_csv({text(str(path))}, auto_detect = false, delim = {text(dialect.delimiter)},"
        f" quote = {text(dialect.quote)}, escape = {text(dialect.escape)}, skip = {int(dialect.skipped_lines)},"
        f" header = {'true' if has_header else 'false'}, columns = {{{columns}}}, store_rejects = true,"
        f" rejects_limit = {MAX_REJECTS}, allow_quoted_nulls = false, max_line_size = {MAX_LINE_BYTES},"
        " parallel = false)"
    )


def bad_rows(connection: Any) -> BadRows:
    """Return the lines that the last statement left out."""
    last = "FROM reject_errors WHERE scan_id = (SELECT max(scan_id) FROM reject_errors)"
    [(count,)] = connection.sql(f"SELECT count(DISTINCT line) {last}").fetchall()
    rows = connection.sql(
        f"SELECT line, any_value(CAST(error_type AS VARCHAR)), any_value(left(csv_line, 200)) {last}"
        f" GROUP BY line ORDER BY line LIMIT {MAX_SHOWN_BAD_ROWS}"
    ).fetchall()
    shown = [BadRow(line, _REASONS.get(kind, "not readable"), content or "") for line, kind, content in rows]
    return BadRows(count, shown)
