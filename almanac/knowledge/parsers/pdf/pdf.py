"""PDF files by PDFium: the text of each page, with the box of every line.

Pages that are images go through text recognition if it is installed.
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

from almanac.core.text import one_line
from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from almanac.knowledge.parsers.pdf import ocr, page_layout, printed_lines
from almanac.knowledge.parsers.pdf.page_layout import PrintedLine, PrintedPage
from almanac.knowledge.parsers.pdf.printed_lines import PageGeometry

MAX_PAGES = 20_000
MAX_MAPPED_BYTES = 128 * 1024 * 1024
MAX_TEXT_CHARS = 50_000_000
MAX_VALUE_CHARS = 500  # of a title or another value of the document information
RENDERED_DPI = 200
MAX_RENDERED_PIXELS = 12_000_000  # of a page for text recognition; a larger page has a lower resolution
MIN_TEXT_CHARS = 25  # fewer characters on an image are a stamp or a page number, and the image is the page
MIN_DRAWINGS = 20  # on a page without text: so many may be letters that were converted to outlines
MAX_LISTED_PAGES = 20  # in a warning

CORRUPT = "The PDF is damaged. Open it in a PDF program, save it again and add that copy."
ENCRYPTED = "The PDF needs a password. Save a copy without one and add that."
TOO_MANY_PAGES = f"The PDF has more than {MAX_PAGES:,} pages. Split it and add the parts."
TOO_MUCH_TEXT = f"The PDF has more than {MAX_TEXT_CHARS:,} characters. Split it and add the parts."
EMPTY = "The PDF contains no text."

DATE = re.compile(r"D?:?(\d{4})(\d\d)?(\d\d)?(\d\d)?(\d\d)?(\d\d)?(?:(Z)|([+-]\d\d)'?(\d\d)?)?")
VALUES = {"author": "Author", "subject": "Subject", "keywords": "Keywords", "application": "Creator"}
DATES = {"created": "CreationDate", "modified": "ModDate"}
OFFICE_PREFIX = re.compile(r"^Microsoft \w+ - ")  # Office puts this before a file name that it uses as the title

pdfium: Any = pypdfium2.raw  # generated from C headers, without types


def parse(path: Path, name: str) -> ParsedFile:
    with _open(path) as document:
        count = pdfium.FPDF_GetPageCount(document)
        if count > MAX_PAGES:
            raise UnreadableFile("too_large", TOO_MANY_PAGES)
        pages = _read_pages(document, count)
        title, metadata = _read_information(document)
    text = page_layout.arrange(pages.pages)
    return ParsedFile(text.text, text.blocks, text.pages, text.lines, title, metadata, _warnings(pages))


@contextmanager
def _open(path: Path) -> Generator[Any]:
    """Open a document; yields PDFium's handle of it."""
    with path.open("rb") as file:
        mapped = _map(file)
        if mapped is None:
            document = pdfium.FPDF_LoadDocument(str(path).encode(), None)
        else:
            document = pdfium.FPDF_LoadMemDocument64(mapped, len(mapped), None)
        if not document:
            is_encrypted = pdfium.FPDF_GetLastError() in (pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY)
            raise UnreadableFile("encrypted", ENCRYPTED) if is_encrypted else UnreadableFile("corrupt", CORRUPT)
        try:
            yield document
        finally:
            pdfium.FPDF_CloseDocument(document)


def _map(file: BinaryIO) -> ctypes.Array[ctypes.c_char] | None:
    """Map a file into memory, which is faster; of a larger file, PDFium itself reads parts."""
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        raise UnreadableFile("empty", "The file is empty.")
    if size > MAX_MAPPED_BYTES:
        return None
    # Writable, because ctypes accepts no other memory; private, so that no write could reach the file.
    mapped = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return (ctypes.c_char * size).from_buffer(mapped)


# Pages


@dataclass(frozen=True, slots=True)
class _Pages:
    """The pages of a document, and the numbers of pages without text."""

    pages: list[PrintedPage]
    images: list[int]
    damaged: list[int]


