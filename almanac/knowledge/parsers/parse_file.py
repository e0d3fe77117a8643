"""Reading a file: what it is, what it says, and its passages, as one message from a parser's process to the server.

`read` is all that the confined process does. `unpack` is the server's side, and believes nothing: a parser may have
been taken over by the file it read. Parsers are loaded by name when a file needs one, so that the server unpacks
without loading any.
"""

import re
import struct
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import orjson
from pydantic import TypeAdapter, ValidationError

from almanac.knowledge.ingest import splitter
from almanac.knowledge.parsers import file_types
from almanac.knowledge.parsers.parsed_file import ParsedFile, TextPage, UnreadableFile
from almanac.search.passage import Passage

# What a sandboxed child runs for each file.
PARSE_FUNCTION = "almanac.knowledge.parsers.parse_file:parse_and_split"

LONGEST_TEXT = 100_000_000  # characters
LONGEST_PASSAGE = 200_000
MOST_PASSAGES = 1_000_000
MOST_PAGES = 200_000
LONGEST_TITLE = 500
MOST_METADATA = (100, 2_000)  # entries, and characters of each
MOST_WARNINGS = (50, 500)
MAX_COORDINATE_POINTS = 10_000_000.0  # points from the corner of a page
INVALID_PARSER_OUTPUT = (
    "What the parser answered makes no sense, so none of it is kept; report the file if it happens again."
)

_UNSAFE = re.compile("[\x00\r\ud800-\udfff]")
_TOKEN = re.compile(r"[a-z0-9][a-z0-9.+/_-]{0,99}")
# What broken files raise in the parsers and in the libraries below them.
_BREAKAGES = (ParseError, ValueError, LookupError, ArithmeticError, TypeError, AttributeError, EOFError,
              RecursionError, struct.error, zlib.error, OSError, NotImplementedError)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """A file, read and cut into passages."""

    text: str
    mime_type: str
    source_type: file_types.SourceType
    extension: str
    title: str
    metadata: dict[str, str]
    warnings: tuple[str, ...]
    pages: tuple[TextPage, ...]
    passages: tuple[Passage, ...]


def parse_and_split(content: Path, name: str, options: Mapping[str, Any]) -> bytes:
    """Everything there is to know of a file, packed; `options` are those of the splitter."""
    kind = file_types.detect_file_type(content, name)
    parsed = sanitise(parse(content, name, kind))
    found = splitter.split(parsed, splitter.PassageSplitter.from_options(dict(options)))
    return pack(kind, parsed, found)


def parse(content: Path, name: str, kind: file_types.FileType) -> ParsedFile:
    """What a file of a known kind says."""
    if content.stat().st_size == 0:
        raise UnreadableFile("empty", "The file is empty.")
    if not kind.parser:
        raise UnreadableFile(kind.code, kind.advice)
    parser = load(kind.parser)
    try:
        parsed = parser(content, name)
    except _BREAKAGES:
        raise UnreadableFile("corrupt", "The file is damaged and cannot be read; save it again and add that.") from None
    if not parsed.text.strip():
        raise UnreadableFile("empty", "No text was found in the file.")
    return parsed


def load(parser: str) -> Callable[[Path, str], ParsedFile]:
    """A parser, by the name of its module."""
    return import_module(f"almanac.knowledge.parsers.{parser}").parse


def preload() -> None:
    """Load every parser, for a process that will be copied to read many files."""
    for parser in sorted(file_types.PARSERS):
        load(parser)


def sanitise(parsed: ParsedFile) -> ParsedFile:
    """The same with text that can be stored. Characters are replaced one by one, so every offset still holds."""
    if len(parsed.text) > LONGEST_TEXT:
        raise UnreadableFile(
            "too_large", f"The file has more than {LONGEST_TEXT:,} characters of text; split it and add the parts."
        )
    entries, length = MOST_METADATA
    metadata = {_short(k, 100): _short(v, length) for k, v in list(parsed.metadata.items())[:entries] if v.strip()}
    count, longest = MOST_WARNINGS
    return ParsedFile(
        _UNSAFE.sub(_replacement, parsed.text),
        tuple(replace(b, name=_short(b.name, len(b.name))) if _UNSAFE.search(b.name) else b for b in parsed.blocks),
        tuple(replace(page, name=_short(page.name, LONGEST_TITLE)) if page.name else page for page in parsed.pages),
        parsed.lines,
        _short(parsed.title, LONGEST_TITLE),
        metadata,
        tuple(_short(warning, longest) for warning in parsed.warnings[:count]),
    )


