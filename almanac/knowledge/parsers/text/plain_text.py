"""Plain text: paragraphs, and headings that are underlined."""

import re
from collections.abc import Iterator
from pathlib import Path

from almanac.knowledge.parsers.parsed_file import Block, ParsedFile
from almanac.knowledge.parsers.text import encodings

_BLANK_LINES = re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*)+")
_UNDERLINED = re.compile(r"([^\n]{1,200})\n((?P<sign>[=~^#*+\"-])(?P=sign){2,})[ \t]*(?:\n|$)")
_WHITE_SPACE = re.compile(r"\s*")


def parse(path: Path, name: str) -> ParsedFile:
    text, encoding = encodings.decode(path.read_bytes())
    blocks = tuple(sections(text))
    title = next((block.name for block in blocks if block.kind == "heading"), "")
    return ParsedFile(text, blocks, title=title, metadata={} if encoding == "utf-8" else {"encoding": encoding})


def sections(text: str) -> Iterator[Block]:
    """The paragraphs of a text, and the headings that are underlined with a row of symbols."""
    for block in paragraphs(text, 0, len(text)):
        match = _UNDERLINED.match(text, block.start, block.end)
        if not match or not match[1][0].isalnum() or len(match[2]) + 2 < len(match[1].strip()):
            yield block
            continue
        end = match.end(2)
        yield Block("heading", block.start, end, 1 if match[2][0] in "=#*" else 2, match[1].strip())
        rest = _skip_white_space(text, end, block.end)
        if rest < block.end:
            yield Block("text", rest, block.end)


def paragraphs(text: str, start: int, end: int) -> Iterator[Block]:
    """The paragraphs of a part of a text. Blank lines separate them."""
    start = _skip_white_space(text, start, end)
    while start < end:
        gap = _BLANK_LINES.search(text, start, end)
        stop = gap.start() if gap else end
        yield Block("text", start, start + len(text[start:stop].rstrip()))
        start = _skip_white_space(text, gap.end(), end) if gap else end


def _skip_white_space(text: str, start: int, end: int) -> int:
    match = _WHITE_SPACE.match(text, start, end)
    return match.end() if match else start
