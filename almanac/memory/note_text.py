"""Wording: what a note may say, and how it is kept.

Notes are kept as they were said, less what nobody can see: control characters, characters that turn the direction of a
line, and invisible ones that spell something to a machine and nothing to its reader.
"""

import re
import uuid
from collections.abc import Iterable

from almanac.core import clock
from almanac.core.errors import BadRequest

LONGEST_TITLE = 200
LONGEST_BODY = 32_000
MOST_TAGS = 16
LONGEST_TAG = 100
LONGEST_TASK = 200

_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)
_LINE_END = re.compile("\r\n?")
_BETWEEN = re.compile(r"[\s_]+")
_KEBAB = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_ADDRESS = re.compile(
    r"\b(?:almanac|drobek)://knowledge/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b", re.IGNORECASE
)


def clean(what: str, text: str, most: int, *, is_line: bool = False) -> str:
    """A text as it is kept, or an error that names the argument it was given as."""
    if len(text) > most:
        raise BadRequest(f"{what}: has more than {most:,} characters.", remedy="Say it in fewer, or in several notes.")
    kept = _UNSEEN.sub("", _LINE_END.sub("\n", text))
    kept = " ".join(kept.split()) if is_line else kept
    if not kept.strip():
        raise BadRequest(f"{what}: says nothing.", remedy="Give it at least one character that can be seen.")
    return kept


def tags_of(given: Iterable[str]) -> tuple[str, ...]:
    """Tags in lower-case kebab-case, each once; an error for one that cannot be written so."""
    found = dict.fromkeys(lowered(tag) for tag in given)
    for tag in found:
        if len(tag) > LONGEST_TAG or not _KEBAB.fullmatch(tag):
            raise BadRequest(
                "tags: one of them cannot be written in kebab-case.",
                remedy=f"Use letters and digits with - between words, such as release-notes; {LONGEST_TAG} at most.",
            )
    return tuple(found)


def lowered(tag: str) -> str:
    """A tag in small letters, with - between its words."""
    return _BETWEEN.sub("-", tag.strip().lower())


def parse_timestamp(what: str, text: str) -> int:
    """A moment that was given in ISO-8601."""
    try:
        moment = clock.parse_timestamp(text)
        clock.format_timestamp(moment)  # in UTC it may lie beyond the years that can be shown
        return moment
    except (ValueError, OverflowError):
        raise BadRequest(
            f"{what}: is not a moment in ISO-8601.", remedy="Write it like 2027-01-31T09:00:00Z."
        ) from None


def future(what: str, text: str) -> int:
    """A moment that was given in ISO-8601 and is still to come."""
    moment = parse_timestamp(what, text)
    if moment <= clock.now():
        raise BadRequest(f"{what}: is not in the future.", remedy="Leave it out for a note that does not expire.")
    return moment


def id_of(what: str, text: str) -> str:
    """A note's id as it is kept, from the UUID that was given."""
    try:
        return str(uuid.UUID(text)) if len(text) in (32, 36) else _refuse(what)
    except ValueError:
        return _refuse(what)


def addresses(text: str) -> tuple[str, ...]:
    """The notes whose addresses stand in a text, each once."""
    return tuple(dict.fromkeys(match.lower() for match in _ADDRESS.findall(text)))


def _refuse(what: str) -> str:
    raise BadRequest(f"{what}: is not a UUID.", remedy="Use an id as it was given when the note was stored or found.")
