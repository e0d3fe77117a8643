"""Mail messages: the headers, the text and the names of the attachments.

A message is a tree of parts. Of alternative parts one is parsed, of related parts the first, and of mixed parts all; a
message within another becomes a section of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from email import policy
from email.errors import MessageError
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import cast

from almanac.core.text import one_line
from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text import encodings, plain_text
from almanac.knowledge.parsers.text_builder import TextBuilder
from almanac.knowledge.parsers.web import html_page

MAX_PARTS = 20_000
MAX_PART_DEPTH = 50

ATTACHMENTS_OMITTED = "The attachments of the message were left out; add them as separate files."
PARTS_OMITTED = (
    f"The message has more than {MAX_PARTS:,} parts, or parts nested more than {MAX_PART_DEPTH} levels deep; "
    "those were left out."
)
_BROKEN_HEADER_ERRORS = (ValueError, LookupError, AttributeError, TypeError, MessageError)

_HEADERS = {"From": "author", "To": "to", "Cc": "cc", "Date": "created", "Message-ID": "message_id"}
_HEADERS_IN_TEXT = ("From", "To", "Cc", "Date")


@dataclass(slots=True)
class MessageWriter:
    """Writes the parts of a message."""

    builder: TextBuilder = field(default_factory=TextBuilder)
    attachments: list[str] = field(default_factory=list[str])
    parts: int = 0
    is_complete: bool = True

    def write_message(self, message: Message, level: int, depth: int) -> None:
        self.builder.add_heading(_header(message, "Subject"), level)
        self.builder.add_text(
            "\n".join(f"{name}: {value}" for name in _HEADERS_IN_TEXT if (value := _header(message, name)))
        )
        self.write(message, level, depth)

    def write(self, part: Message, level: int, depth: int) -> None:
        """Write a part and the parts within it. `level` is the heading level of the message that contains the part."""
        self.parts += 1
        if self.parts > MAX_PARTS or depth > MAX_PART_DEPTH:
            self.is_complete = False
            return
        content_type = part.get_content_type()
        parts = cast(list[Message], part.get_payload()) if part.is_multipart() else []
        if content_type == "message/rfc822" and parts:
            self.write_message(parts[0], level + 1, depth + 1)
        elif content_type == "multipart/alternative":
            self._write_best(parts, level, depth)
        elif content_type == "multipart/related" and parts:
            self.write(parts[0], level, depth + 1)
            self._note_attachments(parts[1:])
        elif parts:
            for inner in parts:
                self.write(inner, level, depth + 1)
        elif name := _attachment_name(part, content_type):
            self.attachments.append(name)
        elif content_type in ("text/plain", "text/html"):
            self._write_text(part, content_type)

    def _write_best(self, alternatives: Sequence[Message], level: int, depth: int) -> None:
        """Prefer a formatted alternative to the plain one, because it has the tables and headings."""
        before = len(self.builder.blocks)
        ordered = sorted(alternatives, key=lambda part: part.get_content_type() == "text/plain")
        for number, part in enumerate(ordered, 1):
            self.write(part, level, depth + 1)
            if len(self.builder.blocks) > before:
                self._note_attachments(ordered[number:])
                return

    def _note_attachments(self, parts: Sequence[Message]) -> None:
        self.attachments += [name for part in parts if (name := _file_name(part))]

    def _write_text(self, part: Message, content_type: str) -> None:
        text = _decode_text(part)
        if content_type == "text/html":
            html_page.write(html_page.read(text).blocks, self.builder)
        else:
            self.builder.add_blocks(text, plain_text.paragraphs(text, 0, len(text)))


def parse(path: Path, name: str) -> ParsedFile:
    with path.open("rb") as file:
        # The newer policy parses every header on access, which takes seconds for messages with many parts.
        message = BytesParser(policy=policy.compat32).parse(file)
    writer = MessageWriter()
    writer.write_message(message, 1, 0)
    writer.builder.add_text("Attachments: " + ", ".join(writer.attachments) if writer.attachments else "")
    warnings = [ATTACHMENTS_OMITTED] * bool(writer.attachments) + [PARTS_OMITTED] * (not writer.is_complete)
    metadata = {ours: _header(message, theirs) for theirs, ours in _HEADERS.items()}
    return writer.builder.finish(_header(message, "Subject"), metadata, warnings)


def _header(message: Message, name: str) -> str:
    """The decoded text of a header; empty if it is missing or broken."""
    raw = next((value for key, value in message.raw_items() if key.lower() == name.lower()), "")
    try:
        return one_line(str(policy.default.header_fetch_parse(name, str(raw))))
    except _BROKEN_HEADER_ERRORS:
        return ""


def _attachment_name(part: Message, content_type: str) -> str:
    """The name of a part that is an attachment; empty for text that is displayed in the message."""
    disposition = part.get_content_disposition()
    if disposition == "inline" and content_type.startswith("text/"):
        return ""
    return _file_name(part) or ("(unnamed)" if disposition == "attachment" else "")


def _file_name(part: Message) -> str:
    """The decoded file name of a part; it is encoded like a Subject header."""
    try:
        name = part.get_filename() or ""
        return one_line(str(policy.default.header_fetch_parse("Subject", name))) if name else ""
    except _BROKEN_HEADER_ERRORS:
        return ""


def _decode_text(part: Message) -> str:
    """The text of a part, in its declared encoding if that fits."""
    content = part.get_payload(decode=True)
    return encodings.decode_declared(content if isinstance(content, bytes) else b"", part.get_content_charset("utf-8"))
