"""Mail messages: who wrote what to whom, the text, and the names of what is attached."""

from email import policy
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser
from pathlib import Path

from almanac.knowledge.parsers import plain, webpage
from almanac.knowledge.parsers.draft import Draft, squeeze
from almanac.knowledge.parsers.parsed import Parsed

MOST_PARTS = 1_000

_HEADERS = {"From": "author", "To": "to", "Cc": "cc", "Date": "created", "Message-ID": "message_id"}
_SHOWN = ("From", "To", "Cc", "Date")


def parse(path: Path, name: str) -> Parsed:
    with path.open("rb") as file:
        message = BytesParser(EmailMessage, policy=policy.default).parse(file)
    draft = Draft()
    subject = _header(message, "Subject")
    draft.heading(subject, 1)
    draft.text("\n".join(f"{each}: {value}" for each in _SHOWN if (value := _header(message, each))))
    _write_body(message, draft)
    attached = _attachments(message)
    draft.text("Attachments: " + ", ".join(attached) if attached else "")
    warnings = ["The files attached to the message were left out; add them by themselves."] if attached else []
    return draft.parsed(subject, {ours: _header(message, theirs) for theirs, ours in _HEADERS.items()}, warnings)


def _header(message: EmailMessage, name: str) -> str:
    """A header in plain words. Broken ones, which the library may stumble over, are as good as none."""
    try:
        return squeeze(str(message.get(name, "")))
    except (ValueError, LookupError, AttributeError, TypeError):
        return ""


def _write_body(message: EmailMessage, draft: Draft) -> None:
    """The formatted text of a message rather than the plain one: it has the tables and headings."""
    body = message.get_body(("html", "plain"))
    if body is None:
        return
    content = _content(body)
    if body.get_content_subtype() == "html":
        page = webpage.read(_text(content, body))
        webpage.write(page.pieces, draft)
        if page.pieces or (body := message.get_body(("plain",))) is None:
            return
        content = _content(body)
    text = _text(content, body)
    draft.paste(text, plain.paragraphs(text, 0, len(text)))


def _content(part: MIMEPart) -> bytes:
    content = part.get_payload(decode=True)
    return content if isinstance(content, bytes) else b""


def _text(content: bytes, part: MIMEPart) -> str:
    """Text in the encoding that the part names, if it is in that."""
    try:
        text = content.decode(part.get_content_charset("utf-8"))
    except (UnicodeDecodeError, LookupError):
        return plain.decode(content)[0]
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _attachments(message: EmailMessage) -> list[str]:
    parts = [part for _, part in zip(range(MOST_PARTS), message.walk(), strict=False)]
    return [squeeze(name) for part in parts if (name := part.get_filename())]
