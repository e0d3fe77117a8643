"""Ids of the catalogue: 24 hexadecimal digits that begin with the creation time, so that they sort by age."""

import re
import secrets

from almanac.core import clock

_ID = re.compile(r"[0-9a-f]{24}")
_last_time = [0]


def new() -> str:
    """A unique id that sorts after all ids made by this process before."""
    _last_time[0] = time = max(clock.now(), _last_time[0] + 1)
    seconds, microseconds = divmod(time, clock.SECOND)
    return f"{seconds:08x}{microseconds:05x}{secrets.randbits(44):011x}"


def is_id(text: str) -> bool:
    """Whether a text has the form of an id."""
    return _ID.fullmatch(text) is not None
