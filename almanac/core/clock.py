"""Timestamps and durations. A timestamp is an integer: microseconds since 1970, UTC."""

import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
MAX_DURATION = 36_525 * DAY  # a hundred years

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
_SPAN = re.compile(r"^\s*(\d{1,9})\s*([smhdw])\s*$")


def now() -> int:
    """The current timestamp."""
    return time.time_ns() // 1000


def parse_duration(text: str) -> int:
    """The duration that a text gives: `90s`, `15m`, `1h`, `30d`, `2w`."""
    match = _SPAN.match(text)
    if not match or int(match[1]) == 0:
        raise ValueError(
            f"{text!r} is not a length of time; write a number and a unit, such as 90s, 15m, 1h, 30d or 2w"
        )
    length = int(match[1]) * _UNITS[match[2]]
    if length > MAX_DURATION:
        raise ValueError(f"{text!r} is longer than a hundred years")
    return length


@lru_cache(maxsize=1024)
def format_timestamp(moment: int | None) -> str | None:
    """The timestamp in ISO 8601, UTC, to the millisecond."""
    if moment is None:
        return None
    return (_EPOCH + timedelta(microseconds=moment)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_timestamp_exact(moment: int | None) -> str | None:
    """The timestamp in ISO 8601, UTC, to the microsecond. `parse_timestamp` restores it exactly."""
    return None if moment is None else (_EPOCH + timedelta(microseconds=moment)).isoformat().replace("+00:00", "Z")


def parse_timestamp(text: str) -> int:
    """The timestamp of an ISO 8601 date or time, in UTC if it names no zone. ValueError for any other text."""
    given = datetime.fromisoformat(text)
    return ((given if given.tzinfo else given.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def month(moment: int) -> str:
    """The UTC calendar month, `2026-11`: the period of usage counters."""
    return _month_of_day(moment // DAY)


@lru_cache(maxsize=4)
def _month_of_day(day: int) -> str:
    return datetime.fromtimestamp(day * DAY / SECOND, UTC).strftime("%Y-%m")
