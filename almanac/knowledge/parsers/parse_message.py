"""The message from a sandboxed parser to the server: the text of a file, its metadata, pages and passages.

The server validates every field, because a hostile file may have taken control of the parser.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

import orjson
from pydantic import TypeAdapter, ValidationError

from almanac.knowledge.parsers.file_signatures import FileType, SourceType
from almanac.knowledge.parsers.parsed_file import ParsedFile, TextPage, UnreadableFile
from almanac.search.passage import Passage

MAX_TEXT_CHARS = 100_000_000
MAX_PASSAGE_CHARS = 200_000
MAX_PASSAGES = 1_000_000
MAX_PAGES = 200_000
MAX_TITLE_CHARS = 500
MAX_METADATA_ENTRIES = 100
MAX_METADATA_CHARS = 2_000  # of a key or a value
MAX_WARNINGS = 50
MAX_WARNING_CHARS = 500
MAX_HEADINGS = 100  # above one passage
MAX_COORDINATE_POINTS = 10_000_000.0  # from the corner of a page
INVALID_PARSER_OUTPUT = (
    "The parser returned invalid output, so the document was not stored. Retry it; if it fails again, report the file."
)

UNSTORABLE = re.compile("[\x00\r\ud800-\udfff]")  # characters that no text may contain
_TOKEN = re.compile(r"[a-z0-9][a-z0-9.+/_-]{0,99}")


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """A file, parsed and cut into passages."""

    text: str
    mime_type: str
    source_type: SourceType
    extension: str
    title: str
    metadata: dict[str, str]
    warnings: tuple[str, ...]
    pages: tuple[TextPage, ...]
    passages: tuple[Passage, ...]


def pack(file_type: FileType, parsed: ParsedFile, passages: Sequence[Passage]) -> bytes:
    """The message for the server."""
    return orjson.dumps(
        ParsedDocument(
            parsed.text,
            file_type.mime_type,
            file_type.source_type,
            file_type.extension,
            parsed.title,
            parsed.metadata,
            parsed.warnings,
            parsed.pages,
            tuple(passages),
        )
    )


def unpack(message: bytes) -> ParsedDocument:
    """The document in a message; raises `UnreadableFile` if any part of it is invalid."""
    try:
        document = _MESSAGE.validate_json(message, strict=True)
    except ValidationError:
        document = None  # raised below without this error, which quotes the document
    if document is None or not _is_valid(document):
        raise UnreadableFile("parser_crashed", INVALID_PARSER_OUTPUT)
    return document


_MESSAGE = TypeAdapter(ParsedDocument)


def _is_valid(document: ParsedDocument) -> bool:
    return (
        0 < len(document.text) <= MAX_TEXT_CHARS
        and not UNSTORABLE.search(document.text)
        and _TOKEN.fullmatch(document.mime_type) is not None
        and _TOKEN.fullmatch(document.extension) is not None
        and _are_valid_texts([document.title], 1, MAX_TITLE_CHARS)
        and _are_valid_texts(document.metadata.keys(), MAX_METADATA_ENTRIES, MAX_METADATA_CHARS)
        and _are_valid_texts(document.metadata.values(), MAX_METADATA_ENTRIES, MAX_METADATA_CHARS)
        and _are_valid_texts(document.warnings, MAX_WARNINGS, MAX_WARNING_CHARS)
        and _are_valid_pages(document.pages, len(document.text))
        and _are_valid_passages(document.passages, len(document.text))
    )


def _are_valid_texts(texts: Collection[str], max_count: int, max_chars: int) -> bool:
    return len(texts) <= max_count and all(len(text) <= max_chars and not UNSTORABLE.search(text) for text in texts)


def _are_valid_pages(pages: Sequence[TextPage], length: int) -> bool:
    """Pages are counted from 1 and follow one another within the text."""
    sizes = [size for page in pages for size in (page.width, page.height) if size is not None]
    return (
        all(page.number >= 1 and 0 <= page.start <= page.end <= length for page in pages)
        and all(before.number < after.number and before.end <= after.start for before, after in pairwise(pages))
        and all(isfinite(size) and 0 <= size < MAX_COORDINATE_POINTS for size in sizes)
        and _are_valid_texts([page.name for page in pages], MAX_PAGES, MAX_TITLE_CHARS)
    )


def _are_valid_passages(passages: Sequence[Passage], length: int) -> bool:
    if len(passages) > MAX_PASSAGES or sum(len(passage.text) for passage in passages) > MAX_TEXT_CHARS * 4:
        return False
    return all(_is_valid_passage(index, passage, length) for index, passage in enumerate(passages))


def _is_valid_passage(index: int, passage: Passage, length: int) -> bool:
    return (
        0 <= passage.start < passage.end <= length
        and 0 < len(passage.text) <= MAX_PASSAGE_CHARS
        and not UNSTORABLE.search(passage.text)
        and passage.kind in ("text", "table", "code")
        and _are_valid_texts(passage.headings, MAX_HEADINGS, MAX_PASSAGE_CHARS)
        and (passage.page is None or passage.page >= 1)
        and (passage.parent is None or 0 <= passage.parent < index)
        and all(
            page >= 1 and all(isfinite(x) and abs(x) < MAX_COORDINATE_POINTS for x in box)
            for page, *box in passage.boxes
        )
    )
