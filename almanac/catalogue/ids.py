"""Ids of the catalogue: 24 hexadecimal digits, the moment first, so that what is made later comes later."""

import re
import secrets

from almanac.core import clock

_ID = re.compile(r"[0-9a-f]{24}")
_last = [0]


def new() -> str:
    """An id that nothing has, behind all that this process has made before."""
    _last[0] = moment = max(clock.now(), _last[0] + 1)
    seconds, rest = divmod(moment, clock.SECOND)
    return f"{seconds:08x}{rest:05x}{secrets.randbits(44):011x}"


def is_id(text: str) -> bool:
    """Whether a text has the form of an id."""
    return _ID.fullmatch(text) is not None
