"""The SQL of the functions that give a value for each row."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from almanac.data.c9ql.dates import Duration, read_duration, to_strftime
from almanac.data.c9ql.errors import C9qlError
from almanac.data.c9ql.placeholders import Context
from almanac.data.c9ql.values import (
    NUMERIC,
    Typed,
    cast,
    copies,
    func,
    integer,
    moment_literal,
    number_literal,
    string,
    to_json,
    to_moment,
    to_number,
    to_text,
    to_timestamp,
    unify,
)
from almanac.data.fields import DATE, DECIMAL, INTEGER, TEXT, TIMESTAMP, DataType, Kind, list_of

EARTH_RADIUS = {"km": 6371.0088, "mi": 3958.7613, "m": 6371008.8}
MAX_DIGITS = 15
MAX_PARTS = 1_000_000_000  # of a text between separators


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call."""

    function: str
    values: list[Typed]
    context: Context
    at: int

    def __getitem__(self, position: int) -> Typed:
        return self.values[position]

    def __len__(self) -> int:
        return len(self.values)

    def literal(self, position: int, default: str | None = None) -> str:
        """Return an argument that must be a literal."""
        if position >= len(self.values) and default is not None:
            return default
        value = self.values[position]
        if value.literal is None:
            raise C9qlError(f"argument {position + 1} of {self.function} must be a literal.", at=value.at or self.at)
        return value.literal

    def whole(self, position: int, default: int, low: int, high: int) -> int:
        """Return an argument that must be a whole number between two bounds."""
        text = self.literal(position, str(default))
        if not text.lstrip("-").isdigit() or not low <= int(text[:12]) <= high:
            raise C9qlError(f"argument {position + 1} of {self.function} must be a whole number from {low} to {high}.",
                            at=self.at)  # fmt: skip
        return int(text)


Emit = Callable[[Arguments], Typed]


def emit_scalar(function: str, values: list[Typed], context: Context, at: int) -> Typed:
    """Return the SQL of a call."""
    return SCALARS[function](Arguments(function, values, context, at))


# Numbers


def _number(name: str) -> Emit:
    def emit(given: Arguments) -> Typed:
        # DuckDB gives NaN outside of the domain; here such a result is null.
        result = func(name, cast(to_number(given[0]).sql, Kind.DECIMAL))
        return Typed(func("nullif", result, cast(string("nan"), Kind.DECIMAL)), DECIMAL)

    return emit


def _abs(given: Arguments) -> Typed:
    number = to_number(given[0])
    return Typed(func("abs", number.sql), number.type)


def _round_to_whole(name: str) -> Emit:
    def emit(given: Arguments) -> Typed:
        number = to_number(given[0])
        if number.kind == Kind.INTEGER:
            return Typed(number.sql, INTEGER)
        return Typed(func(name, cast(number.sql, Kind.DECIMAL)), DECIMAL)

    return emit


def _round(given: Arguments) -> Typed:
    number, digits = to_number(given[0]), given.whole(1, 0, -MAX_DIGITS, MAX_DIGITS)
    return Typed(func("round", cast(number.sql, Kind.DECIMAL), integer(digits)), DECIMAL)


def _haversine(given: Arguments) -> Typed:
    unit = given.literal(4, "km").lower()
    if unit not in EARTH_RADIUS:
        raise C9qlError(f"'{unit}' is not a unit of length.", at=given.at, remedy=f"Use {', '.join(EARTH_RADIUS)}.")
    lat1, lon1, lat2, lon2 = (func("radians", cast(to_number(given[each]).sql, Kind.DECIMAL)) for each in range(4))

    def half_sine_squared(low: exp.Expr, high: exp.Expr) -> exp.Expr:
        half = exp.Div(this=exp.Paren(this=exp.Sub(this=high, expression=low)), expression=number_literal("2.0").sql)
        return func("pow", func("sin", half), integer(2))

    cosines = exp.Mul(this=func("cos", copies(lat1)), expression=func("cos", copies(lat2)))
    along = exp.Mul(this=cosines, expression=half_sine_squared(lon1, lon2))
    chord = func("sqrt", exp.Add(this=half_sine_squared(lat1, lat2), expression=along))
    angle = func("asin", func("least", number_literal("1.0").sql, chord))
    return Typed(exp.Mul(this=number_literal(str(2 * EARTH_RADIUS[unit])).sql, expression=angle), DECIMAL)


# Dates


def _truncated(part: str, data_type: DataType) -> Emit:
    def emit(given: Arguments) -> Typed:
        truncated = func("date_trunc", string(part), to_timestamp(given[0]).sql)
        return Typed(cast(truncated, data_type.kind), data_type)

    return emit


def _part(name: str) -> Emit:
    def emit(given: Arguments) -> Typed:
        return Typed(func(name, to_timestamp(given[0]).sql), INTEGER)

    return emit


def _day_of_week(given: Arguments) -> Typed:
    day = func("dayofweek", to_timestamp(given[0]).sql)
    return Typed(exp.Paren(this=exp.Add(this=day, expression=integer(1))), INTEGER)


def _str_to_date(given: Arguments) -> Typed:
    pattern = to_strftime(given.literal(1), given[1].at)
    return Typed(func("try_strptime", to_text(given[0]).sql, string(pattern)), TIMESTAMP)


def _date_format(given: Arguments) -> Typed:
    pattern = to_strftime(given.literal(1), given[1].at)
    return Typed(func("strftime", to_timestamp(given[0]).sql, string(pattern)), TEXT)