def _read_pages(document: Any, count: int) -> _Pages:
    pages = _Pages([], [], [])
    length = 0
    for number in range(1, count + 1):
        page = _read_page(document, number, pages)
        length += sum(len(line.text) for line in page.lines)
        if length > MAX_TEXT_CHARS:
            raise UnreadableFile("too_large", TOO_MUCH_TEXT)
        pages.pages.append(page)
    _require_text(pages)
    return pages


def _require_text(pages: _Pages) -> None:
    """Refuse a document without a page of text."""
    images = set(pages.images)
    if any(page.lines and page.number not in images for page in pages.pages):
        return
    if images and not ocr.is_installed():
        raise UnreadableFile("ocr_missing", f"The pages are images without text. {ocr.REMEDY}")
    if not any(page.lines for page in pages.pages):
        is_damaged = pages.damaged or not pages.pages
        raise UnreadableFile("corrupt", CORRUPT) if is_damaged else UnreadableFile("empty", EMPTY)


def _warnings(pages: _Pages) -> tuple[str, ...]:
    warnings: list[str] = []
    if pages.damaged:
        warnings.append(f"Damaged pages were left out: {_list_pages(pages.damaged)}.")
    if pages.images and ocr.is_installed():
        warnings.append(f"No text was recognised in images: {_list_pages(pages.images)}.")
    elif pages.images:
        warnings.append(f"The text of images was left out: {_list_pages(pages.images)}. {ocr.REMEDY}")
    return tuple(warnings)


def _list_pages(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - MAX_LISTED_PAGES} more" if len(numbers) > MAX_LISTED_PAGES else ""
    return f"page{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:MAX_LISTED_PAGES]))}{more}"


def _read_page(document: Any, number: int, pages: _Pages) -> PrintedPage:
    page = pdfium.FPDF_LoadPage(document, number - 1)
    if not page:
        pages.damaged.append(number)
        return PrintedPage(number, 0, 0)
    try:
        geometry = _measure(page)
        lines, is_sufficient = _read_lines(page, geometry)
        if not is_sufficient and _is_image(page, geometry, blank=not lines):
            recognised = _recognise(page, geometry)
            lines = recognised or lines
            if not recognised:
                pages.images.append(number)
        return PrintedPage(number, geometry.width, geometry.height, lines)
    finally:
        pdfium.FPDF_ClosePage(page)


def _measure(page: Any) -> PageGeometry:
    """The geometry of the page, cropped and rotated as the file demands."""
    box: Any = pdfium.FS_RECTF()
    pdfium.FPDF_GetPageBoundingBox(page, box)
    rotations: tuple[tuple[float, ...], ...] = (
        (1, 0, 0, -1, -box.left, box.top),
        (0, 1, 1, 0, -box.bottom, -box.left),
        (-1, 0, 0, 1, box.right, -box.bottom),
        (0, -1, -1, 0, box.top, box.right),
    )
    rotation = rotations[int(pdfium.FPDFPage_GetRotation(page)) % 4]
    return PageGeometry(pdfium.FPDF_GetPageWidthF(page), pdfium.FPDF_GetPageHeightF(page), *rotation)


def _read_lines(page: Any, geometry: PageGeometry) -> tuple[list[PrintedLine], bool]:
    """The lines of a page, and whether they are long and clean enough to be its whole text."""
    handle = pdfium.FPDFText_LoadPage(page)
    if not handle:
        return [], False
    try:
        count = pdfium.FPDFText_CountChars(handle)
        if count > MAX_TEXT_CHARS:
            raise UnreadableFile("too_large", TOO_MUCH_TEXT)
        if count <= 0:
            return [], False
        text = _get_text(handle, count)
        lines = printed_lines.read_lines(handle, text, count, geometry)
    finally:
        pdfium.FPDFText_ClosePage(handle)
    length = sum(len(line.text) for line in lines)
    return lines, length >= MIN_TEXT_CHARS and 2 * length >= len(text)


def _get_text(handle: Any, count: int) -> str:
    # Not an array of ctypes, which creates a type for each length.
    buffer = array("H", bytes(2 * (count + 1)))
    pointer = ctypes.cast(buffer.buffer_info()[0], ctypes.POINTER(ctypes.c_ushort))
    units = pdfium.FPDFText_GetText(handle, 0, count, pointer)
    return str(memoryview(buffer)[: max(units - 1, 0)], "utf-16-le", "replace")


