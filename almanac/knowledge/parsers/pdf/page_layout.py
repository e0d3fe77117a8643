"""The layout of pages: combines printed lines into one text with paragraphs, headings and positions.

Only the print distinguishes a heading from a paragraph: it is larger than the body text, or a bold paragraph of its
own. A text at the same position on page after page is a running title and not a heading.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from almanac.core.text import one_line
from almanac.knowledge.parsers.parsed_file import Block, TextLine, TextPage
from almanac.knowledge.parsers.text_builder import MAX_HEADING_LEVEL

MIN_HEADING_RATIO = 1.15  # of the size of a heading to the size of the body text
MAX_HEADING_CHARS = 250
MAX_BOLD_HEADING_CHARS = 120
MAX_HEADING_LINES = 4
MIN_GAPS = 3  # between lines of one size, to know their usual distance
MIN_PAGE_BODY_CHARS = 300  # so many characters in larger print on one page are the body text of that page

SENTENCE_END = re.compile(r"[.!?:…。！？：][\"'”’»)\]]*$")
LETTER = re.compile(r"[^\W\d_]")
LEADER = re.compile(r"(?:[.·_] ?){4}|……")  # dots between a title and its page number in a table of contents
DIGITS = re.compile(r"\d+")


class PrintedLine(NamedTuple):
    """A line on its page: points from the upper left corner, `y` growing downwards."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    size: float = 0.0  # of the font in points; 0 if unknown
    baseline: float = float("nan")  # its vertical position; not a number if the line does not run from left to right
    bold: bool = False
    joined: bool = False  # its last word continues in the next line

    def scaled(self, scale: float) -> "PrintedLine":
        """The line on a page of another size."""
        x0, y0, x1, y1 = self.x0 * scale, self.y0 * scale, self.x1 * scale, self.y1 * scale
        return self._replace(x0=x0, y0=y0, x1=x1, y1=y1, baseline=self.baseline * scale)


@dataclass(frozen=True, slots=True)
class PrintedPage:
    """A page with its lines in reading order; numbers start at 1."""

    number: int
    width: float
    height: float
    lines: Sequence[PrintedLine] = ()


@dataclass(frozen=True, slots=True)
class PageText:
    """The text of all pages, with the positions of its blocks, pages and lines."""

    text: str
    blocks: tuple[Block, ...]
    pages: tuple[TextPage, ...]
    lines: tuple[TextLine, ...]


class LineGroup(NamedTuple):
    """The lines of a paragraph or of a heading."""

    lines: Sequence[PrintedLine]
    heading_size: float = 0.0  # the font size of a heading; 0 for a paragraph


def arrange(pages: Sequence[PrintedPage]) -> PageText:
    """Combine pages into one text: one line for each line, an empty line between paragraphs and between pages."""
    sizes = [_count_sizes(page.lines) for page in pages]
    body = _find_body_size(sum(sizes, Counter[float]()))
    grouped = [
        (page, _group(page.lines, max(body, _find_body_size(page_sizes, MIN_PAGE_BODY_CHARS))))
        for page, page_sizes in zip(pages, sizes, strict=True)
    ]
    running_titles = _find_running_titles(grouped)
    levels = _rank(
        group.heading_size
        for _, groups in grouped
        for group in groups
        if group.heading_size and _title_key(group) not in running_titles
    )
    writer = _PageTextWriter()
    for page, groups in grouped:
        writer.start_page(page)
        for group in groups:
            is_heading = group.heading_size and _title_key(group) not in running_titles
            writer.write(group.lines, page.number, levels[_half_point(group.heading_size)] if is_heading else 0)
    return writer.finish()


# Paragraphs


def _group(lines: Sequence[PrintedLine], body: float) -> list[LineGroup]:
    """The paragraphs and headings of a page."""
    leadings = _find_leadings(lines)
    groups: list[LineGroup] = []
    start = 0
    for index, (above, below) in enumerate(pairwise(lines), 1):
        if not above.joined and _is_break(above, below, leadings):
            groups.append(_classify(lines[start:index], body))
            start = index
    if lines:
        groups.append(_classify(lines[start:], body))
    return groups


def _is_break(above: PrintedLine, below: PrintedLine, leadings: Mapping[float, float]) -> bool:
    """Whether a paragraph ends between two lines."""
    text, left, top, _, bottom, size, baseline, bold, _ = above  # unpacked at once, because this runs for every line
    _, next_left, _, _, _, next_size, next_baseline, next_bold, _ = below
    unit = (size if size >= next_size else next_size) or bottom - top
    if bold != next_bold or (size != next_size and abs(size - next_size) > 0.1 * unit):
        return True
    gap = next_baseline - baseline
    if -0.3 * unit < gap < 0.3 * unit:  # the next cell of a row
        return False
    if not 0 < gap <= 1.25 * leadings.get(size, 1.25 * unit):  # true also if the baseline is not a number
        return True
    return next_left > left + 0.8 * unit and SENTENCE_END.search(text) is not None