def interval(duration: Duration) -> exp.Expr:
    """Return a duration as an SQL interval."""
    if duration.months:
        return func("to_months", integer(duration.months))
    if duration.is_whole_days:
        return func("to_days", integer(duration.seconds // 86_400))
    return func("to_seconds", integer(duration.seconds))


def _date_add(given: Arguments) -> Typed:
    duration, moment = read_duration(given.literal(1), given[1].at), to_moment(given[0])
    kind = Kind.DATE if moment.kind == Kind.DATE and duration.is_whole_days else Kind.TIMESTAMP
    later = exp.Paren(this=exp.Add(this=to_timestamp(moment).sql, expression=interval(duration)))
    return Typed(cast(later, kind), DataType(kind))


def _between(part: str) -> Emit:
    def emit(given: Arguments) -> Typed:
        moments = (to_timestamp(each).sql for each in given.values)
        return Typed(func("date_sub", string(part), *moments), INTEGER)

    return emit


def _epoch_seconds(given: Arguments) -> Typed:
    seconds = func("floor", func("epoch", to_timestamp(given[0]).sql))
    return Typed(cast(seconds, Kind.INTEGER), INTEGER)


# Texts


def _text(name: str) -> Emit:
    def emit(given: Arguments) -> Typed:
        return Typed(func(name, *(to_text(each).sql for each in given.values)), TEXT)

    return emit


def _length(given: Arguments) -> Typed:
    if given[0].kind == Kind.LIST and not given[0].is_json:
        return Typed(func("len", given[0].sql), INTEGER)
    return Typed(func("length", to_text(given[0]).sql), INTEGER)


def _substring(given: Arguments) -> Typed:
    start = [integer(given.whole(1, 1, 1, 10**9))]
    length = [integer(given.whole(2, 0, 0, 10**9))] if len(given) > 2 else []
    return Typed(func("substring", to_text(given[0]).sql, *start, *length), TEXT)


def _separator(given: Arguments) -> exp.Expr:
    separator = given.literal(1)
    if not separator:
        raise C9qlError("the separator is empty.", at=given.at)
    return string(separator)


def _substring_before(given: Arguments) -> Typed:
    return Typed(func("split_part", to_text(given[0]).sql, _separator(given), integer(1)), TEXT)


def _substring_after(given: Arguments) -> Typed:
    # The list form contains the text once: nested calls would double it each time.
    parts = func("string_split", to_text(given[0]).sql, _separator(given))
    rest = func("list_slice", parts, integer(2), integer(MAX_PARTS))
    return Typed(func("array_to_string", rest, _separator(given)), TEXT)


def _regex_extract(given: Arguments) -> Typed:
    pattern, group = string(given.literal(1)), integer(given.whole(2, 0, 0, 9))
    found = func("regexp_extract_all", to_text(given[0]).sql, pattern, group)
    return Typed(func("list_extract", found, integer(1)), TEXT)


def _regex_replace(given: Arguments) -> Typed:
    # Java writes the groups of a replacement as $1, DuckDB as \1.
    replacement = given.literal(2).replace("\\", "\\\\")
    for group in range(10):
        replacement = replacement.replace(f"${group}", f"\\{group}")
    text, pattern = to_text(given[0]).sql, string(given.literal(1))
    return Typed(func("regexp_replace", text, pattern, string(replacement), string("g")), TEXT)


def _replace(given: Arguments) -> Typed:
    return Typed(func("replace", *(to_text(each).sql for each in given.values)), TEXT)


def _split(given: Arguments) -> Typed:
    return Typed(func("string_split", to_text(given[0]).sql, _separator(given)), list_of(TEXT))


def _ifnull(given: Arguments) -> Typed:
    value, default = given.values
    if default.literal is not None and default.kind == Kind.TEXT and value.kind in NUMERIC:
        value = to_text(value)
    values, data_type = unify([value, default])
    return Typed(func("coalesce", *(each.sql for each in values)), data_type)


def _now(given: Arguments) -> Typed:
    return Typed(moment_literal(given.context.now).sql, TIMESTAMP)


SCALARS: dict[str, Emit] = {
    "abs": _abs,
    **{each: _number(each) for each in ("acos", "asin", "atan", "cbrt", "cos", "cosh", "sqrt", "tan", "sin", "exp")},
    **{each: _number(each) for each in ("ln", "log10")},
    "ceil": _round_to_whole("ceil"),
    "floor": _round_to_whole("floor"),
    "round": _round,
    "haversine": _haversine,
    "date": lambda given: Typed(cast(to_moment(given[0]).sql, Kind.DATE), DATE),
    "minute": _truncated("minute", TIMESTAMP),
    "hour": _truncated("hour", TIMESTAMP),
    **{each: _truncated(each, DATE) for each in ("week", "month", "quarter", "year")},
    "month_only": _part("month"),
    "day_of_week": _day_of_week,
    "day_of_month": _part("day"),
    "week_of_year": _part("week"),
    "str_to_date": _str_to_date,
    "date_format": _date_format,
    "date_add": _date_add,
    **{f"{each}s_between": _between(each) for each in ("minute", "hour", "day", "month")},
    "now": _now,
    "epoch_secs": _epoch_seconds,
    "epoch_ms": lambda given: Typed(func("epoch_ms", to_timestamp(given[0]).sql), INTEGER),
    **{each: _text(each) for each in ("upper", "lower", "trim", "concat")},
    "length": _length,
    "substring": _substring,
    "substring_before": _substring_before,
    "substring_after": _substring_after,
    "regex_extract": _regex_extract,
    "regex_replace": _regex_replace,
    "replace": _replace,
    "split": _split,
    "parse": lambda given: to_json(given[0]),
    "ifnull": _ifnull,
}