# Images


def _is_image(page: Any, geometry: PageGeometry, *, blank: bool) -> bool:
    """Whether a page with hardly any text shows an image that may contain text."""
    drawings = 0
    for index in range(pdfium.FPDFPage_CountObjects(page)):
        drawing = pdfium.FPDFPage_GetObject(page, index)
        object_type = pdfium.FPDFPageObj_GetType(drawing)
        is_image = object_type in (pdfium.FPDF_PAGEOBJ_IMAGE, pdfium.FPDF_PAGEOBJ_FORM)
        if is_image and (blank or _covers_half(drawing, geometry)):
            return True
        drawings += object_type != pdfium.FPDF_PAGEOBJ_TEXT
    return blank and drawings >= MIN_DRAWINGS


def _covers_half(drawing: Any, geometry: PageGeometry) -> bool:
    """Whether a drawing covers at least half of the page."""
    left, bottom, right, top = (ctypes.c_float() for _ in range(4))
    pdfium.FPDFPageObj_GetBounds(drawing, left, bottom, right, top)
    x0, y0, x1, y1 = geometry.to_page((left.value, bottom.value, right.value, top.value))
    return 2 * (x1 - x0) * (y1 - y0) >= geometry.width * geometry.height


def _recognise(page: Any, geometry: PageGeometry) -> list[PrintedLine]:
    """The lines that text recognition finds on a page; none if it is not installed."""
    area = geometry.width * geometry.height
    if not ocr.is_installed() or area <= 0:
        return []
    scale = min(RENDERED_DPI / 72, sqrt(MAX_RENDERED_PIXELS / area))
    width, height = max(1, int(geometry.width * scale)), max(1, int(geometry.height * scale))
    return [line.scaled(1 / scale) for line in ocr.recognise(_render(page, width, height), width, height)]


def _render(page: Any, width: int, height: int) -> bytearray:
    """The pixels of a page, row by row, each as blue, green and red."""
    pixels = bytearray(width * height * 3)
    buffer = (ctypes.c_ubyte * len(pixels)).from_buffer(pixels)
    bitmap = pdfium.FPDFBitmap_CreateEx(width, height, pdfium.FPDFBitmap_BGR, buffer, width * 3)
    try:
        pdfium.FPDFBitmap_FillRect(bitmap, 0, 0, width, height, 0xFFFFFFFF)
        pdfium.FPDF_RenderPageBitmap(bitmap, page, 0, 0, width, height, 0, pdfium.FPDF_ANNOT)
    finally:
        pdfium.FPDFBitmap_Destroy(bitmap)
    return pixels


# Document information


def _read_information(document: Any) -> tuple[str, dict[str, str]]:
    """The title, and the other values of the document information that are not empty."""
    metadata = {key: _get_value(document, name) for key, name in VALUES.items()}
    metadata |= {key: _format_date(_get_value(document, name)) for key, name in DATES.items()}
    metadata["language"] = _get_language(document)
    title = OFFICE_PREFIX.sub("", _get_value(document, "Title"))
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
    """A value of `size` bytes with its terminator, on one line and shortened; empty if it did not fit."""
    text = data[: size - 2].decode("utf-16-le", "replace") if 2 <= size <= len(data) else ""
    return one_line(text.translate(printed_lines.CLEAN))[:MAX_VALUE_CHARS]


def _format_date(value: str) -> str:
    """A date such as `D:20240131120000+01'00'` as `2024-01-31T12:00:00+01:00`; empty if it is invalid."""
    match = DATE.match(value)
    if not match:
        return ""
    year, month, day, hour, minute, second, utc, zone, minutes = match.groups()
    date = f"{year}-{month or '01'}-{day or '01'}"
    if not hour:
        return date
    offset = "+00:00" if utc else f"{zone}:{minutes or '00'}" if zone else ""
    return f"{date}T{hour}:{minute or '00'}:{second or '00'}{offset}"
