"""Ids of the catalogue: 24 hexadecimal digits, the moment first, so that what is made later comes later."""

import re
import secrets

from almanac.core import clock

_ID = re.compile(r"[0-9a-f]{24}")


def new() -> str:
    """An id that nothing has."""
    return f"{clock.now() // clock.SECOND:08x}{secrets.token_hex(8)}"


def is_id(text: str) -> bool:
    """Whether a text has the form of an id."""
    return _ID.fullmatch(text) is not None
