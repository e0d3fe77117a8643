"""The cursor of `resources/list`: where each kind of resource continues. Clients pass it back and do not read it.

A client may send any text. A cursor grants nothing: each page checks the caller's rights again.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import orjson
from pydantic import ConfigDict, Field, TypeAdapter

from almanac.core.arguments import MAX_ID
from almanac.core.errors import BadRequest

MAX_CURSOR_CHARS = 500
MAX_PAGES = 10

_Page = Annotated[int, Field(gt=1, le=MAX_PAGES)]
_Below = Annotated[dict[str, Annotated[int, Field(gt=0, le=MAX_ID)]], Field(min_length=1)]
_CONTENT = TypeAdapter(tuple[_Page, _Below], config=ConfigDict(strict=True))


@dataclass(frozen=True, slots=True)
class ResourceCursor:
    """The page, and the key below which each kind of resource continues. Kinds that are not named are at their end."""

    page: int = 1
    below: Mapping[str, int] = field(default_factory=dict[str, int])

    def encode(self) -> str:
        """Return the cursor as text."""
        return base64.urlsafe_b64encode(orjson.dumps([self.page, dict(self.below)])).decode()


def parse_cursor(text: str) -> ResourceCursor:
    """Return the cursor in a text. Raises BadRequest for a text that this server has not issued."""
    try:
        page, below = _CONTENT.validate_json(base64.b64decode(text[:MAX_CURSOR_CHARS], altchars=b"-_", validate=True))
    except ValueError:  # of the encoding, or of the content
        raise BadRequest("Unknown cursor.", remedy="Call resources/list without a cursor to begin again.") from None
    return ResourceCursor(page, below)
