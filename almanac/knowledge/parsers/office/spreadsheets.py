"""Spreadsheets: each sheet is a page, and each group of adjacent filled cells a table.

The library keeps a sheet as a complete rectangle, so two cells in opposite corners would take 550 GB. So the size of
the rectangle is first computed from the cells themselves; the size that the sheet claims is ignored.
"""

import re
import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from operator import itemgetter
from pathlib import Path

from python_calamine import CalamineError, CalamineSheet, CalamineWorkbook, PasswordError, SheetTypeEnum

from almanac.knowledge.parsers import archives
from almanac.knowledge.parsers.office import ooxml, opendocument
from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from almanac.knowledge.parsers.text_builder import TextBuilder, count_title_rows

MAX_CELLS = 16_000_000  # of a sheet, with the empty ones; each takes 32 bytes
MAX_SHEETS = 1_000
MAX_HEADER_ROWS = 4
MAX_ROW_BYTES = 4_000_000
LAST_ROW, LAST_COLUMN = 1_048_576, b"XFD"  # of any sheet
SCATTERED = "The cells of a sheet are spread over too many rows and columns. Save its tables as smaller files."

Value = int | float | str | bool | time | date | datetime | timedelta
Merge = tuple[tuple[int, int], tuple[int, int]]  # row and column of the first and the last cell

# Attributes contain no `<`. A pattern that stops at `<` takes time in proportion to the length of the text.
_CELL = re.compile(rb"<(?:\w+:)?c\s[^<>]*?\br=[\"']([A-Za-z]+)(\d+)[\"'][^<>]*(?<!/)>(?!</)")
_ROW = re.compile(rb"<(?:\w+:)?row\s[^<>]*?\br=[\"'](\d+)")
_TALL_ROW = re.compile(
    rb"<table:table-row\b[^<>]*number-rows-repeated=[\"'](\d{1,9})[^<>]*(?<!/)>(.*?)(?:</table:table-row|\Z)", re.S
)
_WIDE_CELL = re.compile(rb"<table:table-cell\b[^<>]*number-columns-repeated=[\"'](\d{1,9})[^<>]*(?<!/)>")
_FILLED = re.compile(rb"<table:table-cell\b[^<>]*(?<!/)>")
_DEFAULT_SHEET_NAME = re.compile(r"(?:sheet|tabelle|feuil|hoja|planilha|foglio|лист|工作表)\s*\d*", re.IGNORECASE)
_ENCRYPTION_RECORD = 0x2F
_RECORDS_BEFORE_ENCRYPTION = {0x09, 0x0209, 0x0409, 0x0809, 0x86}  # the first record in four versions; write protection


def parse(path: Path, name: str) -> ParsedFile:
    title, metadata, warnings = _check_package(path)
    builder = TextBuilder()
    try:
        _write_sheets(path, builder)
    except PasswordError:
        raise UnreadableFile("encrypted", archives.ENCRYPTED) from None
    except CalamineError:
        if has_password(path):
            raise UnreadableFile("encrypted", archives.ENCRYPTED) from None
        raise UnreadableFile("corrupt", archives.BROKEN) from None
    except BaseException as error:
        if type(error).__module__ == "pyo3_runtime":  # a panic in the library, which is not an Exception
            raise UnreadableFile("corrupt", archives.BROKEN) from None
        raise
    if not any(block.kind != "heading" for block in builder.blocks):
        raise UnreadableFile("empty", "All cells of the file are empty.")
    return replace(builder.finish(title, metadata, warnings), title=title)  # the name of a sheet is not a title


def _write_sheets(path: Path, builder: TextBuilder) -> None:
    with CalamineWorkbook.from_path(path) as workbook:  # pyright: ignore[reportUnknownMemberType] - its stubs
        names = [sheet.name for sheet in workbook.sheets_metadata if sheet.typ == SheetTypeEnum.WorkSheet]
        for name in names[:MAX_SHEETS]:
            builder.start_page(name)
            if len(names) > 1 or not _DEFAULT_SHEET_NAME.fullmatch(name):
                builder.add_heading(name, 1)
            _write_sheet(workbook.get_sheet_by_name(name), builder)


def has_password(path: Path) -> bool:
    """Whether a workbook in the old format has a password. The library detects that only if the path ends in `.xls`."""
    head = archives.read_stream_head(path, "Workbook") or archives.read_stream_head(path, "Book")
    offset = 0
    while len(head) >= offset + 4:
        record, size = struct.unpack_from("<HH", head, offset)
        if record not in _RECORDS_BEFORE_ENCRYPTION:
            return record == _ENCRYPTION_RECORD and offset > 0
        offset += 4 + size
    return False


def _check_package(path: Path) -> tuple[str, dict[str, str], list[str]]:
    """Refuse a package whose sheets are too large; return its title, metadata and warnings."""
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            return "", {}, []
    with archives.open_archive(path) as archive:
        opendocument.refuse_protected(archive)
        for part in archive.names():
            if part.startswith("xl/worksheets/") and part.endswith(".xml"):
                _check_size(_count_cells(archive.stream(part)))
            elif part == "content.xml":
                _check_size(_count_repeated_cells(archive.stream(part)))
        properties = opendocument.properties if archive.has("meta.xml") else ooxml.properties
        return *properties(archive), ooxml.warnings(archive)


def _check_size(cells: int) -> None:
    if cells > MAX_CELLS:
        raise UnreadableFile("too_large", SCATTERED)