def _find_leadings(lines: Sequence[PrintedLine]) -> dict[float, float]:
    """The usual distance between lines on a page, for each font size with enough lines."""
    gaps: defaultdict[float, list[float]] = defaultdict(list)
    for above, below in pairwise(lines):
        gap, unit = below.baseline - above.baseline, above.size or above.y1 - above.y0
        if 0.8 * unit < gap < 3 * unit and above.size == below.size:
            gaps[above.size].append(round(gap, 1))
    return {size: _usual_gap(distances, size) for size, distances in gaps.items() if len(distances) >= MIN_GAPS}


def _usual_gap(gaps: Sequence[float], size: float) -> float:
    """The most frequent distance. In images, where no two distances are equal, the median."""
    if not size:
        return median(gaps)
    counts = Counter(gaps)
    return max(counts, key=lambda gap: (counts[gap], -gap))


def _count_sizes(lines: Iterable[PrintedLine]) -> Counter[float]:
    """The number of characters in each known font size."""
    sizes: Counter[float] = Counter()
    for line in lines:
        sizes[line.size] += len(line.text)
    del sizes[0.0]
    return sizes


def _find_body_size(sizes: Counter[float], min_chars: int = 1) -> float:
    """The most frequent font size; 0 if fewer characters than `min_chars` have it."""
    size = max(sizes, key=lambda size: (sizes[size], -size), default=0.0)
    return size if sizes[size] >= min_chars else 0.0


# Headings


def _classify(lines: Sequence[PrintedLine], body: float) -> LineGroup:
    """Decide whether lines are a heading or a paragraph."""
    first = lines[0]
    if len(lines) > MAX_HEADING_LINES or not body or not first.size:
        return LineGroup(lines)
    text = " ".join(line.text for line in lines)
    if not LETTER.search(text) or LEADER.search(text):
        return LineGroup(lines)
    if first.size >= MIN_HEADING_RATIO * body and len(text) <= MAX_HEADING_CHARS:
        return LineGroup(lines, first.size)
    if first.bold and may_be_heading(text) and first.size >= 0.95 * body:
        return LineGroup(lines, body)
    return LineGroup(lines)


def may_be_heading(text: str) -> bool:
    """Whether a bold text can be a heading: it is short, and neither continues nor ends a sentence."""
    return len(text) <= MAX_BOLD_HEADING_CHARS and text[-1] not in ".,;" and not text[0].islower()


def _half_point(size: float) -> float:
    """A size rounded to half points; smaller differences are invisible."""
    return round(size * 2) / 2


def _rank(sizes: Iterable[float]) -> dict[float, int]:
    """The levels of headings by their size: the largest is 1."""
    rounded = sorted({_half_point(size) for size in sizes}, reverse=True)
    return {size: min(rank, MAX_HEADING_LEVEL) for rank, size in enumerate(rounded, 1)}


def _title_key(group: LineGroup) -> tuple[str, int]:
    """The same for a running title on all its pages: its words with numbers replaced, and its vertical position."""
    return DIGITS.sub("0", group.lines[0].text), round(group.lines[0].y0)


def _find_running_titles(grouped: Sequence[tuple[PrintedPage, Sequence[LineGroup]]]) -> set[tuple[str, int]]:
    """The keys of headings that occur on every page of a range, or on every other page."""
    pages_by_key: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for page, groups in grouped:
        for group in groups:
            if group.heading_size:
                pages_by_key[_title_key(group)].add(page.number)
    min_pages = max(2, min(3, len(grouped)))
    return {
        key
        for key, pages in pages_by_key.items()
        if len(pages) >= min_pages and 2 * len(pages) >= max(pages) - min(pages) + 1
    }


# The text


class _PageTextWriter:
    """Writes groups of lines one after another and records their positions."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.length = 0
        self.blocks: list[Block] = []
        self.lines: list[TextLine] = []
        self.page_starts: list[tuple[PrintedPage, int]] = []  # pages, and the number of lines before each

    def start_page(self, page: PrintedPage) -> None:
        self.page_starts.append((page, len(self.lines)))

    def write(self, lines: Sequence[PrintedLine], page: int, level: int) -> None:
        start = offset = self.length + 2 if self.parts else 0
        separator = "\n\n" if self.parts else ""
        for text, x0, y0, x1, y1, _, _, _, joined in lines:
            end = offset + len(text)
            self.lines.append(TextLine(offset, end, page, x0, y0, x1, y1))
            self.parts += separator, text
            separator, offset = ("", end) if joined else ("\n", end + 1)
        self.length = self.lines[-1].end
        name = "".join(line.text if line.joined else line.text + " " for line in lines) if level else ""
        kind = "heading" if level else "text"
        self.blocks.append(Block(kind, start, self.length, level, one_line(name)))

    def finish(self) -> PageText:
        """The complete text. A page ends at the start of the next one, so it includes the white space between them."""
        pages: list[TextPage] = []
        end = self.length
        for page, first_line in reversed(self.page_starts):
            start = self.lines[first_line].start if first_line < len(self.lines) else self.length
            pages.append(TextPage(page.number, start, end, page.width, page.height))
            end = start
        return PageText("".join(self.parts), tuple(self.blocks), tuple(reversed(pages)), tuple(self.lines))
