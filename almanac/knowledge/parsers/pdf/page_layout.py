"""Lines set on pages, and what they make together: one text, with its paragraphs, headings and places.

Nothing but the print tells a heading from a paragraph here: it is set larger than the body of the document, or bold
above a paragraph of its own. What stands at the same place on page after page is a running title, never a heading.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from almanac.knowledge.parsers.parsed_file import Block, TextLine, TextPage

LARGER = 1.15  # times the body: larger print than this is a heading's
MAX_HEADING_LEVEL = 6
LONGEST_HEADING = 250  # characters
LONGEST_BOLD_HEADING = 120
MOST_HEADING_LINES = 4
ENOUGH_GAPS = 3  # between lines of one size, to say what is usual
OWN_BODY = 300  # characters in larger print on one page are that page's body

SENTENCE_END = re.compile(r"[.!?:…。！？：][\"'”’»)\]]*$")
LETTER = re.compile(r"[^\W\d_]")
LEADER = re.compile(r"(?:[.·_] ?){4}|……")  # of dots, from a title to its page: a line of a table of contents
DIGITS = re.compile(r"\d+")


class PrintedLine(NamedTuple):
    """A line as it is set on its page: points from the upper left corner, `y` growing downwards."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    size: float = 0.0  # of its print, in points; 0 where it is not known
    baseline: float = float("nan")  # where it stands; not a number where it does not run from left to right
    bold: bool = False
    joined: bool = False  # its last word goes on in the next line

    def resize(self, scale: float) -> "PrintedLine":
        """The line on a page of another size."""
        x0, y0, x1, y1 = self.x0 * scale, self.y0 * scale, self.x1 * scale, self.y1 * scale
        return self._replace(x0=x0, y0=y0, x1=x1, y1=y1, baseline=self.baseline * scale)


@dataclass(frozen=True, slots=True)
class PrintedPage:
    """A page with the lines on it, in reading order; numbers start at 1."""

    number: int
    width: float
    height: float
    lines: Sequence[PrintedLine] = ()


@dataclass(frozen=True, slots=True)
class PageText:
    """The text of pages, and what is where in it."""

    text: str
    blocks: tuple[Block, ...]
    pages: tuple[TextPage, ...]
    lines: tuple[TextLine, ...]


class Group(NamedTuple):
    """Lines that belong together, and the size of their print where they are a heading: 0 for a paragraph."""

    lines: Sequence[PrintedLine]
    heading: float = 0.0


def arrange(pages: Sequence[PrintedPage]) -> PageText:
    """Pages as one text: a line for a line, an empty line between paragraphs and between pages."""
    sizes = [_count_sizes(page.lines) for page in pages]
    body = _find_body(sum(sizes, Counter[float]()))
    grouped = [
        (page, _group(page.lines, max(body, _find_body(own, OWN_BODY)))) for page, own in zip(pages, sizes, strict=True)
    ]
    running = _find_running(grouped)
    levels = _rank(
        group.heading for _, groups in grouped for group in groups if group.heading and _key(group) not in running
    )
    writer = _Writer()
    for page, groups in grouped:
        writer.start_page(page)
        for group in groups:
            level = levels[_step(group.heading)] if group.heading and _key(group) not in running else 0
            writer.write(group.lines, page.number, level)
    return writer.finish()


# Paragraphs


def _group(lines: Sequence[PrintedLine], body: float) -> list[Group]:
    """The lines of a page, cut where a paragraph or a heading ends."""
    leadings = _find_leadings(lines)
    groups: list[Group] = []
    start = 0
    for index, (above, below) in enumerate(pairwise(lines), 1):
        if not above.joined and _parts(above, below, leadings):
            groups.append(_classify(lines[start:index], body))
            start = index
    if lines:
        groups.append(_classify(lines[start:], body))
    return groups


def _parts(above: PrintedLine, below: PrintedLine, leadings: Mapping[float, float]) -> bool:
    """Whether a paragraph ends between two lines."""
    text, left, top, _, bottom, size, baseline, bold, _ = above  # unpacked at once: every line comes by here
    _, next_left, _, _, _, next_size, next_baseline, next_bold, _ = below
    unit = (size if size >= next_size else next_size) or bottom - top
    if bold != next_bold or (size != next_size and abs(size - next_size) > 0.1 * unit):
        return True
    gap = next_baseline - baseline
    if -0.3 * unit < gap < 0.3 * unit:  # the next cell of a row
        return False
    if not 0 < gap <= 1.25 * leadings.get(size, 1.25 * unit):  # also where the baseline is not a number
        return True
    return next_left > left + 0.8 * unit and SENTENCE_END.search(text) is not None


