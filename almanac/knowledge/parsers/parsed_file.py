"""What a parser makes of a file: one text, and what is where in it.

Everything else points into the text by character offsets, `start` up to but not including `end`. A parser gives
clean text: lines end in `\n`, and there is no NUL, no lone surrogate and no `\r`.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from almanac.sandbox.errors import WorkRejected


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of the text with one role. Blocks come in order, do not overlap, and leave only white space out."""

    kind: Literal["heading", "text", "table", "code"]
    start: int
    end: int
    level: int = 0  # of a heading: 1 is the highest
    name: str = ""  # of a heading: its words without markup; of code: the symbol it defines, such as `Trail.flush`
    header_end: int = 0  # of a table: `start` to here is its header, which every passage of the table repeats


class TextLine(NamedTuple):
    """Where a line of the text stands on its page: points from the upper left corner, `y` growing downwards."""

    start: int
    end: int
    page: int
    x0: float
    y0: float
    x1: float
    y1: float


@dataclass(frozen=True, slots=True)
class TextPage:
    """A page, slide or sheet; numbers start at 1. Pages follow one another and together hold the whole text."""

    number: int
    start: int
    end: int
    width: float | None = None  # points, where pages have a size
    height: float | None = None
    name: str = ""  # a sheet's


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """A file, read."""

    text: str
    blocks: tuple[Block, ...]
    pages: tuple[TextPage, ...] = ()  # empty where a format knows none
    lines: tuple[TextLine, ...] = ()  # only where places on the page are known
    title: str = ""
    metadata: dict[str, str] = field(default_factory=dict[str, str])  # author, created, language …, as the file says
    warnings: tuple[str, ...] = ()  # what was left out, for people to read


class UnreadableFile(WorkRejected):
    """A file that cannot be read, with the reason that is stored on the failed document."""