def _replacement(found: re.Match[str]) -> str:
    return {"\r": "\n", "\x00": " "}.get(found[0], "\ufffd")


def _short(text: str, longest: int) -> str:
    return " ".join(_UNSAFE.sub(_replacement, text[: longest * 2]).split())[:longest]


def pack(kind: file_types.FileType, parsed: ParsedFile, found: list[Passage]) -> bytes:
    """One message for the server."""
    return orjson.dumps(
        {
            "text": parsed.text,
            "mime_type": kind.mime_type,
            "source_type": kind.source_type,
            "extension": kind.extension,
            "title": parsed.title,
            "metadata": parsed.metadata,
            "warnings": parsed.warnings,
            "pages": [[p.number, p.start, p.end, p.width, p.height, p.name] for p in parsed.pages],
            "passages": found,
        }
    )


def unpack(message: bytes) -> ParsedDocument:
    """What a parser's process answered, if all of it is sound."""
    try:
        found = _MESSAGE.validate_json(message, strict=True)
    except ValidationError:
        raise UnreadableFile("parser_failed", INVALID_PARSER_OUTPUT) from None  # the error quotes the document
    if not _is_valid(found):
        raise UnreadableFile("parser_failed", INVALID_PARSER_OUTPUT)
    return ParsedDocument(
        found.text,
        found.mime_type,
        found.source_type,
        found.extension,
        found.title,
        found.metadata,
        found.warnings,
        tuple(TextPage(*row) for row in found.pages),
        found.passages,
    )


def _is_valid(found: "_Message") -> bool:
    return (
        0 < len(found.text) <= LONGEST_TEXT
        and not _UNSAFE.search(found.text)
        and _TOKEN.fullmatch(found.mime_type) is not None
        and _TOKEN.fullmatch(found.extension) is not None
        and _are_few_and_short((found.title,), (1, LONGEST_TITLE))
        and _are_few_and_short(found.metadata.keys(), MOST_METADATA)
        and _are_few_and_short(found.metadata.values(), MOST_METADATA)
        and _are_few_and_short(found.warnings, MOST_WARNINGS)
        and _are_sound_pages(found.pages, len(found.text))
        and _are_sound_passages(found.passages, len(found.text))
    )


def _are_few_and_short(texts: Collection[str], limits: tuple[int, int]) -> bool:
    most, longest = limits
    return len(texts) <= most and all(len(text) <= longest and not _UNSAFE.search(text) for text in texts)


def _are_sound_pages(rows: Sequence["_Row"], length: int) -> bool:
    """Pages are counted from 1 and follow one another inside the text."""
    follow = all(a[0] < b[0] and a[2] <= b[1] for a, b in pairwise(rows))
    return (
        len(rows) <= MOST_PAGES
        and follow
        and all(row[0] >= 1 and 0 <= row[1] <= row[2] <= length for row in rows)
        and all(
            isfinite(size) and 0 <= size < MAX_COORDINATE_POINTS
            for row in rows
            for size in row[3:5]
            if size is not None
        )
        and _are_few_and_short([row[5] for row in rows], (MOST_PAGES, LONGEST_TITLE))
    )


def _are_sound_passages(found: Sequence[Passage], length: int) -> bool:
    if len(found) > MOST_PASSAGES or sum(len(each.text) for each in found) > LONGEST_TEXT * 4:
        return False
    return all(_is_sound_passage(place, each, length) for place, each in enumerate(found))


def _is_sound_passage(place: int, passage: Passage, length: int) -> bool:
    return (
        0 <= passage.start < passage.end <= length
        and 0 < len(passage.text) <= LONGEST_PASSAGE
        and not _UNSAFE.search(passage.text)
        and passage.kind in ("text", "table", "code")
        and _are_few_and_short(passage.headings, (100, LONGEST_PASSAGE))
        and (passage.page is None or passage.page >= 1)
        and (passage.parent is None or 0 <= passage.parent < place)
        and all(
            page >= 1 and all(isfinite(x) and abs(x) < MAX_COORDINATE_POINTS for x in box)
            for page, *box in passage.boxes
        )
    )


_Row = tuple[int, int, int, float | None, float | None, str]


@dataclass(frozen=True, slots=True)
class _Message:
    text: str
    mime_type: str
    source_type: file_types.SourceType
    extension: str
    title: str
    metadata: dict[str, str]
    warnings: tuple[str, ...]
    pages: tuple[_Row, ...]
    passages: tuple[Passage, ...]


_MESSAGE = TypeAdapter(_Message)