def _count_cells(chunks: Iterable[bytes]) -> int:
    """The number of cells in the rectangle around the filled cells."""
    columns, rows, is_beyond = set[bytes](), set[bytes](), False
    for text in _split_before(chunks, b"<"):
        cells = _CELL.findall(text)
        columns.update(map(itemgetter(0), cells))
        rows.update(map(itemgetter(1), cells))
        is_beyond |= _are_beyond_last(_ROW.findall(text))
    if is_beyond or _are_beyond_last(rows) or max(map(len, columns), default=0) > len(LAST_COLUMN):
        raise UnreadableFile("corrupt", archives.BROKEN)
    if not columns:
        return 0
    column_numbers, row_numbers = [_column_number(letters.upper()) for letters in columns], [int(row) for row in rows]
    if max(column_numbers) > _column_number(LAST_COLUMN):
        raise UnreadableFile("corrupt", archives.BROKEN)
    return (max(column_numbers) - min(column_numbers) + 1) * (max(row_numbers) - min(row_numbers) + 1)


def _are_beyond_last(rows: Collection[bytes]) -> bool:
    """Whether a row number is higher than any sheet's. The library would count up to it."""
    return max(map(len, rows), default=0) > 20 or max(map(int, rows), default=0) > LAST_ROW


def _column_number(letters: bytes) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + letter - 64
    return number


def _count_repeated_cells(chunks: Iterable[bytes]) -> int:
    """The number of cells of an OpenDocument sheet that are stored once and stand for several."""
    total = 0
    for text in _split_before(chunks, b"<table:table-row"):
        total += sum(map(int, _WIDE_CELL.findall(text)))
        for repeats, row in _TALL_ROW.findall(text):
            filled = len(_FILLED.findall(row)) + sum(map(int, _WIDE_CELL.findall(row)))
            total += int(repeats) * filled
    return total


def _split_before(chunks: Iterable[bytes], mark: bytes) -> Iterator[bytes]:
    """The same bytes, cut before a mark, so that each element is whole. Elements without an end are cut anyway."""
    rest = b""
    for chunk in chunks:
        text = rest + chunk
        cut = text.rfind(mark)
        cut = cut if cut > 0 and len(text) - cut < MAX_ROW_BYTES else len(text)
        rest = text[cut:]
        yield text[:cut]
    yield rest


def _write_sheet(sheet: CalamineSheet, builder: TextBuilder) -> None:
    top, left = sheet.start or (0, 0)
    merges = [((a[0] - top, a[1] - left), (b[0] - top, b[1] - left)) for a, b in sheet.merged_cell_ranges or []]
    first = 0
    rows: list[list[str]] = []
    for number, row in enumerate(sheet.iter_rows()):
        texts = [value.strip() if isinstance(value, str) else format_value(value) for value in row]
        if any(texts):
            first = first if rows else number
            rows.append(texts)
        elif rows:
            _write_rows(rows, first, merges, builder)
            rows = []
    _write_rows(rows, first, merges, builder)


def _write_rows(rows: list[list[str]], top: int, merges: list[Merge], builder: TextBuilder) -> None:
    """Write adjacent rows, which may contain tables side by side."""
    if not rows:
        return
    bottom = top + len(rows) - 1
    near = [((a - top, b), (c - top, d)) for (a, b), (c, d) in merges if a >= top and c <= bottom]
    for left, right in _filled_columns(rows):
        inside = [((a, b - left), (c, d - left)) for (a, b), (c, d) in near if left <= b and d < right]
        _write_table([row[left:right] for row in rows], inside, builder)


def _filled_columns(rows: list[list[str]]) -> Iterator[tuple[int, int]]:
    """The ranges of adjacent columns that are not empty, without their ends."""
    filled = [any(column) for column in zip(*rows, strict=True)]
    start = None
    for column, is_filled in enumerate([*filled, False]):
        if is_filled and start is None:
            start = column
        elif not is_filled and start is not None:
            yield start, column
            start = None


def _write_table(rows: list[list[str]], merges: list[Merge], builder: TextBuilder) -> None:
    spans_down = any(a == 0 and c > 0 for (a, _), (c, _) in merges)  # a cell of the first row
    titles = 0 if spans_down else count_title_rows(rows)
    builder.add_text("\n".join("".join(row) for row in rows[:titles]))
    rows = rows[titles:]
    below = [((a - titles, b), (c - titles, d)) for (a, b), (c, d) in merges if a >= titles]
    for (a, b), (c, _) in below:
        for row in rows[a + 1 : c + 1]:
            row[b] = rows[a][b]
    builder.add_table(_with_one_header(rows, below))


def _with_one_header(rows: list[list[str]], merges: list[Merge]) -> list[list[str]]:
    """Combine a header of several rows: `2026` above `Q1` and `Q2` becomes `2026 Q1` and `2026 Q2`."""
    wide = [(b, d) for (a, b), (c, d) in merges if a == c == 0 and d > b]
    depth = 1 + max([c for (a, _), (c, _) in merges if a == 0], default=1 if wide else 0)
    if not wide or depth >= len(rows) or depth > MAX_HEADER_ROWS:
        return rows
    for (a, b), (c, d) in merges:
        if a == c < depth:
            rows[a][b : d + 1] = [rows[a][b]] * (d + 1 - b)
    columns: list[tuple[str, ...]] = list(zip(*rows[:depth], strict=True))
    header = [" ".join(dict.fromkeys(cell for cell in column if cell)) for column in columns]
    return [header, *rows[depth:]]


def format_value(value: Value) -> str:
    """The text of a value as people write it."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.15g}"
    if isinstance(value, datetime):
        return _format_datetime(value)
    if isinstance(value, time):
        return value.isoformat("seconds" if value.second else "minutes")
    return str(value)


def _format_datetime(value: datetime) -> str:
    if value.time() == time():
        return value.date().isoformat()
    return value.replace(microsecond=0).isoformat(" ", "seconds" if value.second else "minutes")