def _find_leadings(lines: Sequence[PrintedLine]) -> dict[float, float]:
    """The usual distance from line to line on a page, for each size of print of which there are enough lines."""
    gaps: defaultdict[float, list[float]] = defaultdict(list)
    for above, below in pairwise(lines):
        gap, unit = below.baseline - above.baseline, above.size or above.y1 - above.y0
        if 0.8 * unit < gap < 3 * unit and above.size == below.size:
            gaps[above.size].append(round(gap, 1))
    return {size: _find_usual(found, size) for size, found in gaps.items() if len(found) >= ENOUGH_GAPS}


def _find_usual(gaps: Sequence[float], size: float) -> float:
    """The most frequent distance; the middle one in a picture, where no two are the same."""
    if not size:
        return median(gaps)
    counts = Counter(gaps)
    return max(counts, key=lambda gap: (counts[gap], -gap))


def _count_sizes(lines: Iterable[PrintedLine]) -> Counter[float]:
    """How many characters are set in each size of print that is known."""
    sizes: Counter[float] = Counter()
    for line in lines:
        sizes[line.size] += len(line.text)
    del sizes[0.0]
    return sizes


def _find_body(sizes: Counter[float], at_least: int = 1) -> float:
    """The size of print in which most is set; 0 where that is not so many characters."""
    size = max(sizes, key=lambda size: (sizes[size], -size), default=0.0)
    return size if sizes[size] >= at_least else 0.0


# Headings


def _classify(lines: Sequence[PrintedLine], body: float) -> Group:
    first = lines[0]
    if len(lines) > MOST_HEADING_LINES or not body or not first.size:
        return Group(lines)
    text = " ".join(line.text for line in lines)
    if not LETTER.search(text) or LEADER.search(text):
        return Group(lines)
    if first.size >= LARGER * body and len(text) <= LONGEST_HEADING:
        return Group(lines, first.size)
    if first.bold and may_head(text) and first.size >= 0.95 * body:
        return Group(lines, body)
    return Group(lines)


def may_head(text: str) -> bool:
    """Whether a text, if bold, may be a heading: it is short, and neither goes on nor ends as a sentence does."""
    return len(text) <= LONGEST_BOLD_HEADING and text[-1] not in ".,;" and not text[0].islower()


def _step(size: float) -> float:
    """Sizes to the half point: what differs by less is the same to the eye."""
    return round(size * 2) / 2


def _rank(sizes: Iterable[float]) -> dict[float, int]:
    """The levels of headings by their size: the largest is 1."""
    steps = sorted({_step(size) for size in sizes}, reverse=True)
    return {size: min(rank, MAX_HEADING_LEVEL) for rank, size in enumerate(steps, 1)}


def _key(group: Group) -> tuple[str, int]:
    """What a running title keeps from page to page: its words but for numbers, and its height on the page."""
    return DIGITS.sub("0", group.lines[0].text), round(group.lines[0].y0)


def _find_running(grouped: Sequence[tuple[PrintedPage, Sequence[Group]]]) -> set[tuple[str, int]]:
    """What would be a heading on every page of a stretch, or on every other one."""
    seen: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for page, groups in grouped:
        for group in groups:
            if group.heading:
                seen[_key(group)].add(page.number)
    enough = max(2, min(3, len(grouped)))
    return {
        key for key, pages in seen.items() if len(pages) >= enough and 2 * len(pages) >= max(pages) - min(pages) + 1
    }


# The text


class _Writer:
    """Writes groups of lines one after another, and notes where each came to stand."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.length = 0
        self.blocks: list[Block] = []
        self.lines: list[TextLine] = []
        self.starts: list[tuple[PrintedPage, int]] = []  # pages, and how many lines were written before each

    def start_page(self, page: PrintedPage) -> None:
        self.starts.append((page, len(self.lines)))

    def write(self, lines: Sequence[PrintedLine], page: int, level: int) -> None:
        start = at = self.length + 2 if self.parts else 0
        before = "\n\n" if self.parts else ""
        for text, x0, y0, x1, y1, _, _, _, joined in lines:
            end = at + len(text)
            self.lines.append(TextLine(at, end, page, x0, y0, x1, y1))
            self.parts += before, text
            before, at = ("", end) if joined else ("\n", end + 1)
        self.length = self.lines[-1].end
        name = "".join(line.text if line.joined else line.text + " " for line in lines) if level else ""
        kind = "heading" if level else "text"
        self.blocks.append(Block(kind, start, self.length, level, " ".join(name.split())))

    def finish(self) -> PageText:
        """Pages end where the next one begins, so that the white space between two is of the one before."""
        pages: list[TextPage] = []
        end = self.length
        for page, before in reversed(self.starts):
            start = self.lines[before].start if before < len(self.lines) else self.length
            pages.append(TextPage(page.number, start, end, page.width, page.height))
            end = start
        return PageText("".join(self.parts), tuple(self.blocks), tuple(reversed(pages)), tuple(self.lines))
