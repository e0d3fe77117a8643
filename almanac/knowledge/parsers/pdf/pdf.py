"""PDF files by PDFium: their text page by page, with the box of every line.

Pages that are pictures go through text recognition where it is installed.
"""

import ctypes
import mmap
import os
import re
from array import array
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, BinaryIO

import pypdfium2.raw  # pyright: ignore[reportMissingTypeStubs]

from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from almanac.knowledge.parsers.pdf import ocr, page_layout, printed_lines
from almanac.knowledge.parsers.pdf.page_layout import PrintedLine, PrintedPage
from almanac.knowledge.parsers.pdf.printed_lines import Sheet

MOST_PAGES = 20_000
LARGEST_MAPPED = 128 * 1024 * 1024  # bytes
MOST_TEXT = 50_000_000  # characters
LONGEST_VALUE = 500  # characters of a title or another value of the document's information
RENDERED_DPI = 200
MOST_PIXELS = 12_000_000  # of a page rendered for text recognition: a larger sheet gets fewer dots to the inch
FEW_CHARACTERS = 25  # fewer on top of a picture are a stamp or a page number: the picture is the page
MANY_DRAWINGS = 20  # on a page without text: letters turned into outlines

CORRUPT = "The PDF is damaged and cannot be read. Open it in a PDF program, save it anew and add that file."
ENCRYPTED = "The PDF needs a password. Save a copy that needs none and add that."
TOO_MANY_PAGES = f"The PDF has more than {MOST_PAGES:,} pages. Split it and add the parts."
TOO_MUCH_TEXT = f"The PDF holds more than {MOST_TEXT:,} characters. Split it and add the parts."
EMPTY = "No text was found in the PDF."

DATE = re.compile(r"D?:?(\d{4})(\d\d)?(\d\d)?(\d\d)?(\d\d)?(\d\d)?(?:(Z)|([+-]\d\d)'?(\d\d)?)?")
VALUES = {"author": "Author", "subject": "Subject", "keywords": "Keywords", "application": "Creator"}
DATES = {"created": "CreationDate", "modified": "ModDate"}
FROM_OFFICE = re.compile(r"^Microsoft \w+ - ")  # what Office puts before the name of a file it takes for a title

pdfium: Any = pypdfium2.raw  # made from C headers, without types


def parse(path: Path, name: str) -> ParsedFile:
    """A PDF: its text, lines and headings."""
    with _open(path) as document:
        count = pdfium.FPDF_GetPageCount(document)
        if count > MOST_PAGES:
            raise UnreadableFile("too_large", TOO_MANY_PAGES)
        read = _read_pages(document, count)
        title, metadata = _read_information(document)
    whole = page_layout.arrange(read.pages)
    return ParsedFile(whole.text, whole.blocks, whole.pages, whole.lines, title, metadata, _warn(read))


@contextmanager
def _open(path: Path) -> Generator[Any]:
    """PDFium's handle of a document."""
    with path.open("rb") as file:
        mapped = _map(file)
        if mapped is None:
            document = pdfium.FPDF_LoadDocument(str(path).encode(), None)
        else:
            document = pdfium.FPDF_LoadMemDocument64(mapped, len(mapped), None)
        if not document:
            locked = pdfium.FPDF_GetLastError() in (pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY)
            raise UnreadableFile("encrypted", ENCRYPTED) if locked else UnreadableFile("corrupt", CORRUPT)
        try:
            yield document
        finally:
            pdfium.FPDF_CloseDocument(document)


def _map(file: BinaryIO) -> ctypes.Array[ctypes.c_char] | None:
    """A file as memory, which is read faster; PDFium reads a larger one by itself, in pieces."""
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        raise UnreadableFile("empty", "The file is empty.")
    if size > LARGEST_MAPPED:
        return None
    # Writable, since ctypes takes no other memory; private, so that no write would reach the file.
    mapped = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return (ctypes.c_char * size).from_buffer(mapped)


# Pages


@dataclass(frozen=True, slots=True)
class _Read:
    """The pages of a document, and the numbers of those whose text was not read."""

    pages: list[PrintedPage]
    pictures: list[int]
    broken: list[int]


