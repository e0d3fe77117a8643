"""Dates: Java patterns, durations, and the texts that are recognised as dates."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from almanac.data.c9ql.errors import C9qlError

# The meaning of a run of letters in a Java pattern, as strftime directives; the last one counts for longer runs.
LETTERS = {
    "y": ("%Y", "%y", "%Y"),
    "Y": ("%Y", "%y", "%Y"),  # the year of the week in Java; people mean the year
    "M": ("%-m", "%m", "%b", "%B"),
    "d": ("%-d", "%d"),
    "E": ("%a", "%a", "%a", "%A"),
    "H": ("%-H", "%H"),
    "h": ("%-I", "%I"),
    "m": ("%-M", "%M"),
    "s": ("%-S", "%S"),
    "S": ("%g",),
    "a": ("%p",),
    "D": ("%-j", "%-j", "%j"),
    "w": ("%V",),
    "u": ("%u",),
}
_PIECE = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+|'")

# Texts that are recognised as dates: ISO forms, and forms with the year first or the month as a word.
RECOGNISED = ("%Y/%m/%d", "%Y%m%d", "%d-%b-%Y", "%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y")

UNITS = {
    "s": "second",
    "min": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
    "m": "month",
    "q": "quarter",
    "y": "year",
}
_DURATION = re.compile(r"\s*([+-]?)\s*(\d{1,6})\s*(s|min|h|d|w|m|q|y)\s*", re.IGNORECASE)
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


@dataclass(frozen=True, slots=True)
class Duration:
    """A number of months or of seconds."""

    months: int = 0
    seconds: int = 0

    @property
    def is_whole_days(self) -> bool:
        """Whether a date and the duration give a date."""
        return self.seconds % 86_400 == 0


def to_strftime(pattern: str, at: int) -> str:
    """Return the strftime format of a Java pattern such as `ddMMMyyyy`."""
    return "".join(_directives(pattern, at))


def _directives(pattern: str, at: int) -> Iterator[str]:
    for found in _PIECE.finditer(pattern):
        letter, run = found[2], found[0]
        if letter is None:
            plain = "'" if run == "''" else found[1].replace("''", "'") if found[1] is not None else run
            yield plain.replace("%", "%%")
        elif letter in LETTERS:
            yield LETTERS[letter][min(len(run), len(LETTERS[letter])) - 1]
        else:
            raise C9qlError(
                f"'{run}' has no meaning in a date pattern.",
                at=at,
                remedy=f"Use letters of {' '.join(LETTERS)}, and put other text in single quotes.",
            )


def format_moment(moment: datetime, pattern: str, at: int) -> str:
    """Return a moment in a Java pattern."""
    directives = to_strftime(pattern, at).replace("%g", f"{moment.microsecond // 1000:03d}")
    return moment.strftime(directives.replace("%Y", f"{moment.year:04d}"))


def read_date(text: str) -> date | datetime | None:
    """Return the date or timestamp that a text has in a recognised form; None if it has none."""
    stripped = text.strip()
    try:
        if re.fullmatch(r"\d{4}-\d{1,2}-\d{1,2}", stripped):
            return datetime.strptime(stripped, "%Y-%m-%d").date()
        moment = _read_iso(stripped)
        if moment is not None:
            return moment
    except ValueError:
        return None
    for form in RECOGNISED:
        try:
            return datetime.strptime(stripped, form).date()
        except ValueError:
            continue
    return None


def _read_iso(text: str) -> datetime | None:
    if not re.match(r"\d{4}-\d\d-\d\d[T ]\d", text):
        return None
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is None else (moment - (moment.utcoffset() or timedelta())).replace(tzinfo=None)


def read_duration(text: str, at: int) -> Duration:
    """Return the duration of a text such as `5d` or `-1m`."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise C9qlError(
            f"'{text}' is not a duration.",
            at=at,
            remedy="Write a number and one of s, min, h, d, w, m, q, y, such as '5d'.",
        )
    count = int(found[2]) * (-1 if found[1] == "-" else 1)
    unit = UNITS[found[3].lower()]
    if unit in _MONTHS:
        return Duration(months=count * _MONTHS[unit])
    return Duration(seconds=count * _SECONDS[unit])


def add_duration(moment: datetime, duration: Duration) -> datetime:
    """Return the moment that is so much later; a day that its month does not have becomes the last one."""
    months = moment.year * 12 + moment.month - 1 + duration.months
    year, month = divmod(months, 12)
    first = datetime(year, month + 1, 1)
    last_day = (datetime(year + (month == 11), (month + 1) % 12 + 1, 1) - timedelta(days=1)).day
    day = min(moment.day, last_day)
    return (
        first.replace(day=day)
        + (moment - moment.replace(hour=0, minute=0, second=0, microsecond=0))
        + timedelta(seconds=duration.seconds)
    )
