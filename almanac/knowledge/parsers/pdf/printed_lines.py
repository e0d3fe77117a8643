"""The lines on a page of a PDF, by PDFium: their text, boxes, font size and weight.

PDFium returns the text of a page in one call. It counts characters in UTF-16 units, including the line ends and spaces
that it adds itself. So the lines are cut from that text, and a few calls get the position of each line. A call for
every character would cost more than all other work on the page.
"""

import ctypes
import re
from array import array
from math import hypot, isfinite, nan
from typing import Any, NamedTuple

import pypdfium2.raw  # pyright: ignore[reportMissingTypeStubs]

from almanac.knowledge.parsers.pdf.page_layout import PrintedLine, may_be_heading
from almanac.knowledge.parsers.pdf.right_to_left import RIGHT_TO_LEFT, Glyph, reading_order

MAX_RECTS = 8  # read for one line: some programs place every word or every letter by itself

BROKEN_WORD = "\ufffe"  # PDFium's mark for a hyphen at the end of a line; the next line follows directly
LINE = re.compile(f"[^\r\n{BROKEN_WORD}]+")
LAST_WORD = re.compile(r"\S+$")
REST_OF_WORD = re.compile(rf"{BROKEN_WORD}(\w+)")
BOLD = re.compile(rb"bold|black|heavy|demi|cmbx|sfbx|-medi", re.IGNORECASE)
FORCE_BOLD = 1 << 18  # a flag of a font
MAX_FONT_NAME_BYTES = 128

# Control characters, noncharacters and soft hyphens are removed. Two private characters are bullets of the Symbol font.
CLEAN: dict[int, str] = {
    **dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), 0xAD, 0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF], ""),
    **dict.fromkeys([*range(0x09, 0x0E), 0x85, 0xA0, 0x2028, 0x2029], " "),
    0xF0B7: "•",
    0xF0A7: "▪",
}

pdfium: Any = pypdfium2.raw  # generated from C headers, without types


