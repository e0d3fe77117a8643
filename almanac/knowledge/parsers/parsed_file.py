"""The result of a parser: one text, and the positions of its blocks, pages and lines.

Positions are character offsets into the text, from `start` up to but not including `end`. The text is clean: lines end
in `\n`, and there is no NUL, no lone surrogate and no `\r`.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from almanac.sandbox.errors import WorkRejected

NESTED_TOO_DEEPLY = "The file nests its parts deeper than any genuine document, so it was not parsed."


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the text with one role. Blocks are in order, do not overlap, and omit only white space."""

    kind: Literal["heading", "text", "table", "code"]
    start: int
    end: int
    level: int = 0  # of a heading: 1 is the highest
    name: str = ""  # of a heading: its words without markup; of code: the symbol that it defines, such as `Trail.flush`
    header_end: int = 0  # of a table: the end of its header, which every passage of the table repeats


class TextLine(NamedTuple):
    """The position of a line of the text on its page: points from the upper left corner, `y` growing downwards."""

    start: int
    end: int
    page: int
    x0: float
    y0: float
    x1: float
    y1: float


@dataclass(frozen=True, slots=True)
class TextPage:
    """A page, slide or sheet; numbers start at 1. Pages follow one another and together contain the whole text."""

    number: int
    start: int
    end: int
    width: float | None = None  # points, where pages have a size
    height: float | None = None
    name: str = ""  # of a sheet


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """The text of a file and its structure."""

    text: str
    blocks: tuple[Block, ...]
    pages: tuple[TextPage, ...] = ()  # empty if the format has no pages
    lines: tuple[TextLine, ...] = ()  # empty if positions on the page are unknown
    title: str = ""
    metadata: dict[str, str] = field(default_factory=dict[str, str])  # author, created, language …, from the file
    warnings: tuple[str, ...] = ()  # sentences for people about omitted parts


class UnreadableFile(WorkRejected):
    """A file that cannot be parsed, with the reason that is stored with the failed document.

    Codes of the parsers are encrypted, corrupt, empty, unsupported_format, too_large and ocr_missing. Those of the
    sandbox are parse_timeout, memory_limit, output_too_large, too_complex and parser_crashed.
    """
