"""The lines on a page of a PDF, by PDFium: their words, their boxes and their print.

PDFium gives the text of a page in one call and counts its characters in UTF-16 units, the line ends and spaces it
supplies itself among them. So lines are cut from that text, and a line is asked for its place in a few calls: a call
for every character would cost more than reading the page does.
"""

import ctypes
import re
from array import array
from math import hypot, isfinite, nan
from typing import Any, NamedTuple

import pypdfium2.raw  # pyright: ignore[reportMissingTypeStubs]

from almanac.knowledge.parsers.pdf.page_layout import PrintedLine, may_head
from almanac.knowledge.parsers.pdf.right_to_left import RIGHT_TO_LEFT, Glyph, reading_order

MOST_RECTS = 8  # asked for in one line: some programs set every word, or every letter, by itself

BROKEN_WORD = "\ufffe"  # PDFium's mark for a hyphen at the end of a line; the next line follows it at once
LINE = re.compile(f"[^\r\n{BROKEN_WORD}]+")
LAST_WORD = re.compile(r"\S+$")
BROKEN_OFF = re.compile(rf"{BROKEN_WORD}(\w+)")
BOLD = re.compile(rb"bold|black|heavy|demi|cmbx|sfbx|-medi", re.IGNORECASE)
FORCE_BOLD = 1 << 18  # of a font's flags
LONGEST_FONT_NAME = 128

# Controls, noncharacters and soft hyphens have nothing to say; of the private signs, two are the bullets of Symbol.
CLEAN: dict[int, str] = {
    **dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), 0xAD, 0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF], ""),
    **dict.fromkeys([*range(0x09, 0x0E), 0x85, 0xA0, 0x2028, 0x2029], " "),
    0xF0B7: "•",
    0xF0A7: "▪",
}

pdfium: Any = pypdfium2.raw  # made from C headers, without types