def _declare(function: Any, result: Any) -> Any:
    """A function of PDFium without checks of its arguments: numbers become C ints, pointers come from `_pointer`.

    Checking and converting arguments in Python costs more than most of the calls.
    """
    return ctypes.PYFUNCTYPE(result)(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _pointer(address: int) -> Any:
    return ctypes.c_void_p.from_param(address)


_INT = ctypes.c_int
_count_rects = _declare(pdfium.FPDFText_CountRects, _INT)  # text page, first character, number of characters
_get_rect = _declare(pdfium.FPDFText_GetRect, _INT)  # text page, index, left, top, right, bottom
_get_char_box = _declare(pdfium.FPDFText_GetCharBox, _INT)  # text page, character, left, right, bottom, top
_get_loose_box = _declare(pdfium.FPDFText_GetLooseCharBox, _INT)  # text page, character, four floats
_get_matrix = _declare(pdfium.FPDFText_GetMatrix, _INT)  # text page, character, six floats
_get_size = _declare(pdfium.FPDFText_GetFontSize, ctypes.c_double)  # text page, character
_get_font = _declare(pdfium.FPDFText_GetFontInfo, ctypes.c_ulong)  # text page, character, name, size of name, flags
_get_unicode = _declare(pdfium.FPDFText_GetUnicode, ctypes.c_uint)  # text page, character
_is_generated = _declare(pdfium.FPDFText_IsGenerated, _INT)  # text page, character
_find_char = _declare(pdfium.FPDFText_GetCharIndexFromTextIndex, _INT)  # text page, offset in the text

Box = tuple[float, float, float, float]  # left, bottom, right, top; counted upwards, as in the file


class PageGeometry(NamedTuple):
    """A page as it is displayed: its size, and the matrix from points of the file to points of the displayed page."""

    width: float
    height: float
    a: float
    b: float
    c: float
    d: float
    e: float
    f: float

    def to_page(self, box: Box) -> Box:
        """A box as it is displayed: left, top, right, bottom, counted from the upper left corner of the page."""
        left, bottom, right, top = box
        width, height, a, b, c, d, e, f = self  # unpacked at once, because this runs for every line
        x0, y0 = a * left + c * bottom + e, b * left + d * bottom + f
        x1, y1 = a * right + c * top + e, b * right + d * top + f
        if x0 > x1:
            x0, x1 = x1, x0
        if y0 > y1:
            y0, y1 = y1, y0
        if x0 >= 0 and y0 >= 0 and x1 <= width and y1 <= height:
            return x0, y0, x1, y1
        return _clamp(x0, width), _clamp(y0, height), _clamp(x1, width), _clamp(y1, height)


def _clamp(value: float, limit: float) -> float:
    return min(max(value, 0.0), limit) if isfinite(value) else 0.0


def read_lines(handle: Any, text: str, char_count: int, geometry: PageGeometry) -> list[PrintedLine]:
    """The lines of a page, from PDFium's text page, its text, and its number of characters."""
    reader = _LineReader(handle, text, char_count, geometry)
    lines: list[PrintedLine] = []
    surrogates = 0  # characters before this line that count twice
    for match in LINE.finditer(text):
        words, start, rest = match.group(), match.start() + surrogates, ""
        length = len(words)
        if reader.has_surrogates:
            extra = sum(char > "\uffff" for char in words)
            surrogates, length = surrogates + extra, length + extra
        if reader.has_hidden_chars:
            start, length = reader.find_chars(start, length)
        if reader.has_broken_words and (next_word := REST_OF_WORD.match(text, match.end())):
            rest = next_word.group(1)
        if line := reader.read_line(words, start, length, rest):
            lines.append(line)
    return lines


class _Buffers:
    """Memory for PDFium's results, with pointers to it."""

    def __init__(self) -> None:
        self.sides = array("d", bytes(32))  # left, bottom, right, top
        first = self.sides.buffer_info()[0]
        self.sides_pointers = [_pointer(first + 8 * side) for side in (0, 3, 2, 1)]  # in the order of the arguments
        self.matrix = array("f", bytes(24))
        self.matrix_pointer = _pointer(self.matrix.buffer_info()[0])
        self.font = ctypes.create_string_buffer(MAX_FONT_NAME_BYTES)
        self.flags = ctypes.c_int()
        size = ctypes.c_ulong.from_param(MAX_FONT_NAME_BYTES)
        self.font_arguments = _pointer(ctypes.addressof(self.font)), size, _pointer(ctypes.addressof(self.flags))


_BUFFERS = _Buffers()  # one for all pages, because PDFium supports only one thread at a time


class _LineReader:
    """Reads one page line by line."""

    def __init__(self, handle: Any, text: str, char_count: int, geometry: PageGeometry) -> None:
        self.handle = _pointer(ctypes.cast(handle, ctypes.c_void_p).value or 0)
        self.text = text
        self.geometry = geometry
        self.has_broken_words = BROKEN_WORD in text
        units = len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
        self.has_surrogates = units != len(text)
        self.has_hidden_chars = units != char_count
        self.has_exact_offsets = not (self.has_surrogates or self.has_hidden_chars)
        self.is_previous_bold = False
        self.sizes: dict[float, float] = {}  # font size → rounded size, because rounding costs more than a call
        self.bold_fonts: dict[bytes, bool] = {}  # name of a font → whether it is bold

    def find_chars(self, start: int, count: int) -> tuple[int, int]:
        """The characters of a part of the text, as a start and a number; some characters are not in the text."""
        first, last = _find_char(self.handle, start), _find_char(self.handle, start + count - 1)
        return (first, last - first + 1) if 0 <= first <= last else (start, count)

    def read_line(self, words: str, start: int, count: int, rest: str) -> PrintedLine | None:
        """A line with these words and characters. `rest` is the rest of a word that the line breaks, or empty."""
        text = words if words.isprintable() else words.translate(CLEAN)
        is_right_to_left = not text.isascii() and RIGHT_TO_LEFT.search(text) is not None
        sample = start + _find_sample(words) if self.has_exact_offsets else start
        size, baseline = self._get_size_and_baseline(sample)
        text = (reading_order(self._get_glyphs(start, count), size) if is_right_to_left else text).strip()
        if not text:
            return None
        box = self._get_box(start, count, sample, exact=is_right_to_left)
        x0, y0, x1, y1 = self.geometry.to_page(box)
        if not (x0 < x1 and y0 < y1) and box[0] < box[2] and box[1] < box[3]:  # off the page, so invisible
            return None
        is_candidate = self.is_previous_bold or may_be_heading(text)
        self.is_previous_bold = is_bold = is_candidate and self._is_bold(sample, start + count - 1)
        if rest:
            text = self._restore_hyphen(text, rest)
        return PrintedLine(text, x0, y0, x1, y1, size, baseline, is_bold, rest != "")

    def _restore_hyphen(self, text: str, rest: str) -> str:
        """A line that breaks a word: with a hyphen, unless the hyphen only marked the break."""
        match = LAST_WORD.search(text)
        broken = match.group() if match else ""
        marks_break = broken.isalpha() and rest[0].islower() and f"{broken}-{rest}" not in self.text
        return text if marks_break else text + "-"

    def _get_box(self, start: int, count: int, sample: int, *, exact: bool) -> Box:
        """The box around the ink of a line. If its letters are placed one by one, a sample of them and the height of
        the font are enough, unless the box has to be `exact`."""
        total = _count_rects(self.handle, start, count)
        use_all = exact or total <= MAX_RECTS
        left, bottom, right, top = box = self._get_rect(0)
        if total == 1 and left < right:  # true of most lines
            return box
        for index in range(1, total) if use_all else [*range(1, total - 1, -(-total // MAX_RECTS)), total - 1]:
            x0, y0, x1, y1 = self._get_rect(index)
            left = x0 if x0 < left else left
            bottom = y0 if y0 < bottom else bottom
            right = x1 if x1 > right else right
            top = y1 if y1 > top else top
        box = left, bottom, right, top
        return box if use_all and left < right else self._with_font_height(box, sample)

    def _get_rect(self, index: int) -> Box:
        _get_rect(self.handle, index, *_BUFFERS.sides_pointers)
        left, bottom, right, top = _BUFFERS.sides
        return left, bottom, right, top

    def _with_font_height(self, box: Box, char: int) -> Box:
        """The box with the height of a character's font; for a box without ink, the box of the character."""
        loose = (ctypes.c_float * 4)()
        if not _get_loose_box(self.handle, char, _pointer(ctypes.addressof(loose))):
            return box
        left, top, right, bottom = loose[:]
        if box[0] >= box[2]:
            return left, bottom, right, top
        return min(box[0], left), min(box[1], bottom), max(box[2], right), max(box[3], top)

    def _get_size_and_baseline(self, char: int) -> tuple[float, float]:
        """The displayed size of a character, and its baseline if the line runs from left to right."""
        _get_matrix(self.handle, char, _BUFFERS.matrix_pointer)
        a, b, c, d, e, f = _BUFFERS.matrix
        exact = _get_size(self.handle, char) * (hypot(c, d) if c else abs(d))
        size = self.sizes.get(exact)
        if size is None:
            size = self.sizes[exact] = round(exact, 1) if isfinite(exact) else 0.0
        _, _, page_a, page_b, page_c, page_d, _, page_f = self.geometry
        across, down = page_a * a + page_c * b, page_b * a + page_d * b
        is_horizontal = abs(down) < 0.1 * abs(across)
        return size, (page_b * e + page_d * f + page_f if is_horizontal else nan)

    def _is_bold(self, *chars: int) -> bool:
        """Whether all of these characters are bold."""
        for char in chars:
            _get_font(self.handle, char, *_BUFFERS.font_arguments)
            name = _BUFFERS.font.value
            if name not in self.bold_fonts:
                self.bold_fonts[name] = BOLD.search(name) is not None
            if not (self.bold_fonts[name] or _BUFFERS.flags.value & FORCE_BOLD):
                return False
        return True

    def _get_glyphs(self, start: int, count: int) -> list[Glyph]:
        """The characters of a line with their positions; spaces that PDFium added are omitted."""
        glyphs: list[Glyph] = []
        left, top, right, bottom = _BUFFERS.sides_pointers
        for char in range(start, start + count):
            if not _is_generated(self.handle, char):
                _get_char_box(self.handle, char, left, right, bottom, top)
                x0, y0, x1, y1 = _BUFFERS.sides
                displayed = self.geometry.to_page((x0, y0, x1, y1))
                glyphs.append(Glyph(_get_unicode(self.handle, char), displayed[0], displayed[2]))
        return glyphs


def _find_sample(words: str) -> int:
    """The index of a letter in the middle. The first character may be a bullet, an initial or the mark of a note."""
    middle = len(words) // 2
    while middle and words[middle].isspace():
        middle -= 1
    return middle
