"""Spreadsheets: each sheet is a page, and each island of filled cells on it a table.

The library keeps a sheet as a full rectangle, so two cells in opposite corners would cost 550 GB. How large the
rectangle will be is found out first, from the cells that are there and not from what the sheet claims.
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
from almanac.knowledge.parsers.text_builder import TextBuilder, count_titles

MOST_CELLS = 16_000_000  # of a sheet, empty ones counted; 32 bytes each
MOST_SHEETS = 1_000
LAST_ROW, LAST_COLUMN = 1_048_576, b"XFD"  # of any sheet
SCATTERED = "The cells of a sheet are scattered over too many rows and columns; save its tables as smaller files."

Value = int | float | str | bool | time | date | datetime | timedelta
Merge = tuple[tuple[int, int], tuple[int, int]]

# No attribute holds a `<`; not to read on over one keeps the time of a search in step with the text.
_CELL = re.compile(rb"<(?:\w+:)?c\s[^<>]*?\br=[\"']([A-Za-z]+)(\d+)[\"'][^<>]*(?<!/)>(?!</)")
_ROW = re.compile(rb"<(?:\w+:)?row\s[^<>]*?\br=[\"'](\d+)")
_TALL_ROW = re.compile(
    rb"<table:table-row\b[^<>]*number-rows-repeated=[\"'](\d{1,9})[^<>]*(?<!/)>(.*?)(?:</table:table-row|\Z)", re.S
)
_WIDE_CELL = re.compile(rb"<table:table-cell\b[^<>]*number-columns-repeated=[\"'](\d{1,9})[^<>]*(?<!/)>")
_FILLED = re.compile(rb"<table:table-cell\b[^<>]*(?<!/)>")
_UNNAMED = re.compile(r"(?:sheet|tabelle|feuil|hoja|planilha|foglio|лист|工作表)\s*\d*", re.IGNORECASE)
MAX_ROW_BYTES = 4_000_000  # bytes of a row
_PASSWORD = 0x2F  # the record of a workbook that says how the ones after it are encrypted
_BEFORE_PASSWORD = {0x09, 0x0209, 0x0409, 0x0809, 0x86}  # the beginning, in four versions, and a write protection


def parse(path: Path, name: str) -> ParsedFile:
    title, metadata, warnings = _surroundings(path)
    draft = TextBuilder()
    try:
        _write_all(path, draft)
    except PasswordError:
        raise UnreadableFile("encrypted", archives.ENCRYPTED) from None
    except CalamineError:
        if is_locked(path):
            raise UnreadableFile("encrypted", archives.ENCRYPTED) from None
        raise UnreadableFile("corrupt", archives.BROKEN) from None
    except BaseException as error:
        if type(error).__module__ == "pyo3_runtime":  # a panic in the library, which is no Exception
            raise UnreadableFile("corrupt", archives.BROKEN) from None
        raise
    if not any(block.kind != "heading" for block in draft.blocks):
        raise UnreadableFile("empty", "No cell of the file has anything in it.")
    return replace(draft.parsed(title, metadata, warnings), title=title)  # the name of a sheet is no title


def _write_all(path: Path, draft: TextBuilder) -> None:
    with CalamineWorkbook.from_path(path) as workbook:  # pyright: ignore[reportUnknownMemberType] - its stubs
        sheets = [each.name for each in workbook.sheets_metadata if each.typ == SheetTypeEnum.WorkSheet]
        for each in sheets[:MOST_SHEETS]:
            draft.page(each)
            if len(sheets) > 1 or not _UNNAMED.fullmatch(each):
                draft.heading(each, 1)
            _write(workbook.get_sheet_by_name(each), draft)


def is_locked(path: Path) -> bool:
    """Whether a workbook of the old kind has a password. The library sees that only where the path ends in `.xls`."""
    head = archives.stream_head(path, "Workbook") or archives.stream_head(path, "Book")
    place = 0
    while len(head) >= place + 4:
        kind, size = struct.unpack_from("<HH", head, place)
        if kind not in _BEFORE_PASSWORD:
            return kind == _PASSWORD and place > 0
        place += 4 + size
    return False


def _surroundings(path: Path) -> tuple[str, dict[str, str], list[str]]:
    """What the package around the sheets says, once it is known to be no bomb."""
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            return "", {}, []
    with archives.open_archive(path) as archive:
        opendocument.refuse_protected(archive)
        for part in archive.names():
            if part.startswith("xl/worksheets/") and part.endswith(".xml"):
                _check(_box(archive.stream(part)))
            elif part == "content.xml":
                _check(_repeats(archive.stream(part)))
        properties = opendocument.properties if archive.has("meta.xml") else ooxml.properties
        return *properties(archive), ooxml.warnings(archive)


def _check(cells: int) -> None:
    if cells > MOST_CELLS:
        raise UnreadableFile("too_large", SCATTERED)


def _box(pieces: Iterable[bytes]) -> int:
    """How many cells the rectangle around the filled ones has."""
    columns, rows, is_beyond = set[bytes](), set[bytes](), False
    for text in _joined(pieces, b"<"):
        found = _CELL.findall(text)
        columns.update(map(itemgetter(0), found))
        rows.update(map(itemgetter(1), found))
        is_beyond |= _are_beyond(_ROW.findall(text))
    if is_beyond or _are_beyond(rows) or max(map(len, columns), default=0) > len(LAST_COLUMN):
        raise UnreadableFile("corrupt", archives.BROKEN)
    if not columns:
        return 0
    wide, high = [_column(letters.upper()) for letters in columns], [int(row) for row in rows]
    if max(wide) > _column(LAST_COLUMN):
        raise UnreadableFile("corrupt", archives.BROKEN)
    return (max(wide) - min(wide) + 1) * (max(high) - min(high) + 1)


def _are_beyond(rows: Collection[bytes]) -> bool:
    """Whether some are rows that no sheet has, up to which the library would count."""
    return max(map(len, rows), default=0) > 20 or max(map(int, rows), default=0) > LAST_ROW


def _column(letters: bytes) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + letter - 64
    return number


def _repeats(pieces: Iterable[bytes]) -> int:
    """How many cells of an OpenDocument sheet are written once and stand for many."""
    total = 0
    for text in _joined(pieces, b"<table:table-row"):
        total += sum(map(int, _WIDE_CELL.findall(text)))
        for times, row in _TALL_ROW.findall(text):
            filled = len(_FILLED.findall(row)) + sum(map(int, _WIDE_CELL.findall(row)))
            total += int(times) * filled
    return total


def _joined(pieces: Iterable[bytes], mark: bytes) -> Iterator[bytes]:
    """Pieces cut before a mark, so that what begins with it is whole. What never ends is not waited for."""
    rest = b""
    for piece in pieces:
        text = rest + piece
        cut = text.rfind(mark)
        cut = cut if cut > 0 and len(text) - cut < MAX_ROW_BYTES else len(text)
        rest = text[cut:]
        yield text[:cut]
    yield rest


def _write(sheet: CalamineSheet, draft: TextBuilder) -> None:
    top, left = sheet.start or (0, 0)
    merges = [((a[0] - top, a[1] - left), (b[0] - top, b[1] - left)) for a, b in sheet.merged_cell_ranges or []]
    first = 0
    rows: list[list[str]] = []
    for number, row in enumerate(sheet.iter_rows()):
        shown = [value.strip() if isinstance(value, str) else show(value) for value in row]
        if any(shown):
            first = first if rows else number
            rows.append(shown)
        elif rows:
            _write_island(rows, first, merges, draft)
            rows = []
    _write_island(rows, first, merges, draft)


def _write_island(rows: list[list[str]], top: int, merges: list[Merge], draft: TextBuilder) -> None:
    """Rows without a blank one between them, which may hold tables side by side."""
    if not rows:
        return
    bottom = top + len(rows) - 1
    near = [((a - top, b), (c - top, d)) for (a, b), (c, d) in merges if a >= top and c <= bottom]
    for left, right in _stretches(rows):
        inside = [((a, b - left), (c, d - left)) for (a, b), (c, d) in near if left <= b and d < right]
        _write_table([row[left:right] for row in rows], inside, draft)


def _stretches(rows: list[list[str]]) -> Iterator[tuple[int, int]]:
    """Columns that have something in them, as runs from and up to."""
    filled = [any(column) for column in zip(*rows, strict=True)]
    start = None
    for column, is_filled in enumerate([*filled, False]):
        if is_filled and start is None:
            start = column
        elif not is_filled and start is not None:
            yield start, column
            start = None


def _write_table(rows: list[list[str]], merges: list[Merge], draft: TextBuilder) -> None:
    skipped = 0 if _spans_down(merges, 0) else count_titles(rows)
    draft.text("\n".join("".join(row) for row in rows[:skipped]))
    rows = rows[skipped:]
    here = [((a - skipped, b), (c - skipped, d)) for (a, b), (c, d) in merges if a >= skipped]
    for (a, b), (c, _) in here:
        for row in rows[a + 1 : c + 1]:
            row[b] = rows[a][b]
    draft.table(_with_one_header(rows, here))


def _spans_down(merges: list[Merge], row: int) -> bool:
    return any(a == row and c > a for (a, _), (c, _) in merges)


def _with_one_header(rows: list[list[str]], merges: list[Merge]) -> list[list[str]]:
    """A header of several rows as one: `2026` above `Q1` and `Q2` becomes `2026 Q1` and `2026 Q2`."""
    wide = [(b, d) for (a, b), (c, d) in merges if a == c == 0 and d > b]
    depth = 1 + max([c for (a, _), (c, _) in merges if a == 0], default=1 if wide else 0)
    if not wide or depth >= len(rows) or depth > 4:
        return rows
    for (a, b), (c, d) in merges:
        if a == c < depth:
            rows[a][b : d + 1] = [rows[a][b]] * (d + 1 - b)
    columns: list[tuple[str, ...]] = list(zip(*rows[:depth], strict=True))
    header = [" ".join(dict.fromkeys(cell for cell in column if cell)) for column in columns]
    return [header, *rows[depth:]]


def show(value: Value) -> str:
    """A value as people write it."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.15g}"
    if isinstance(value, datetime):
        return _moment(value)
    if isinstance(value, time):
        return value.isoformat("seconds" if value.second else "minutes")
    return str(value)


def _moment(value: datetime) -> str:
    if value.time() == time():
        return value.date().isoformat()
    return value.replace(microsecond=0).isoformat(" ", "seconds" if value.second else "minutes")