def _declare(function: Any, result: Any) -> Any:
    """A function of PDFium that takes what it is given: numbers as C's int, the rest made ready by `_at`.

    Checking and converting arguments in Python costs more than most calls do.
    """
    return ctypes.PYFUNCTYPE(result)(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _at(address: int) -> Any:
    return ctypes.c_void_p.from_param(address)


_INT = ctypes.c_int
_count_rects = _declare(pdfium.FPDFText_CountRects, _INT)  # text page, first character, how many
_get_rect = _declare(pdfium.FPDFText_GetRect, _INT)  # text page, index, left, top, right, bottom
_get_char_box = _declare(pdfium.FPDFText_GetCharBox, _INT)  # text page, character, left, right, bottom, top
_get_loose_box = _declare(pdfium.FPDFText_GetLooseCharBox, _INT)  # text page, character, four floats
_get_matrix = _declare(pdfium.FPDFText_GetMatrix, _INT)  # text page, character, six floats
_get_size = _declare(pdfium.FPDFText_GetFontSize, ctypes.c_double)  # text page, character
_get_font = _declare(pdfium.FPDFText_GetFontInfo, ctypes.c_ulong)  # text page, character, name, its room, flags
_get_unicode = _declare(pdfium.FPDFText_GetUnicode, ctypes.c_uint)  # text page, character
_is_generated = _declare(pdfium.FPDFText_IsGenerated, _INT)  # text page, character
_find_char = _declare(pdfium.FPDFText_GetCharIndexFromTextIndex, _INT)  # text page, place in the text

Box = tuple[float, float, float, float]  # left, bottom, right, top, counted upwards as the file does


class Sheet(NamedTuple):
    """A page as it is displayed: its size, and the matrix that brings a point of the file there."""

    width: float
    height: float
    a: float
    b: float
    c: float
    d: float
    e: float
    f: float

    def place(self, box: Box) -> Box:
        """A box as it is displayed: left, top, right, bottom, counted from the upper left corner of the sheet."""
        left, bottom, right, top = box
        width, height, a, b, c, d, e, f = self  # unpacked at once: every line comes by here
        x0, y0 = a * left + c * bottom + e, b * left + d * bottom + f
        x1, y1 = a * right + c * top + e, b * right + d * top + f
        if x0 > x1:
            x0, x1 = x1, x0
        if y0 > y1:
            y0, y1 = y1, y0
        if x0 >= 0 and y0 >= 0 and x1 <= width and y1 <= height:
            return x0, y0, x1, y1
        return _hold(x0, width), _hold(y0, height), _hold(x1, width), _hold(y1, height)


def _hold(value: float, limit: float) -> float:
    return min(max(value, 0.0), limit) if isfinite(value) else 0.0


def read(handle: Any, text: str, count: int, sheet: Sheet) -> list[PrintedLine]:
    """The lines of a page, from PDFium's handle of its text, that text, and the number of characters it counts."""
    reader = _Reader(handle, text, count, sheet)
    lines: list[PrintedLine] = []
    doubles = 0  # characters up to here that count twice
    for found in LINE.finditer(text):
        words, start, rest = found.group(), found.start() + doubles, ""
        length = len(words)
        if reader.wide:
            extra = sum(sign > "\uffff" for sign in words)
            doubles, length = doubles + extra, length + extra
        if reader.skips:
            start, length = reader.find(start, length)
        if reader.breaks and (after := BROKEN_OFF.match(text, found.end())):
            rest = after.group(1)
        if line := reader.read(words, start, length, rest):
            lines.append(line)
    return lines


class _Room:
    """What PDFium writes its answers to, and where that is."""

    def __init__(self) -> None:
        self.sides = array("d", bytes(32))  # left, bottom, right, top
        first = self.sides.buffer_info()[0]
        self.sides_at = [_at(first + 8 * side) for side in (0, 3, 2, 1)]  # as PDFium asks for them
        self.matrix = array("f", bytes(24))
        self.matrix_at = _at(self.matrix.buffer_info()[0])
        self.font = ctypes.create_string_buffer(LONGEST_FONT_NAME)
        self.flags = ctypes.c_int()
        size = ctypes.c_ulong.from_param(LONGEST_FONT_NAME)
        self.font_at = _at(ctypes.addressof(self.font)), size, _at(ctypes.addressof(self.flags))


_ROOM = _Room()  # one for all pages: PDFium is for one thread at a time anyway


class _Reader:
    """Reads one page line by line."""

    def __init__(self, handle: Any, text: str, count: int, sheet: Sheet) -> None:
        self.handle = _at(ctypes.cast(handle, ctypes.c_void_p).value or 0)
        self.text = text
        self.sheet = sheet
        self.breaks = BROKEN_WORD in text
        units = len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
        self.wide = units != len(text)
        self.skips = units != count
        self.exact = not (self.wide or self.skips)
        self.after_bold = False
        self.sizes: dict[float, float] = {}  # of print, as they were rounded: rounding costs more than a call does
        self.fonts: dict[bytes, bool] = {}  # by name, and whether it is a bold one's

    def find(self, start: int, count: int) -> tuple[int, int]:
        """Where a stretch of the text lies among the characters, some of which are not in the text."""
        first, last = _find_char(self.handle, start), _find_char(self.handle, start + count - 1)
        return (first, last - first + 1) if 0 <= first <= last else (start, count)

    def read(self, words: str, start: int, count: int, rest: str) -> PrintedLine | None:
        """A line of these words and characters, and the first word after it where it breaks a word."""
        text = words if words.isprintable() else words.translate(CLEAN)
        turned = not text.isascii() and RIGHT_TO_LEFT.search(text) is not None
        sample = start + _find_sample(words) if self.exact else start
        size, baseline = self._get_print(sample)
        text = (reading_order(self._get_glyphs(start, count), size) if turned else text).strip()
        if not text:
            return None
        box = self._get_box(start, count, sample, whole=turned)
        x0, y0, x1, y1 = self.sheet.place(box)
        if not (x0 < x1 and y0 < y1) and box[0] < box[2] and box[1] < box[3]:  # off the page, where no one sees it
            return None
        self.after_bold = (self.after_bold or may_head(text)) and self._is_bold(sample, start + count - 1)
        if rest:
            text = self._mend(text, rest)
        return PrintedLine(text, x0, y0, x1, y1, size, baseline, self.after_bold, rest != "")

    def _mend(self, text: str, rest: str) -> str:
        """A line that breaks a word: without the hyphen where that only marks the break, else with it."""
        found = LAST_WORD.search(text)
        broken = found.group() if found else ""
        marks_break = broken.isalpha() and rest[0].islower() and f"{broken}-{rest}" not in self.text
        return text if marks_break else text + "-"

    def _get_box(self, start: int, count: int, sample: int, *, whole: bool) -> Box:
        """The box around a line's ink. Of letters set one by one, some stand for all, with the height of the font."""
        total = _count_rects(self.handle, start, count)
        few = whole or total <= MOST_RECTS
        left, bottom, right, top = box = self._get_rect(0)
        if total == 1 and left < right:  # as most lines are
            return box
        for index in range(1, total) if few else [*range(1, total - 1, -(-total // MOST_RECTS)), total - 1]:
            x0, y0, x1, y1 = self._get_rect(index)
            left = x0 if x0 < left else left
            bottom = y0 if y0 < bottom else bottom
            right = x1 if x1 > right else right
            top = y1 if y1 > top else top
        box = left, bottom, right, top
        return box if few and left < right else self._stretch(box, sample)

    def _get_rect(self, index: int) -> Box:
        _get_rect(self.handle, index, *_ROOM.sides_at)
        left, bottom, right, top = _ROOM.sides
        return left, bottom, right, top

    def _stretch(self, box: Box, char: int) -> Box:
        """A box with the height of a character's font; that of the character alone where it had no ink."""
        loose = (ctypes.c_float * 4)()
        if not _get_loose_box(self.handle, char, _at(ctypes.addressof(loose))):
            return box
        left, top, right, bottom = loose[:]
        if box[0] >= box[2]:
            return left, bottom, right, top
        return min(box[0], left), min(box[1], bottom), max(box[2], right), max(box[3], top)

    def _get_print(self, char: int) -> tuple[float, float]:
        """The size of a character as it is displayed, and its baseline where the line runs from left to right."""
        _get_matrix(self.handle, char, _ROOM.matrix_at)
        a, b, c, d, e, f = _ROOM.matrix
        exact = _get_size(self.handle, char) * (hypot(c, d) if c else abs(d))
        size = self.sizes.get(exact)
        if size is None:
            size = self.sizes[exact] = round(exact, 1) if isfinite(exact) else 0.0
        _, _, sa, sb, sc, sd, _, sf = self.sheet
        across, down = sa * a + sc * b, sb * a + sd * b
        level = abs(down) < 0.1 * abs(across)
        return size, (sb * e + sd * f + sf if level else nan)

    def _is_bold(self, *chars: int) -> bool:
        """Whether all of these characters are."""
        for char in chars:
            _get_font(self.handle, char, *_ROOM.font_at)
            name = _ROOM.font.value
            if name not in self.fonts:
                self.fonts[name] = BOLD.search(name) is not None
            if not (self.fonts[name] or _ROOM.flags.value & FORCE_BOLD):
                return False
        return True

    def _get_glyphs(self, start: int, count: int) -> list[Glyph]:
        """The characters of a line with their places from left to right; spaces that PDFium supplied have none."""
        glyphs: list[Glyph] = []
        left, top, right, bottom = _ROOM.sides_at
        for char in range(start, start + count):
            if not _is_generated(self.handle, char):
                _get_char_box(self.handle, char, left, right, bottom, top)
                x0, y0, x1, y1 = _ROOM.sides
                placed = self.sheet.place((x0, y0, x1, y1))
                glyphs.append(Glyph(_get_unicode(self.handle, char), placed[0], placed[2]))
        return glyphs


def _find_sample(words: str) -> int:
    """A letter in the middle: what a line begins with may be a bullet, an initial or the mark of a note."""
    middle = len(words) // 2
    while middle and words[middle].isspace():
        middle -= 1
    return middle
