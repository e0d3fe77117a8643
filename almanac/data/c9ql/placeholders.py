"""Date tokens and runtime parameters: the texts that get their value when a query runs.

{$c9_today-1d:yyyyMMdd}             a token, a shift, and a pattern; the last two may be missing
$c9_region$(West)$[Region]$         a parameter, its default and its label; the last two may be missing
$c9_region${list|"|,}$(A,B)$        all values of the parameter
$c9_day${date|yyyyMMdd}$            the value as a date in a pattern
$c9_period${from|yyyy-MM-dd}$       the first or, with `to`, the last value
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from almanac.data.c9ql.dates import Duration, add_duration, format_moment, read_date, read_duration
from almanac.data.c9ql.errors import C9qlError, did_you_mean
from almanac.data.c9ql.lexer import DATE_TOKEN, PARAMETER

_TOKEN = re.compile(r"\{\$c9_([a-z_]+?)(?:([+-]\d+\w+))?(?::([^{}]*))?\}", re.IGNORECASE)
_EMBEDDED = re.compile(f"{DATE_TOKEN.pattern}|{PARAMETER.pattern}")
TOKENS = ("now", "today", "yesterday", *(f"{which}{unit}" for unit in ("week", "month", "quarter", "year")
          for which in ("this", "last")))  # fmt: skip

Value = str | date | datetime | tuple[str, ...] | None


@dataclass(frozen=True)
class Context:
    """The moment of the query (UTC, without a time zone) and the values of its parameters, by name without `$c9_`.

    Parameters without a value are null if `is_trial` is true, when only the fields of the result are of interest.
    """

    now: datetime
    parameters: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    is_trial: bool = False


def resolve(source: str, context: Context, at: int) -> Value:
    """Return the value of a date token or parameter."""
    if source.startswith("{"):
        return _resolve_token(source, context, at)
    return _resolve_parameter(source, context, at)


def substitute(text: str, context: Context, at: int) -> Value:
    """Return a text with the date tokens and parameters in it replaced. A text that is one token has its value."""
    if "$c9_" not in text:
        return text
    if DATE_TOKEN.fullmatch(text) or PARAMETER.fullmatch(text):
        return resolve(text, context, at)
    return _EMBEDDED.sub(lambda found: as_text(resolve(found[0], context, at)), text)


def as_text(value: Value) -> str:
    """Return a value as text."""
    if isinstance(value, tuple):
        return ",".join(value)
    if value is None:
        return ""
    return value if isinstance(value, str) else str(value)


def _resolve_token(source: str, context: Context, at: int) -> Value:
    found = _TOKEN.fullmatch(source)
    name = found[1].lower() if found else ""
    if found is None or name not in TOKENS:
        raise C9qlError(f"there is no date token '{source}'.", at=at, remedy=did_you_mean(name, TOKENS))
    shift = read_duration(found[2], at) if found[2] else Duration()
    moment = _shifted(_start(name, context.now), shift, at)
    if found[3]:
        return format_moment(moment, found[3], at)
    return moment if name == "now" or not shift.is_whole_days else moment.date()


def _start(name: str, now: datetime) -> datetime:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    month = today.replace(day=1)
    if name == "now":
        return now
    if name in ("today", "yesterday"):
        return today - timedelta(days=name == "yesterday")
    back = -1 if name.startswith("last") else 0
    match name[4:]:
        case "week":
            return today - timedelta(days=today.weekday() - 7 * back)
        case "month":
            return add_duration(month, Duration(months=back))
        case "quarter":
            return add_duration(month.replace(month=(month.month - 1) // 3 * 3 + 1), Duration(months=3 * back))
        case _:
            return add_duration(month.replace(month=1), Duration(months=12 * back))


def _shifted(moment: datetime, shift: Duration, at: int) -> datetime:
    try:
        return add_duration(moment, shift)
    except (ValueError, OverflowError):
        raise C9qlError("the date is outside of the years 1 to 9999.", at=at) from None


def _resolve_parameter(source: str, context: Context, at: int) -> Value:
    found = PARAMETER.fullmatch(source)
    assert found is not None, "the parser read it with the same pattern"
    form, _, rest = (found["form"] or "").removesuffix("}$").removeprefix("{").partition("|")
    values = _values(found["name"], found["default"], form == "list", context)
    if not values and context.is_trial:
        return None
    if not values:
        raise C9qlError(f"the parameter '$c9_{found['name']}$' has no value.", at=at,
                        remedy="Give it one, or write a default: "
                        f"$c9_{found['name']}$(default)$.")  # fmt: skip
    match form:
        case "":
            return values[0] if len(values) == 1 else values
        case "list":
            return values
        case "date" | "from" | "to":
            return _as_date(values[-1] if form == "to" else values[0], rest, at)
        case _:
            raise C9qlError(f"a parameter has no form '{form}'.", at=at, remedy="Use list, date, from or to.")


def _values(name: str, default: str | None, is_list: bool, context: Context) -> tuple[str, ...]:
    given = tuple(context.parameters.get(name, ()))
    if given or default is None:
        return given
    return tuple(each.strip() for each in default.split(",")) if is_list else (default,)


def _as_date(value: str, pattern: str, at: int) -> Value:
    moment = read_date(value)
    if moment is None:
        raise C9qlError(f"'{value}' is not a date.", at=at, remedy="Write it as 2026-01-31.")
    if not pattern:
        return moment
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    return format_moment(moment, pattern, at)
