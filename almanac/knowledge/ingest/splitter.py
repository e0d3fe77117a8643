"""Splits a parsed document into passages.

    blocks → sections   a heading with its blocks, up to the next heading
           → groups     a section; a section without text joined to the next one; or several tiny sibling sections
           → runs       within a group: prose, one table, or the symbols of code
           → passages   of limited size, cut at the points that `split_points` chooses

Pure and deterministic, in time linear in the text. Every character except white space is in the span of a passage.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, takewhile
from typing import Any, Literal, NamedTuple, TypeVar

from almanac.core.errors import BadRequest
from almanac.core.text import one_line
from almanac.knowledge.ingest import split_points
from almanac.knowledge.ingest.split_points import MeasuredText
from almanac.knowledge.parsers.parsed_file import Block, ParsedFile
from almanac.search.passage import Passage

T = TypeVar("T")

MAX_HEADING_LEVELS = 9  # as in word processors
_RANGES = {"size": (128, 8192), "overlap": (0, 2048), "parent_size": (256, 32768)}
_TINY_PART = 8  # a section shorter than size / 8 is too short to be searched by itself
_SMALL_PART = 4  # a bare heading, an introduction or a symbol shorter than size / 4 is joined to the text after it
_MAX_HEADING_CHARS = 200  # every passage below the heading carries them


@dataclass(frozen=True, slots=True)
class PassageSplitter:
    """How the documents of a base are split.

    Sizes are characters of Latin text; a Chinese, Japanese or Korean character counts as three. `flat` makes passages
    of `size`, by default 2000 characters, which are about 300 words. `hierarchical` makes parents of `parent_size`, and
    within each parent children of `size`, by default children of 512 in parents of four times the size. Each passage
    repeats the last `overlap` characters of the passage before it, by default an eighth of the size.
    """

    strategy: Literal["flat", "hierarchical"] = "flat"
    size: int = 2000
    overlap: int = 250
    parent_size: int = 4800  # not used if flat

    def __post_init__(self) -> None:
        if self.strategy not in ("flat", "hierarchical"):
            raise BadRequest("'strategy' is either 'flat' or 'hierarchical'.")
        for name in _RANGES:
            _check_range(name, getattr(self, name))
        if self.overlap * 2 >= self.size:
            raise BadRequest("'overlap' is a whole number from 0 to 2048 and less than half of 'size'.")
        if self.strategy == "hierarchical" and self.parent_size < self.size * 2:
            raise BadRequest("'parent_size' is a whole number from 256 to 32768 and at least twice 'size'.")

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "PassageSplitter":
        """The splitter with these options. BadRequest names the permitted values."""
        if not options.keys() <= {"strategy", *_RANGES}:
            raise BadRequest("A splitter has the options 'strategy', 'size', 'overlap' and 'parent_size' only.")
        default = cls()
        strategy = options.get("strategy", default.strategy)
        if strategy == "flat" and "parent_size" in options:
            raise BadRequest("'parent_size' is for the 'hierarchical' strategy only.")
        size = _check_range("size", options.get("size", default.size if strategy == "flat" else 512))
        parent_size = default.parent_size if strategy == "flat" else size * 4
        return cls(strategy, size, options.get("overlap", size // 8), options.get("parent_size", parent_size))

    def as_options(self) -> dict[str, Any]:
        """The options from which `from_options` makes this splitter."""
        options = asdict(self)
        if self.strategy == "flat":
            del options["parent_size"]
        return options


def split(parsed: ParsedFile, splitter: PassageSplitter) -> list[Passage]:
    """The passages of a document, ordered by their starts. A parent comes directly before its children."""
    source = _Source(parsed)
    sections = list(_sections(parsed))
    if splitter.strategy == "flat":
        return list(_passages(source, sections, splitter.size, splitter.overlap))
    passages: list[Passage] = []
    starts = [section.start for section in sections]
    for parent in _passages(source, sections, splitter.parent_size, 0):
        inside = sections[bisect_right(starts, parent.start) - 1 : bisect_left(starts, parent.end)]
        clipped = [_clip(source, section, parent) for section in inside]
        index = len(passages)
        passages.append(parent)
        passages.extend(_passages(source, clipped, splitter.size, splitter.overlap, index))
    return passages


def _check_range(name: str, value: Any) -> int:
    lowest, highest = _RANGES[name]
    if type(value) is not int or not lowest <= value <= highest:
        raise BadRequest(f"'{name}' is a whole number from {lowest} to {highest}.")
    return value


def _join_neighbours(items: Iterable[T], join: Callable[[T, T], T | None]) -> Iterator[T]:
    """The items, each joined to the item before it if `join` returns one item for the two."""
    last: T | None = None
    for item in items:
        joined = item if last is None else join(last, item)
        if last is not None and joined is None:
            yield last
        last = item if joined is None else joined
    if last is not None:
        yield last


class _Source(MeasuredText):
    """The text of a document, with its blocks, pages and lines."""

    def __init__(self, parsed: ParsedFile) -> None:
        super().__init__(parsed.text, [block.start for block in parsed.blocks])
        self.blocks = parsed.blocks
        self._pages = parsed.pages
        self._page_starts = [page.start for page in parsed.pages]
        self._lines = sorted(parsed.lines, key=lambda line: line.start)
        self._line_ends = list(accumulate((line.end for line in self._lines), max))

    def page(self, position: int) -> int | None:
        """The number of the page at a position."""
        return self._pages[max(0, bisect_right(self._page_starts, position) - 1)].number if self._pages else None

    def boxes(self, start: int, end: int) -> tuple[tuple[int, float, float, float, float], ...]:
        """The rectangle around the lines of a span on each of its pages."""
        boxes: dict[int, tuple[float, float, float, float]] = {}
        for index in range(bisect_right(self._line_ends, start), len(self._lines)):
            line = self._lines[index]
            if line.start >= end:
                break
            if line.end > start:
                x0, y0, x1, y1 = boxes.get(line.page, (line.x0, line.y0, line.x1, line.y1))
                boxes[line.page] = min(x0, line.x0), min(y0, line.y0), max(x1, line.x1), max(y1, line.y1)
        return tuple(
            (page, round(x0, 1), round(y0, 1), round(x1, 1), round(y1, 1))
            for page, (x0, y0, x1, y1) in sorted(boxes.items())
        )


# From blocks to sections and groups


class _Section(NamedTuple):
    """Consecutive blocks under one heading, or a group of sections."""

    headings: tuple[str, ...]
    parent_headings: tuple[str, ...]
    level: int
    first: int  # the index of the first block
    last: int  # the index after the last block
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
        name = one_line(block.name or parsed.text[block.start : block.end])[:_MAX_HEADING_CHARS]
        path = [heading for heading in path if heading[0] < level] + [(level, name)]
        first = index
    if parsed.blocks:
        yield _section(parsed, path, first, len(parsed.blocks))


def _section(parsed: ParsedFile, path: list[tuple[int, str]], first: int, last: int) -> _Section:
    headings = tuple(name for _, name in path)
    level = path[-1][0] if path else 0
    start, end = parsed.blocks[first].start, parsed.blocks[last - 1].end
    return _Section(headings, headings[:-1], level, first, last, start, end)


def _clip(source: _Source, section: _Section, parent: Passage) -> _Section:
    """The part of a section that is in a parent passage."""
    return section._replace(
        first=max(section.first, bisect_right(source.block_starts, parent.start) - 1),
        last=min(section.last, bisect_left(source.block_starts, parent.end)),
        start=max(section.start, parent.start),
        end=min(section.end, parent.end),
    )


def _join_sections(source: _Source, size: int, last: _Section, section: _Section) -> _Section | None:
    """One section instead of two, if the first is a short heading without text, or if both are tiny siblings."""
    last_length, length = source.length(last.start, section.start), source.length(section.start, section.end)
    if _is_bare(source, last):
        is_joined = section.level >= last.level and last_length * _SMALL_PART <= size
        return section._replace(first=last.first, start=last.start) if is_joined else None
    are_siblings = (last.level, last.parent_headings) == (section.level, section.parent_headings)
    are_tiny = max(last_length, length) * _TINY_PART <= size
    if are_siblings and are_tiny and _is_prose(source, last) and _is_prose(source, section):
        return last._replace(headings=last.parent_headings, last=section.last, end=section.end)
    return None


def _is_bare(source: _Source, section: _Section) -> bool:
    return all(source.blocks[index].kind == "heading" for index in range(section.first, section.last))


def _is_prose(source: _Source, section: _Section) -> bool:
    """Whether all blocks of a section can share a passage, and not all of them are headings."""
    blocks = source.blocks[section.first : section.last]
    has_separate_blocks = any(block.kind == "table" or (block.kind == "code" and block.name) for block in blocks)
    return not has_separate_blocks and not _is_bare(source, section)


# From groups to runs


class _Run(NamedTuple):
    """Blocks that are split together."""

    kind: str  # that of its passages, or heading if it contains nothing else
    start: int
    body: int  # the end of its headings or its introduction
    end: int
    symbol: str | None = None  # of code with definitions: the name of one, or the common beginning of several names
    table: Block | None = None


def _run(group: _Section, block: Block) -> _Run:
    symbol = block.name or None if block.kind == "code" else None
    table = block if block.kind == "table" else None
    start, end = max(group.start, block.start), min(group.end, block.end)
    return _Run(block.kind, start, start, end, symbol, table)


def _join_runs(source: _Source, size: int, last: _Run, run: _Run) -> _Run | None:
    """Joins prose with prose and code examples, a short introduction with its table or code, and small symbols."""
    if last.table is run.table is None and last.symbol is run.symbol is None:
        body = run.body if last.kind == "heading" else last.body
        return _Run(_common_kind(last.kind, run.kind), last.start, body, run.end)
    if source.length(last.start, run.start) * _SMALL_PART > size:
        return None
    if last.kind in ("heading", "text") and run.kind in ("table", "code"):
        has_long_header = run.table is not None and source.length(run.start, run.table.header_end) * 2 > size
        return None if has_long_header else run._replace(start=last.start)
    if last.kind == run.kind == "code" and source.length(run.start, run.end) * _SMALL_PART <= size:
        return last._replace(end=run.end, symbol=_common_symbol(last.symbol, run.symbol))
    return None


def _common_kind(kind: str, other: str) -> str:
    if kind == "heading" or other == "heading":
        return other if kind == "heading" else kind
    return kind if kind == other else "text"


def _common_symbol(symbol: str | None, other: str | None) -> str | None:
    """The common beginning of two names: `Trail` for `Trail.open` and `Trail.flush`."""
    if symbol is None or other is None:
        return symbol or other
    pairs = zip(symbol.split("."), other.split("."), strict=False)
    return ".".join(name for name, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


# From runs to passages


def _passages(
    source: _Source, sections: Sequence[_Section], size: int, overlap: int, parent: int | None = None
) -> Iterator[Passage]:
    for group in _join_neighbours(sections, partial(_join_sections, source, size)):
        blocks = (_run(group, source.blocks[index]) for index in range(group.first, group.last))
        for run in _join_neighbours(blocks, partial(_join_runs, source, size)):
            headings = (*group.headings, run.symbol[:_MAX_HEADING_CHARS]) if run.symbol else group.headings
            kind = "text" if run.kind == "heading" else run.kind
            for start, end, header in _spans(source, run, size, overlap):
                page, boxes = source.page(start), source.boxes(start, end)
                yield Passage(start, end, header + source.text[start:end], kind, headings, page, boxes, parent)


def _spans(source: _Source, run: _Run, size: int, overlap: int) -> Iterator[tuple[int, int, str]]:
    """The spans of the passages of a run, each with the table header that its passage repeats."""
    if run.table is not None:
        yield from _table_spans(source, run, run.table, size)
        return
    for start, end in split_points.prose_spans(source, run.kind, (run.start, run.body, run.end), size, overlap):
        yield start, end, ""


def _table_spans(source: _Source, run: _Run, table: Block, size: int) -> Iterator[tuple[int, int, str]]:
    """Whole rows, with the header to repeat. A header longer than half of the size is repeated only in part."""
    text = source.text
    header_end = min(max(table.header_end, table.start), table.end)
    repeated_end = min(header_end, source.after(table.start, size // 2))
    if repeated_end < header_end:
        repeated_end = split_points.last_character(text, table.start, repeated_end)
    header = text[table.start : repeated_end].strip()
    header_span = table.start, min(header_end, run.end) if header else table.start
    room = size - source.length(table.start, repeated_end) - 1  # the line break after the header
    for start, end in split_points.row_spans(source, (run.start, run.end), header_span, room, size):
        yield start, end, f"{header}\n" if header and start > table.start else ""
