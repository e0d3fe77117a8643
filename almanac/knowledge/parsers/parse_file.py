"""The work of a sandboxed child: detect the type of a file, parse it, make its text storable and cut it into passages.

Parsers are loaded by name when a file needs one, so that a process that only imports this module loads none.
"""

import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from almanac.core.text import one_line
from almanac.knowledge.ingest import splitter
from almanac.knowledge.parsers import file_types, parse_message
from almanac.knowledge.parsers.file_signatures import PARSERS, FileType
from almanac.knowledge.parsers.parse_message import UNSTORABLE
from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile

# The name of the work for a `SandboxPool`.
PARSE_FUNCTION = "almanac.knowledge.parsers.parse_file:parse_and_split"

MAX_METADATA_KEY_CHARS = 100

# Errors that damaged files cause in the parsers and in the libraries below them.
_ERRORS_OF_DAMAGED_FILES = (ParseError, ValueError, LookupError, ArithmeticError, TypeError, AttributeError, EOFError,
                            RecursionError, struct.error, zlib.error, OSError, NotImplementedError)  # fmt: skip


def parse_and_split(files: Sequence[Path], name: str, options: Mapping[str, Any]) -> bytes:
    """Parse a file and pack its text, metadata and passages; `options` are those of the splitter."""
    [content] = files
    file_type = file_types.detect_file_type(content, name)
    parsed = sanitise(parse(content, name, file_type))
    passages = splitter.split(parsed, splitter.PassageSplitter.from_options(dict(options)))
    return parse_message.pack(file_type, parsed, passages)


def parse(content: Path, name: str, file_type: FileType) -> ParsedFile:
    """The text of a file of a known type."""
    if content.stat().st_size == 0:
        raise UnreadableFile("empty", "The file is empty.")
    if not file_type.parser:
        raise UnreadableFile(file_type.code, file_type.advice)
    parser = load(file_type.parser)
    try:
        parsed = parser(content, name)
    except _ERRORS_OF_DAMAGED_FILES:
        raise UnreadableFile(
            "corrupt", "The file is damaged and cannot be read. Save it again and add that copy."
        ) from None
    if not parsed.text.strip():
        raise UnreadableFile("empty", "The file contains no text.")
    return parsed


def load(parser: str) -> Callable[[Path, str], ParsedFile]:
    """A parser, by the name of its module."""
    return import_module(f"almanac.knowledge.parsers.{parser}").parse


def preload() -> None:
    """Load every parser, so that forked children need not."""
    for parser in sorted(PARSERS):
        load(parser)


def sanitise(parsed: ParsedFile) -> ParsedFile:
    """The same with text that can be stored. Each character is replaced by one character, so all offsets stay valid."""
    max_chars = parse_message.MAX_TEXT_CHARS
    if len(parsed.text) > max_chars:
        raise UnreadableFile(
            "too_large", f"The file has more than {max_chars:,} characters of text. Split it and add the parts."
        )
    return ParsedFile(
        UNSTORABLE.sub(_replacement, parsed.text),
        tuple(
            replace(block, name=_shorten(block.name, len(block.name))) if UNSTORABLE.search(block.name) else block
            for block in parsed.blocks
        ),
        tuple(
            replace(page, name=_shorten(page.name, parse_message.MAX_TITLE_CHARS)) if page.name else page
            for page in parsed.pages
        ),
        parsed.lines,
        _shorten(parsed.title, parse_message.MAX_TITLE_CHARS),
        {
            _shorten(key, MAX_METADATA_KEY_CHARS): _shorten(value, parse_message.MAX_METADATA_CHARS)
            for key, value in list(parsed.metadata.items())[: parse_message.MAX_METADATA_ENTRIES]
            if value.strip()
        },
        tuple(
            _shorten(each, parse_message.MAX_WARNING_CHARS) for each in parsed.warnings[: parse_message.MAX_WARNINGS]
        ),
    )


def _replacement(match: re.Match[str]) -> str:
    return {"\r": "\n", "\x00": " "}.get(match[0], "\ufffd")


def _shorten(text: str, max_chars: int) -> str:
    return one_line(UNSTORABLE.sub(_replacement, text[: max_chars * 2]))[:max_chars]
