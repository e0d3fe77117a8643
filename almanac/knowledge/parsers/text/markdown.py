"""Markdown: headings, tables and fenced code as blocks, everything else as paragraphs, front matter as metadata."""

import re
from collections.abc import Iterator
from pathlib import Path

from almanac.knowledge.parsers.parsed_file import Block, ParsedFile
from almanac.knowledge.parsers.text import plain_text

_FRONT = re.compile(r"---[ \t]*\n(.{0,100000}?\n)(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_ENTRY = re.compile(r"([A-Za-z][\w .-]{0,60}?)\s*:\s*(.*)")
# One line, or a run of lines, that is not a paragraph. Tried at the beginning of a line.
_SPECIAL = re.compile(
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
_CLOSING = re.compile(r"(?:[ \t]+#+|[ \t]*\{[^{}]*\})[ \t]*$")


def parse(path: Path, name: str) -> ParsedFile:
    text, _ = plain_text.decode(path.read_bytes())
    body, metadata = front_matter(text)
    found = tuple(blocks(body))
    title = metadata.get("title") or next((block.name for block in found if block.kind == "heading"), "")
    return ParsedFile(body, found, title=title, metadata={key: v for key, v in metadata.items() if key != "title"})


def front_matter(text: str) -> tuple[str, dict[str, str]]:
    """A text without the properties at its beginning, and those."""
    found = _FRONT.match(text)
    if not found:
        return text, {}
    entries: dict[str, str] = {}
    key = ""
    for line in found[1].split("\n"):
        if entry := _ENTRY.fullmatch(line.rstrip()):
            key = entry[1].lower()
            entries[key] = entry[2].strip("\"'[]>| ")
        elif key and line.strip(" -"):
            entries[key] = ", ".join(filter(None, (entries[key], line.strip(" -\"'"))))
    return text[found.end() :], entries


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a text; together they hold all of it but white space."""
    done = 0
    place = 0
    while found := _SPECIAL.search(text, place):
        block = _special(text, found)
        if block is None:
            place = text.find("\n", found.start()) + 1 or len(text)
            continue
        yield from plain_text.paragraphs(text, done, found.start())
        yield block
        done = place = block.end
    yield from plain_text.paragraphs(text, done, len(text))


def _special(text: str, found: re.Match[str]) -> Block | None:
    start = found.start() + len(found[0]) - len(found[0].lstrip())
    end = found.start() + len(found[0].rstrip())
    if found["fence"]:
        return Block("code", start, _fence_end(text, found))
    if found["table"]:
        return _table(text, start, found)
    if found["heading"]:
        name = plain_words(found["name"] or "")
        return Block("heading", start, end, len(found["level"]), name) if name else None
    if _is_paragraph_before(text, found.start()):
        return None
    return Block("heading", start, end, 1 if found["line"][0] == "=" else 2, plain_words(found["title"]))


def _fence_end(text: str, found: re.Match[str]) -> int:
    closing = re.compile(rf"^[ ]{{0,3}}{found['mark'][0]}{{{len(found['mark'])},}}[ \t]*$", re.MULTILINE)
    last = closing.search(text, found.end())
    return last.end() if last else len(text.rstrip())


def _table(text: str, start: int, found: re.Match[str]) -> Block | None:
    separator = found[0].rstrip("\n").rpartition("\n")[2]
    if "|" not in separator and "|" in found[0].strip().strip("|"):
        return None
    place = found.end()
    while row := _ROW.match(text, place):
        place = row.end()
        if place == row.start() or place >= len(text):
            break
    end = start + len(text[start:place].rstrip())
    return Block("table", start, end, header_end=min(found.end(), end))


def _is_paragraph_before(text: str, start: int) -> bool:
    """A row of dashes under the last of several lines is a rule, or a list that is none of ours to judge."""
    return start > 0 and bool(text[text.rfind("\n", 0, start - 1) + 1 : start].strip())


def plain_words(text: str) -> str:
    """The words of a line without its marks."""
    bare = _LINK.sub(r"\1", _CLOSING.sub("", text.strip()))
    return " ".join(_EMPHASIS.sub(r"\2", bare).replace("\\", "").split())