def _read_pages(document: Any, count: int) -> _Read:
    read = _Read([], [], [])
    length = 0
    for number in range(1, count + 1):
        page = _read_page(document, number, read)
        length += sum(len(line.text) for line in page.lines)
        if length > MOST_TEXT:
            raise UnreadableFile("too_large", TOO_MUCH_TEXT)
        read.pages.append(page)
    _check(read)
    return read


def _check(read: _Read) -> None:
    """Refuse a document without a page of text."""
    pictures = set(read.pictures)
    if any(page.lines and page.number not in pictures for page in read.pages):
        return
    if pictures and not ocr.is_installed():
        raise UnreadableFile("ocr_missing", f"The pages are pictures without text. {ocr.REMEDY}")
    if not any(page.lines for page in read.pages):
        damaged = read.broken or not read.pages
        raise UnreadableFile("corrupt", CORRUPT) if damaged else UnreadableFile("empty", EMPTY)


def _warn(read: _Read) -> tuple[str, ...]:
    warnings: list[str] = []
    if read.broken:
        warnings.append(f"Damaged and not read: {_name_pages(read.broken)}.")
    if read.pictures and ocr.is_installed():
        warnings.append(f"Pictures in which no text was found: {_name_pages(read.pictures)}.")
    elif read.pictures:
        warnings.append(f"Pictures whose text was not read: {_name_pages(read.pictures)}. {ocr.REMEDY}")
    return tuple(warnings)


def _name_pages(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - 20} more" if len(numbers) > 20 else ""
    return f"page{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:20]))}{more}"


def _read_page(document: Any, number: int, read: _Read) -> PrintedPage:
    page = pdfium.FPDF_LoadPage(document, number - 1)
    if not page:
        read.broken.append(number)
        return PrintedPage(number, 0, 0)
    try:
        sheet = _measure(page)
        lines, sure = _read_lines(page, sheet)
        if not sure and _is_picture(page, sheet, blank=not lines):
            seen = _recognise(page, sheet)
            lines = seen or lines
            if not seen:
                read.pictures.append(number)
        return PrintedPage(number, sheet.width, sheet.height, lines)
    finally:
        pdfium.FPDF_ClosePage(page)


def _measure(page: Any) -> Sheet:
    """The page's sheet: cropped, and turned as the file asks."""
    box: Any = pdfium.FS_RECTF()
    pdfium.FPDF_GetPageBoundingBox(page, box)
    turns: tuple[tuple[float, ...], ...] = (
        (1, 0, 0, -1, -box.left, box.top),
        (0, 1, 1, 0, -box.bottom, -box.left),
        (-1, 0, 0, 1, box.right, -box.bottom),
        (0, -1, -1, 0, box.top, box.right),
    )
    turn = turns[int(pdfium.FPDFPage_GetRotation(page)) % 4]
    return Sheet(pdfium.FPDF_GetPageWidthF(page), pdfium.FPDF_GetPageHeightF(page), *turn)


def _read_lines(page: Any, sheet: Sheet) -> tuple[list[PrintedLine], bool]:
    """The lines of a page, and whether they are enough, and clear enough, to be surely what the page says."""
    handle = pdfium.FPDFText_LoadPage(page)
    if not handle:
        return [], False
    try:
        count = pdfium.FPDFText_CountChars(handle)
        if count > MOST_TEXT:
            raise UnreadableFile("too_large", TOO_MUCH_TEXT)
        if count <= 0:
            return [], False
        text = _get_text(handle, count)
        lines = printed_lines.read(handle, text, count, sheet)
    finally:
        pdfium.FPDFText_ClosePage(handle)
    clear = sum(len(line.text) for line in lines)
    return lines, clear >= FEW_CHARACTERS and 2 * clear >= len(text)


def _get_text(handle: Any, count: int) -> str:
    # Not an array of ctypes, which makes a type for each length.
    buffer = array("H", bytes(2 * (count + 1)))
    place = ctypes.cast(buffer.buffer_info()[0], ctypes.POINTER(ctypes.c_ushort))
    units = pdfium.FPDFText_GetText(handle, 0, count, place)
    return str(memoryview(buffer)[: max(units - 1, 0)], "utf-16-le", "replace")


# Pictures


