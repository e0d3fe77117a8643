"""Mail messages: who wrote what to whom, the text, and the names of what is attached.

A message is parts within parts. Of alternatives one is read, of related parts the first, and of mixed ones all; a
message inside another is read as a section of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from email import policy
from email.errors import MessageError
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import cast

from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text import encodings, plain_text
from almanac.knowledge.parsers.text_builder import TextBuilder, squeeze
from almanac.knowledge.parsers.web import html_page

MOST_PARTS = 20_000
MAX_PART_DEPTH = 50

ATTACHED = "The files attached to the message were left out; add them by themselves."
MORE = f"The message has more than {MOST_PARTS:,} parts, or parts more than {MAX_PART_DEPTH} deep; those were left out."

_HEADERS = {"From": "author", "To": "to", "Cc": "cc", "Date": "created", "Message-ID": "message_id"}
_SHOWN = ("From", "To", "Cc", "Date")


@dataclass(slots=True)
class MessageWriter:
    """A message while it is being written into a draft."""

    draft: TextBuilder = field(default_factory=TextBuilder)
    attached: list[str] = field(default_factory=list[str])
    parts: int = 0
    is_whole: bool = True

    def write_message(self, message: Message, level: int, depth: int) -> None:
        self.draft.heading(_header(message, "Subject"), level)
        self.draft.text("\n".join(f"{each}: {value}" for each in _SHOWN if (value := _header(message, each))))
        self.write(message, level, depth)

    def write(self, part: Message, level: int, depth: int) -> None:
        """A part and those inside it; `level` is that of the heading of the message it belongs to."""
        self.parts += 1
        if self.parts > MOST_PARTS or depth > MAX_PART_DEPTH:
            self.is_whole = False
            return
        kind, inside = part.get_content_type(), _inside(part)
        if kind == "message/rfc822" and inside:
            self.write_message(inside[0], level + 1, depth + 1)
        elif kind == "multipart/alternative":
            self._write_best(inside, level, depth)
        elif kind == "multipart/related" and inside:
            self.write(inside[0], level, depth + 1)
            self._leave(inside[1:])
        elif inside:
            for each in inside:
                self.write(each, level, depth + 1)
        elif name := _attachment(part, kind):
            self.attached.append(name)
        elif kind in ("text/plain", "text/html"):
            self._write_text(part, kind)

    def _write_best(self, parts: Sequence[Message], level: int, depth: int) -> None:
        """The formatted one of some alternatives rather than the plain one: it has the tables and headings."""
        before = len(self.draft.blocks)
        ordered = sorted(parts, key=_is_plain)
        for place, each in enumerate(ordered, 1):
            self.write(each, level, depth + 1)
            if len(self.draft.blocks) > before:
                self._leave(ordered[place:])
                return

    def _leave(self, parts: Sequence[Message]) -> None:
        self.attached += [name for each in parts if (name := _filename(each))]

    def _write_text(self, part: Message, kind: str) -> None:
        text = _text(part)
        if kind == "text/html":
            html_page.write(html_page.read(text).pieces, self.draft)
        else:
            self.draft.paste(text, plain_text.paragraphs(text, 0, len(text)))


def parse(path: Path, name: str) -> ParsedFile:
    with path.open("rb") as file:
        # The newer policy takes every header apart when it is looked at, which of many parts takes seconds.
        message = BytesParser(policy=policy.compat32).parse(file)
    letter = MessageWriter()
    letter.write_message(message, 1, 0)
    letter.draft.text("Attachments: " + ", ".join(letter.attached) if letter.attached else "")
    warnings = [ATTACHED] * bool(letter.attached) + [MORE] * (not letter.is_whole)
    said = {ours: _header(message, theirs) for theirs, ours in _HEADERS.items()}
    return letter.draft.parsed(_header(message, "Subject"), said, warnings)


def _header(message: Message, name: str) -> str:
    """A header in plain words. Broken ones, which the library may stumble over, are as good as none."""
    raw = next((value for key, value in message.raw_items() if key.lower() == name.lower()), "")
    try:
        return squeeze(str(policy.default.header_fetch_parse(name, str(raw))))
    except (ValueError, LookupError, AttributeError, TypeError, MessageError):
        return ""


def _inside(part: Message) -> list[Message]:
    return cast(list[Message], part.get_payload()) if part.is_multipart() else []


def _is_plain(part: Message) -> bool:
    return part.get_content_type() == "text/plain"


def _attachment(part: Message, kind: str) -> str:
    """The name of a part that is no text of the message: a file, or a text that is not shown in it."""
    disposition = part.get_content_disposition()
    if disposition == "inline" and kind.startswith("text/"):
        return ""
    return _filename(part) or ("(unnamed)" if disposition == "attachment" else "")


def _filename(part: Message) -> str:
    """The name of a file. The parameters of a header are taken apart as a header of words is."""
    try:
        name = part.get_filename() or ""
        return squeeze(str(policy.default.header_fetch_parse("Subject", name))) if name else ""
    except (ValueError, LookupError, AttributeError, TypeError, MessageError):
        return ""


def _text(part: Message) -> str:
    """Text in the encoding that the part names, if it is in that."""
    content = part.get_payload(decode=True)
    content = content if isinstance(content, bytes) else b""
    try:
        text = content.decode(part.get_content_charset("utf-8"))
    except (UnicodeDecodeError, LookupError, ValueError):
        return encodings.decode(content)[0]
    return text.replace("\r\n", "\n").replace("\r", "\n")
