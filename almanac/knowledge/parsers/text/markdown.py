"""Markdown: headings, tables and fenced code become blocks, front matter metadata, everything else paragraphs."""

import re
from collections.abc import Iterator
from pathlib import Path

from almanac.core.text import one_line
from almanac.knowledge.parsers.parsed_file import Block, ParsedFile
from almanac.knowledge.parsers.text import encodings, plain_text

_FRONT_MATTER = re.compile(r"---[ \t]*\n(.{0,100000}?\n)(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_ENTRY = re.compile(r"([A-Za-z][\w .-]{0,60}?)\s*:\s*(.*)")
# A line or several lines that are not a paragraph. Tried at the beginning of a line.
_SPECIAL_BLOCK = re.compile(
    r"^(?:"
    r"(?P<fence>[ ]{0,3}(?P<mark>`{3,}|~{3,})(?P<info>[^\n`]*)(?:\n|\Z))"
    r"|(?P<heading>[ ]{0,3}(?P<level>\#{1,6})(?:[ \t]+(?P<name>[^\n]*))?(?:\n|\Z))"
    r"|(?P<table>[ ]{0,3}[^\n|]*\|[^\n]*\n[ ]{0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*(?:\n|\Z))"
    r"|(?P<setext>[ ]{0,3}(?P<title>[^\s>\-*+|\#][^\n|]{0,300})\n[ ]{0,3}(?P<line>=+|-+)[ \t]*(?:\n|\Z))"
    r")",
    re.MULTILINE | re.VERBOSE,
)
_ROW = re.compile(r"[^\n]*\|[^\n]*(?:\n|\Z)")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_EMPHASIS = re.compile(r"(?<![\\\w])([*_]{1,3}|`+)(?=\S)(.+?)(?<=\S)\1(?!\w)")
_HEADING_END = re.compile(r"(?:[ \t]+#+|[ \t]*\{[^{}]*\})[ \t]*$")


def parse(path: Path, name: str) -> ParsedFile:
    text, _ = encodings.decode(path.read_bytes())
    body, metadata = split_front_matter(text)
    all_blocks = tuple(blocks(body))
    title = metadata.pop("title", "") or next((block.name for block in all_blocks if block.kind == "heading"), "")
    return ParsedFile(body, all_blocks, title=title, metadata=metadata)


def split_front_matter(text: str) -> tuple[str, dict[str, str]]:
    """The text without its front matter, and the entries of the front matter."""
    front_matter = _FRONT_MATTER.match(text)
    if not front_matter:
        return text, {}
    entries: dict[str, str] = {}
    key = ""
    for line in front_matter[1].split("\n"):
        if entry := _ENTRY.fullmatch(line.rstrip()):
            key = entry[1].lower()
            entries[key] = entry[2].strip("\"'[]>| ")
        elif key and line.strip(" -"):
            entries[key] = ", ".join(filter(None, (entries[key], line.strip(" -\"'"))))
    return text[front_matter.end() :], entries


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a text; together they contain all of it except white space."""
    written = 0
    position = 0
    while match := _SPECIAL_BLOCK.search(text, position):
        block = _special_block(text, match)
        if block is None:
            position = text.find("\n", match.start()) + 1 or len(text)
            continue
        yield from plain_text.paragraphs(text, written, match.start())
        yield block
        written = position = block.end
    yield from plain_text.paragraphs(text, written, len(text))


def _special_block(text: str, match: re.Match[str]) -> Block | None:
    start = match.start() + len(match[0]) - len(match[0].lstrip())
    end = match.start() + len(match[0].rstrip())
    if match["fence"]:
        return Block("code", start, _fence_end(text, match))
    if match["table"]:
        return _table(text, start, match)
    if match["heading"]:
        name = without_markup(match["name"] or "")
        return Block("heading", start, end, len(match["level"]), name) if name else None
    if _follows_text(text, match.start()):
        return None
    return Block("heading", start, end, 1 if match["line"][0] == "=" else 2, without_markup(match["title"]))


def _fence_end(text: str, opening: re.Match[str]) -> int:
    mark = opening["mark"]
    closing = re.compile(rf"^[ ]{{0,3}}{mark[0]}{{{len(mark)},}}[ \t]*$", re.MULTILINE)
    match = closing.search(text, opening.end())
    return match.end() if match else len(text.rstrip())


def _table(text: str, start: int, header: re.Match[str]) -> Block | None:
    separator = header[0].rstrip("\n").rpartition("\n")[2]
    if "|" not in separator and "|" in header[0].strip().strip("|"):
        return None
    position = header.end()
    while row := _ROW.match(text, position):
        position = row.end()
        if position == row.start() or position >= len(text):
            break
    end = start + len(text[start:position].rstrip())
    return Block("table", start, end, header_end=min(header.end(), end))


def _follows_text(text: str, start: int) -> bool:
    """Whether there is text on the line before. A row of dashes under several lines is not a heading: the lines may be
    a list, and the row a rule."""
    return start > 0 and bool(text[text.rfind("\n", 0, start - 1) + 1 : start].strip())


def without_markup(text: str) -> str:
    """The words of a line without emphasis, links and closing marks."""
    bare = _LINK.sub(r"\1", _HEADING_END.sub("", text.strip()))
    return one_line(_EMPHASIS.sub(r"\2", bare).replace("\\", ""))