def _is_picture(page: Any, sheet: Sheet, *, blank: bool) -> bool:
    """Whether a page with hardly any text shows a picture that may hold it."""
    drawings = 0
    for index in range(pdfium.FPDFPage_CountObjects(page)):
        drawn = pdfium.FPDFPage_GetObject(page, index)
        kind = pdfium.FPDFPageObj_GetType(drawn)
        if kind in (pdfium.FPDF_PAGEOBJ_IMAGE, pdfium.FPDF_PAGEOBJ_FORM) and (blank or _fills(drawn, sheet)):
            return True
        drawings += kind != pdfium.FPDF_PAGEOBJ_TEXT
    return blank and drawings >= MANY_DRAWINGS


def _fills(drawn: Any, sheet: Sheet) -> bool:
    """Whether a drawing covers half of the page."""
    left, bottom, right, top = (ctypes.c_float() for _ in range(4))
    pdfium.FPDFPageObj_GetBounds(drawn, left, bottom, right, top)
    x0, y0, x1, y1 = sheet.place((left.value, bottom.value, right.value, top.value))
    return 2 * (x1 - x0) * (y1 - y0) >= sheet.width * sheet.height


def _recognise(page: Any, sheet: Sheet) -> list[PrintedLine]:
    """What text recognition finds on a page; nothing where it is not installed."""
    area = sheet.width * sheet.height
    if not ocr.is_installed() or area <= 0:
        return []
    scale = min(RENDERED_DPI / 72, sqrt(MOST_PIXELS / area))
    width, height = max(1, int(sheet.width * scale)), max(1, int(sheet.height * scale))
    return [line.resize(1 / scale) for line in ocr.recognise(_render(page, width, height), width, height)]


def _render(page: Any, width: int, height: int) -> bytearray:
    """A page's pixels: blue, green and red of one after another, row by row."""
    pixels = bytearray(width * height * 3)
    buffer = (ctypes.c_ubyte * len(pixels)).from_buffer(pixels)
    bitmap = pdfium.FPDFBitmap_CreateEx(width, height, pdfium.FPDFBitmap_BGR, buffer, width * 3)
    try:
        pdfium.FPDFBitmap_FillRect(bitmap, 0, 0, width, height, 0xFFFFFFFF)
        pdfium.FPDF_RenderPageBitmap(bitmap, page, 0, 0, width, height, 0, pdfium.FPDF_ANNOT)
    finally:
        pdfium.FPDFBitmap_Destroy(bitmap)
    return pixels


# What the file says about itself


def _read_information(document: Any) -> tuple[str, dict[str, str]]:
    """The title, and the rest of the document's information that says something."""
    metadata = {key: _get_value(document, name) for key, name in VALUES.items()}
    metadata |= {key: _write_date(_get_value(document, name)) for key, name in DATES.items()}
    metadata["language"] = _get_language(document)
    title = FROM_OFFICE.sub("", _get_value(document, "Title"))
    return title, {key: value for key, value in metadata.items() if value}


def _get_value(document: Any, name: str) -> str:
    buffer = (ctypes.c_ushort * 4096)()
    size = pdfium.FPDF_GetMetaText(document, name.encode(), buffer, ctypes.sizeof(buffer))
    return _clean(bytes(buffer), size)


def _get_language(document: Any) -> str:
    buffer = (ctypes.c_ushort * 64)()
    size = pdfium.FPDFCatalog_GetLanguage(document, buffer, ctypes.sizeof(buffer))
    return _clean(bytes(buffer), size)


def _clean(data: bytes, size: int) -> str:
    """A value of so many bytes with its end mark, on one line and bounded; nothing where it does not fit."""
    text = data[: size - 2].decode("utf-16-le", "replace") if 2 <= size <= len(data) else ""
    return " ".join(text.translate(printed_lines.CLEAN).split())[:LONGEST_VALUE]


def _write_date(value: str) -> str:
    """A date such as `D:20240131120000+01'00'` as `2024-01-31T12:00:00+01:00`; nothing where it is none."""
    found = DATE.match(value)
    if not found:
        return ""
    year, month, day, hour, minute, second, universal, zone, minutes = found.groups()
    date = f"{year}-{month or '01'}-{day or '01'}"
    if not hour:
        return date
    offset = "+00:00" if universal else f"{zone}:{minutes or '00'}" if zone else ""
    return f"{date}T{hour}:{minute or '00'}:{second or '00'}{offset}"
