"""Passages of a document: what a parser found, cut into pieces to search.

    blocks → sections   a heading with all that follows it, up to the next heading
           → groups     a bare heading with the section after it; tiny siblings together
           → runs       within a group: prose, one table, or symbols of code
           → pieces     of a size, cut where a reader would pause

Pure and deterministic, in time linear in the text. Every character but white space lies in the span of a passage.
"""

import re
import unicodedata
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, takewhile
from typing import Any, Literal, NamedTuple, TypeVar

from almanac.core.errors import BadRequest
from almanac.knowledge.parsers.parsed_file import Block, ParsedFile
from almanac.search.passage import Passage

T = TypeVar("T")

_RANGES = {"size": (128, 8192), "overlap": (0, 2048), "parent_size": (256, 32768)}

_TINY = 8  # a section below this part of the size is too little to find by itself
_SMALL = 4  # a bare heading, a lead-in or a symbol below this part of the size goes with what follows it
_LONGEST_ROW = 4  # sizes; a longer row of a table is cut like prose
_LONGEST_CLUSTER = 64  # code points; what claims to be a longer character is cut, or marks alone could fill a passage
MAX_HEADING_LEVELS = 9  # heading levels, as many as word processors have
_LONGEST_NAME = 200  # characters of a heading that are carried by every passage below it

# Characters that say about as much as three Latin letters: Han, kana, bopomofo, hangul and their punctuation.
_WIDE = re.compile("[\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003fffd]+")
_NON_SPACE = re.compile(r"\S")
_SPACE = re.compile(r"\s")
# A full stop before a small letter is more likely an abbreviation's. Repeats are bounded, so that dots cost no more.
_SENTENCE = re.compile(r"""[.!?…]["'”’»)\]]{0,3}\s(?![a-zà-öø-ÿа-яё])|[。！？｡؟۔।॥።။។]["'”’」』）】》〉»)\]]{0,3}""")
_STATEMENT = re.compile(r"(\n[ \t]*+)?\n([ \t]*+)(?=[^\s)\]}])")  # a line that does not merely close something

# Two characters that are one to a reader, besides those that Unicode files under marks: any with what follows it
# (joiners, Thai and Lao vowels, vowels and finals of hangul, half-width sound marks, skin colours, flag tags), any with
# what goes before it (the joiner, Arabic number signs), and an initial of hangul with what completes it.
_PAIR = re.compile(
    "(?s:.)[\u200c\u200d\u0e33\u0eb3\u1160-\u11ff\ud7b0-\ud7fb\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
    "|[\u200d\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2](?s:.)"
    "|[\u1100-\u115f\ua960-\ua97c][\u1100-\u115f\ua960-\ua97c\uac00-\ud7a3]"
)
_FLAG_LETTER = re.compile("[\U0001f1e6-\U0001f1ff]")  # two make a flag
_VIRAMA = 9  # the combining class of signs that bind the next consonant


