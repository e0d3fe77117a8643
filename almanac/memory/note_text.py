"""Validation and normalisation of the texts, tags, times and ids of notes.

A note's text is stored unchanged except for invisible characters: control characters, characters that change the text
direction, and Unicode tags, which a model can read and a person cannot see.
"""

import re
import uuid
from collections.abc import Iterable

from almanac.core import clock
from almanac.core.errors import BadRequest
from almanac.core.text import one_line

MAX_TITLE_CHARS = 200
MAX_BODY_CHARS = 32_000
MAX_TAGS = 16
MAX_TAG_CHARS = 100
MAX_TASK_ID_CHARS = 200

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)
_LINE_END = re.compile("\r\n?")
_WORD_SEPARATORS = re.compile(r"[\s_]+")
_KEBAB = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_NOTE_URI = re.compile(
    r"\b(?:almanac|drobek)://knowledge/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b", re.IGNORECASE
)


def clean(field: str, text: str, max_chars: int, *, is_line: bool = False) -> str:
    """The text as it is stored. Raises BadRequest if it is too long or empty; `field` names it in the error."""
    if len(text) > max_chars:
        raise BadRequest(
            f"{field}: has more than {max_chars:,} characters.", remedy="Shorten it or store several notes."
        )
    visible = _INVISIBLE.sub("", _LINE_END.sub("\n", text))
    visible = one_line(visible) if is_line else visible
    if not visible.strip():
        raise BadRequest(f"{field}: is empty.", remedy="Give at least one visible character.")
    return visible


def tags_of(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags in lower-case kebab-case, without duplicates. Raises BadRequest for a tag with other characters."""
    normalised = dict.fromkeys(lowered(tag) for tag in tags)
    for tag in normalised:
        if len(tag) > MAX_TAG_CHARS or not _KEBAB.fullmatch(tag):
            raise BadRequest(
                "tags: one of them cannot be written in kebab-case.",
                remedy="Use letters and digits with - between words, such as release-notes, and at most"
                f" {MAX_TAG_CHARS} characters.",
            )
    return tuple(normalised)


def lowered(tag: str) -> str:
    """A tag in lower case, with - between its words."""
    return _WORD_SEPARATORS.sub("-", tag.strip().lower())


def parse_timestamp(field: str, text: str) -> int:
    """The time in an ISO-8601 text. Raises BadRequest if it is not one."""
    try:
        timestamp = clock.parse_timestamp(text)
        clock.format_timestamp(timestamp)  # fails if the UTC year is outside 1 to 9999
        return timestamp
    except (ValueError, OverflowError):
        raise BadRequest(
            f"{field}: is not an ISO-8601 timestamp.", remedy="Write it like 2027-01-31T09:00:00Z."
        ) from None


def future(field: str, text: str) -> int:
    """The time in an ISO-8601 text. Raises BadRequest if it is not in the future."""
    timestamp = parse_timestamp(field, text)
    if timestamp <= clock.now():
        raise BadRequest(f"{field}: is not in the future.", remedy="Leave it out for a note that does not expire.")
    return timestamp


def id_of(field: str, text: str) -> str:
    """The id of a note in canonical form. Raises BadRequest if the text is not a UUID."""
    try:
        if len(text) in (32, 36):
            return str(uuid.UUID(text))
    except ValueError:
        pass
    raise BadRequest(f"{field}: is not a UUID.", remedy="Use the id that storing or finding the note returned.")


def linked_ids(text: str) -> tuple[str, ...]:
    """The ids in the note URIs of a text, without duplicates."""
    return tuple(dict.fromkeys(match.lower() for match in _NOTE_URI.findall(text)))