@dataclass(frozen=True, slots=True)
class PassageSplitter:
    """How a base wants its documents cut.

    Sizes are characters of Latin text; a Chinese, Japanese or Korean character counts as three. `flat` makes passages
    of `size`; unless told otherwise 2000 characters, about 300 words. `hierarchical` makes parents of `parent_size`
    and within each its children of `size`; unless told otherwise children of 512 in parents of four times the size.
    Each passage repeats the last `overlap` characters of the one before; unless told otherwise an eighth of the size.
    """

    strategy: Literal["flat", "hierarchical"] = "flat"
    size: int = 2000
    overlap: int = 250
    parent_size: int = 4800  # of no consequence when flat

    def __post_init__(self) -> None:
        if self.strategy not in ("flat", "hierarchical"):
            raise BadRequest("'strategy' is either 'flat' or 'hierarchical'.")
        for name in _RANGES:
            _check(name, getattr(self, name))
        if self.overlap * 2 >= self.size:
            raise BadRequest("'overlap' is a whole number from 0 to 2048 and less than half of 'size'.")
        if self.strategy == "hierarchical" and self.parent_size < self.size * 2:
            raise BadRequest("'parent_size' is a whole number from 256 to 32768 and at least twice 'size'.")

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "PassageSplitter":
        """The splitter that settings ask for; BadRequest says what they may be."""
        if not options.keys() <= {"strategy", *_RANGES}:
            raise BadRequest("A splitter has the options 'strategy', 'size', 'overlap' and 'parent_size' only.")
        usual = cls()
        strategy = options.get("strategy", usual.strategy)
        if strategy == "flat" and "parent_size" in options:
            raise BadRequest("'parent_size' is for the 'hierarchical' strategy only.")
        size = _check("size", options.get("size", usual.size if strategy == "flat" else 512))
        parent_size = usual.parent_size if strategy == "flat" else size * 4
        return cls(strategy, size, options.get("overlap", size // 8), options.get("parent_size", parent_size))

    def as_options(self) -> dict[str, Any]:
        """What `from_options` makes this splitter of."""
        options = asdict(self)
        if self.strategy == "flat":
            del options["parent_size"]
        return options


def split(parsed: ParsedFile, splitter: PassageSplitter) -> list[Passage]:
    """The passages of a document, by their starts; a parent comes right before its children."""
    source = _Source(parsed)
    sections = list(_sections(parsed))
    if splitter.strategy == "flat":
        return list(_passages(source, sections, splitter.size, splitter.overlap))
    passages: list[Passage] = []
    starts = [section.start for section in sections]
    for around in _passages(source, sections, splitter.parent_size, 0):
        inside = sections[bisect_right(starts, around.start) - 1 : bisect_left(starts, around.end)]
        clipped = [_clip(source, section, around) for section in inside]
        place = len(passages)
        passages.append(around)
        passages.extend(_passages(source, clipped, splitter.size, splitter.overlap, place))
    return passages


def _check(name: str, value: Any) -> int:
    lowest, highest = _RANGES[name]
    if type(value) is not int or not lowest <= value <= highest:
        raise BadRequest(f"'{name}' is a whole number from {lowest} to {highest}.")
    return value


def _fold(items: Iterable[T], join: Callable[[T, T], T | None]) -> Iterator[T]:
    """The items, each joined to what came before it where `join` makes one of the two."""
    held: T | None = None
    for item in items:
        joined = item if held is None else join(held, item)
        if held is not None and joined is None:
            yield held
        held = item if joined is None else joined
    if held is not None:
        yield held


# What is measured in a document


class _TextMeasure:
    """Lengths in a text where some characters are wide: three units instead of one."""

    def __init__(self, text: str) -> None:
        self._starts, self._lengths, self._before = array("q"), array("q"), array("q")
        wide = 0
        for match in () if text.isascii() else _WIDE.finditer(text):
            start, end = match.span()
            self._starts.append(start)
            self._lengths.append(end - start)
            self._before.append(start + 2 * wide)
            wide += end - start

    def weigh(self, start: int, end: int) -> int:
        """How long a stretch is."""
        return self._total(end) - self._total(start)

    def reach(self, start: int, length: int) -> int:
        """The last place that is at most so far behind `start`, even if the text is over before it."""
        return self._place(self._total(start) + length)

    def back(self, end: int, length: int) -> int:
        """The first place that is at most so far before `end`."""
        return max(0, self._place(self._total(end) - length - 1) + 1)

    def _total(self, at: int) -> int:
        index = bisect_right(self._starts, at) - 1
        if index < 0:
            return at
        beyond = at - self._starts[index]
        return self._before[index] + beyond + 2 * min(beyond, self._lengths[index])

    def _place(self, total: int) -> int:
        index = bisect_right(self._before, total) - 1
        if index < 0:
            return total
        beyond, length = total - self._before[index], self._lengths[index]
        return self._starts[index] + (beyond // 3 if beyond < 3 * length else beyond - 2 * length)


class _Source:
    """A document with what is looked up in it again and again."""

    def __init__(self, parsed: ParsedFile) -> None:
        self.text = parsed.text
        self.blocks = parsed.blocks
        self.ruler = _TextMeasure(parsed.text)
        self.block_starts = [block.start for block in parsed.blocks]
        self._pages = parsed.pages
        self._page_starts = [page.start for page in parsed.pages]
        self._lines = sorted(parsed.lines, key=lambda line: line.start)
        self._line_ends = list(accumulate((line.end for line in self._lines), max))

    def page(self, at: int) -> int | None:
        return self._pages[max(0, bisect_right(self._page_starts, at) - 1)].number if self._pages else None

    def boxes(self, start: int, end: int) -> tuple[tuple[int, float, float, float, float], ...]:
        """The area of a stretch on each of its pages: around all of its lines there."""
        found: dict[int, tuple[float, float, float, float]] = {}
        for index in range(bisect_right(self._line_ends, start), len(self._lines)):
            line = self._lines[index]
            if line.start >= end:
                break
            if line.end > start:
                x0, y0, x1, y1 = found.get(line.page, (line.x0, line.y0, line.x1, line.y1))
                found[line.page] = min(x0, line.x0), min(y0, line.y0), max(x1, line.x1), max(y1, line.y1)
        return tuple(
            (page, round(x0, 1), round(y0, 1), round(x1, 1), round(y1, 1))
            for page, (x0, y0, x1, y1) in sorted(found.items())
        )


# From blocks to sections and groups


class _Section(NamedTuple):
    """Consecutive blocks under one heading, or a group of such."""

    headings: tuple[str, ...]
    above: tuple[str, ...]  # the headings around its own
    level: int
    first: int  # of its blocks
    last: int  # and the one after them
    start: int
    end: int


def _sections(parsed: ParsedFile) -> Iterator[_Section]:
    path: list[tuple[int, str]] = []
    first = 0
    for index, block in enumerate(parsed.blocks):
        if block.kind != "heading":
            continue
        if index:
            yield _section(parsed, path, first, index)
        level = min(max(block.level, 1), MAX_HEADING_LEVELS)
        name = " ".join((block.name or parsed.text[block.start : block.end]).split())[:_LONGEST_NAME]
        path = [each for each in path if each[0] < level] + [(level, name)]
        first = index
    if parsed.blocks:
        yield _section(parsed, path, first, len(parsed.blocks))


def _section(parsed: ParsedFile, path: list[tuple[int, str]], first: int, last: int) -> _Section:
    headings = tuple(name for _, name in path)
    level = path[-1][0] if path else 0
    start, end = parsed.blocks[first].start, parsed.blocks[last - 1].end
    return _Section(headings, headings[:-1], level, first, last, start, end)


def _clip(source: _Source, section: _Section, around: Passage) -> _Section:
    """The part of a section that lies within a passage."""
    return section._replace(
        first=max(section.first, bisect_right(source.block_starts, around.start) - 1),
        last=min(section.last, bisect_left(source.block_starts, around.end)),
        start=max(section.start, around.start),
        end=min(section.end, around.end),
    )


def _join_sections(source: _Source, size: int, held: _Section, section: _Section) -> _Section | None:
    """Two sections as one, if the first is but a heading over or beside the second, or if both are tiny siblings."""
    length, next_length = source.ruler.weigh(held.start, section.start), source.ruler.weigh(section.start, section.end)
    if _is_bare(source, held):
        follows = section.level >= held.level and length * _SMALL <= size
        return section._replace(first=held.first, start=held.start) if follows else None
    siblings = (held.level, held.above) == (section.level, section.above)
    tiny = max(length, next_length) * _TINY <= size
    if siblings and tiny and _is_prose(source, held) and _is_prose(source, section):
        return held._replace(headings=held.above, last=section.last, end=section.end)
    return None


def _is_bare(source: _Source, section: _Section) -> bool:
    return all(source.blocks[index].kind == "heading" for index in range(section.first, section.last))


def _is_prose(source: _Source, section: _Section) -> bool:
    """Whether all of it can share a passage, and it is not just a heading."""
    blocks = source.blocks[section.first : section.last]
    apart = any(block.kind == "table" or (block.kind == "code" and block.name) for block in blocks)
    return not apart and not _is_bare(source, section)


# From groups to runs


class _Run(NamedTuple):
    """Blocks that are cut as one."""

    kind: str  # heading while it holds nothing else, or that of its passages
    start: int
    body: int  # where what comes after its headings or its lead-in begins
    end: int
    symbol: str | None = None  # of code that defines something: its name, or what the names of several begin with
    table: Block | None = None


def _run(group: _Section, block: Block) -> _Run:
    symbol = block.name or None if block.kind == "code" else None
    table = block if block.kind == "table" else None
    start, end = max(group.start, block.start), min(group.end, block.end)
    return _Run(block.kind, start, start, end, symbol, table)


def _join_runs(source: _Source, size: int, held: _Run, run: _Run) -> _Run | None:
    """Prose with prose and with examples of code; a short lead-in with what it leads in; small symbols together."""
    if held.table is run.table is None and held.symbol is run.symbol is None:
        body = run.body if held.kind == "heading" else held.body
        return _Run(_blend(held.kind, run.kind), held.start, body, run.end)
    if source.ruler.weigh(held.start, run.start) * _SMALL > size:
        return None
    if held.kind in ("heading", "text") and run.kind in ("table", "code"):
        long_header = run.table is not None and source.ruler.weigh(run.start, run.table.header_end) * 2 > size
        return None if long_header else run._replace(start=held.start)
    if held.kind == run.kind == "code" and source.ruler.weigh(run.start, run.end) * _SMALL <= size:
        return held._replace(end=run.end, symbol=_shared(held.symbol, run.symbol))
    return None


def _blend(kind: str, other: str) -> str:
    if kind == "heading" or other == "heading":
        return other if kind == "heading" else kind
    return kind if kind == other else "text"


def _shared(symbol: str | None, other: str | None) -> str | None:
    """What two names begin with: `Trail` for `Trail.open` and `Trail.flush`."""
    if symbol is None or other is None:
        return symbol or other
    pairs = zip(symbol.split("."), other.split("."), strict=False)
    return ".".join(name for name, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


# From runs to passages


def _passages(
    source: _Source, sections: Sequence[_Section], size: int, overlap: int, parent: int | None = None
) -> Iterator[Passage]:
    for group in _fold(sections, partial(_join_sections, source, size)):
        blocks = (_run(group, source.blocks[index]) for index in range(group.first, group.last))
        for run in _fold(blocks, partial(_join_runs, source, size)):
            cut = _table_stretches(source, run, run.table, size) if run.table else _pieces(source, run, size, overlap)
            headings = (*group.headings, run.symbol[:_LONGEST_NAME]) if run.symbol else group.headings
            kind = "text" if run.kind == "heading" else run.kind
            for start, end, before in cut:
                page, boxes = source.page(start), source.boxes(start, end)
                yield Passage(start, end, before + source.text[start:end], kind, headings, page, boxes, parent)


def _table_stretches(source: _Source, run: _Run, table: Block, size: int) -> Iterator[tuple[int, int, str]]:
    """Rows, with the header to repeat before them. Of a header that would take more than half, its beginning is."""
    text, ruler = source.text, source.ruler
    header_end = min(max(table.header_end, table.start), table.end)
    repeated_end = min(header_end, ruler.reach(table.start, size // 2))
    if repeated_end < header_end:
        repeated_end = _character(text, table.start, repeated_end)
    header = text[table.start : repeated_end].strip()
    header_end = min(header_end, run.end) if header else table.start
    room = size - ruler.weigh(table.start, repeated_end) - 1  # the end of its line
    for start, end in _rows(source, run, (table.start, header_end), room, size):
        yield start, end, f"{header}\n" if header and start > table.start else ""


def _rows(source: _Source, run: _Run, header: tuple[int, int], room: int, size: int) -> Iterator[tuple[int, int]]:
    """Stretches of whole rows that fill the room beside the header, or the whole size where they hold it."""
    text, ruler = source.text, source.ruler
    at = run.start
    while (ink := _NON_SPACE.search(text, at, run.end)) is not None:
        at = max(at, text.rfind("\n", at, ink.start()) + 1)  # not the ink: a row may begin with an empty cell's tab
        limit = ruler.reach(at, size if at <= header[0] else room)
        end = run.end if limit >= run.end else _row_end(text, at, header, limit, run.end)
        last = at + len(text[at:end].rstrip())
        if ruler.weigh(at, last) <= size * _LONGEST_ROW:
            yield at, last
        else:
            yield from (piece[:2] for piece in _pieces(source, _Run("text", at, at, last), room, 0))
        at = end


def _row_end(text: str, at: int, header: tuple[int, int], limit: int, end: int) -> int:
    """The end of the last row up to the limit; if none ends there, that of the header, or else of the first row."""
    first = _next_ink(text, max(at, header[1]), end)
    if found := text.rfind("\n", first, limit + 1) + 1:
        return found
    if at < header[1] and header[0] < header[1]:
        return header[1]
    return text.find("\n", max(first, limit), end) + 1 or end


# Where to cut


def _pieces(source: _Source, run: _Run, size: int, overlap: int) -> Iterator[tuple[int, int, str]]:
    """Stretches of at most the size, each after the first with up to `overlap` of the one before it."""
    text, ruler = source.text, source.ruler
    end = run.start + len(text[run.start : run.end].rstrip())
    start = _next_ink(text, run.start, end)
    body = _next_ink(text, run.body, end)
    fresh = body if ruler.weigh(start, body) * 2 <= size else start
    while (limit := ruler.reach(start, size)) < end:
        even = ruler.reach(fresh, ruler.weigh(fresh, end) * 3 // 5)  # so that the last two are about as long
        cut = _cut(source, run.kind, fresh, limit, min(limit, even))
        yield start, start + len(text[start:cut].rstrip()), ""
        before, fresh = fresh, _next_ink(text, cut, end)
        low = max(ruler.back(fresh, overlap), (before + cut + 1) // 2)
        start = _next_ink(text, _overlap_start(text, run.kind, before, low, cut), end)
    if start < end:
        yield start, end, ""


def _next_ink(text: str, start: int, end: int) -> int:
    found = _NON_SPACE.search(text, start, end)
    return found.start() if found else end


def _cut(source: _Source, kind: str, fresh: int, limit: int, even: int) -> int:
    """Where to cut: between paragraphs or statements up to the limit, or else at the best place up to `even`."""
    text = source.text
    quarter = fresh + (limit - fresh) // 4
    cut = _statement(text, quarter, limit) if kind == "code" else _paragraph(source, quarter, limit)
    if cut > quarter:
        return cut
    half = fresh + (even - fresh) // 2
    for find in (_sentence, _line, _word):
        cut = find(text, half, even)
        if cut > half and not _joins(text, cut, fresh):
            return cut
    return _character(text, fresh, even)


def _overlap_start(text: str, kind: str, before: int, low: int, cut: int) -> int:
    """Where a passage begins that repeats the end of the one before, which began at `before`: from `low` on."""
    if low >= cut:
        return cut
    if kind == "code":
        return text.find("\n", low - 1, cut) + 1 or cut
    for pattern in (_SENTENCE, _SPACE):
        found = pattern.search(text, low - 1, (low + cut) // 2)
        if found and not _joins(text, found.end(), before):
            return found.end()
    return next((at for at in range(low, cut) if not _joins(text, at, before)), cut)


# Each of these finds the last place of its kind from `low` to `limit` after which to cut, or one before `low` if none.


def _paragraph(source: _Source, low: int, limit: int) -> int:
    block = source.block_starts[bisect_right(source.block_starts, limit) - 1]
    return max(block, source.text.rfind("\n\n", low, limit) + 2)


def _statement(text: str, low: int, limit: int) -> int:
    """After a blank line if there is one, where the code is least indented."""
    best, place = (True, limit), 0
    for match in _STATEMENT.finditer(text, low, limit):
        rank = (match[1] is None, len(match[2].expandtabs(4)))
        if rank <= best:
            best, place = rank, match.start(2)
    return place


def _sentence(text: str, low: int, limit: int) -> int:
    ends = (match.end() for match in _SENTENCE.finditer(text, low, limit + 4))
    return max((end for end in ends if end <= limit), default=0)


def _line(text: str, low: int, limit: int) -> int:
    return text.rfind("\n", low, limit) + 1


def _word(text: str, low: int, limit: int) -> int:
    if text[limit].isspace() or text[limit - 1].isspace():
        return limit
    return limit - len(text[low:limit].rsplit(None, 1)[-1])


def _character(text: str, low: int, limit: int) -> int:
    tries = range(limit, max(low, limit - _LONGEST_CLUSTER), -1)
    return next((at for at in tries if not _joins(text, at, low)), limit)


def _joins(text: str, at: int, known: int) -> bool:
    """Whether the character here and the one before it are one to a reader; `known` is a place where two meet."""
    before, after = text[at - 1], text[at]
    if before == "\n" or (before.isascii() and after.isascii()):
        return False
    if unicodedata.category(after)[0] == "M" or _PAIR.match(text, at - 1, at + 1):
        return True
    if _FLAG_LETTER.match(after):
        start = at
        while start > known and _FLAG_LETTER.match(text, start - 1):
            start -= 1
        return (at - start) % 2 == 1
    return unicodedata.combining(before) == _VIRAMA and unicodedata.category(after)[0] == "L"
