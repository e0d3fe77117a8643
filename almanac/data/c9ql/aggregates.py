"""The SQL of aggregates, and of the functions that read the rows before or around a row."""

from dataclasses import dataclass

from sqlglot import exp

from almanac.data.c9ql.dates import read_duration
from almanac.data.c9ql.errors import C9qlError
from almanac.data.c9ql.scalars import Arguments, interval
from almanac.data.c9ql.values import (
    Typed,
    cast,
    copies,
    func,
    integer,
    number_literal,
    string,
    to_boolean,
    to_number,
    to_text,
    to_timestamp,
    unify,
)
from almanac.data.fields import DECIMAL, INTEGER, TEXT, Kind, list_of

MAX_WINDOW_ROWS = 1_000_000


def emit_aggregate(given: Arguments, row: exp.Expr | None) -> Typed:
    """Return the SQL of an aggregate; `row` is the column with the row's number, for results that have an order."""
    if not given.values:
        return Typed(func("count", exp.Star()), INTEGER)
    match given.function:
        case "count":
            return Typed(func("count", _countable(given[0])), INTEGER)
        case "distinct":
            return Typed(func("count", exp.Distinct(expressions=[_countable(given[0])])), INTEGER)
        case "min" | "max":
            value = to_text(given[0]) if given[0].is_json else given[0]
            return Typed(func(given.function, value.sql), value.type)
        case "array":
            return _array(given, row)
        case "group_concat":
            text, separator = to_text(given[0]).sql, string(given.literal(1, ","))
            return Typed(func("string_agg", text, _ordered(separator, row)), TEXT)
        case _:
            return _number(given)


def _countable(value: Typed) -> exp.Expr:
    return to_text(value).sql if value.is_json else value.sql


def _number(given: Arguments) -> Typed:
    number = to_number(given[0], f"{given.function} needs numbers")
    decimal = cast(number.sql, Kind.DECIMAL)
    match given.function:
        case "sum" if number.kind == Kind.INTEGER:
            return Typed(cast(func("sum", number.sql), Kind.INTEGER), INTEGER)
        case "sum" | "avg" | "median":
            return Typed(func(given.function, decimal), DECIMAL)
        case "sd":
            return Typed(func("stddev_samp", decimal), DECIMAL)
        case _:
            return Typed(func("quantile_cont", decimal, number_literal(repr(_percent(given) / 100)).sql), DECIMAL)


def _percent(given: Arguments) -> float:
    digits = to_number(given[1]).literal
    if digits is None or not 0 <= float(digits) <= 100:
        raise C9qlError("the second argument of percentile must be a number from 0 to 100.", at=given.at)
    return float(digits)


def _flag(given: Arguments, position: int) -> bool:
    if position >= len(given):
        return False
    literal = to_boolean(given[position], f"argument {position + 1} of array must be true or false").literal
    return literal == "true"


def _array(given: Arguments, row: exp.Expr | None) -> Typed:
    value, dedupe, filter_null = given[0], _flag(given, 1), _flag(given, 2)
    if dedupe:
        collected = func("list", exp.Distinct(expressions=[value.sql]))
    else:
        collected = func("list", _ordered(value.sql, row))
    if filter_null:
        present = exp.Not(this=exp.Is(this=copies(value.sql), expression=exp.Null()))
        collected = exp.Filter(this=collected, expression=exp.Where(this=present))
    if dedupe:
        collected = func("list_sort", collected, string("ASC"), string("NULLS LAST"))
    return Typed(func("coalesce", collected, exp.Array(expressions=[])), list_of(value.type))


def _ordered(value: exp.Expr, row: exp.Expr | None) -> exp.Expr:
    if row is None:
        return value
    return exp.Order(this=value, expressions=[exp.Ordered(this=row.copy(), desc=False, nulls_first=False)])


@dataclass(frozen=True, slots=True)
class Frame:
    """The window of a call: its partition and its order."""

    partition: list[exp.Expr]
    order: list[exp.Ordered]

    def over(self, call: exp.Expr, spec: exp.WindowSpec | None = None) -> exp.Expr:
        """Return the call over this window."""
        order = exp.Order(expressions=[each.copy() for each in self.order]) if self.order else None
        partition = [each.copy() for each in self.partition]
        return exp.Window(this=call, partition_by=partition, order=order, spec=spec, over="OVER")


def emit_rolling(given: Arguments, frame: Frame) -> Typed:
    """Return the SQL of a function over the rows up to this one. The groups among its arguments are in the frame."""
    if given.function == "lag":
        return _lag(given, frame)
    number = to_number(given[0], f"{given.function} needs numbers")
    decimal = Typed(cast(number.sql, Kind.DECIMAL), DECIMAL)
    match given.function:
        case "accumulate":
            total = frame.over(func("sum", number.sql), _rows("UNBOUNDED"))
            return Typed(cast(total, number.kind or Kind.INTEGER), number.type)
        case "delta":
            return Typed(_difference(number, frame), number.type)
        case "growth":
            before = func("nullif", frame.over(func("lag", copies(decimal.sql))), integer(0))
            ratio = exp.Div(this=exp.Paren(this=_difference(decimal, frame)), expression=before)
            return Typed(exp.Mul(this=ratio, expression=number_literal("100.0").sql), DECIMAL)
        case "sma":
            rows = integer(given.whole(1, 1, 1, MAX_WINDOW_ROWS) - 1)
            return Typed(frame.over(func("avg", decimal.sql), _rows(rows)), DECIMAL)
        case "cma":
            return Typed(frame.over(func("avg", decimal.sql), _rows("UNBOUNDED")), DECIMAL)
        case _:
            return _time_average(given, decimal, frame)


def _rows(start: "str | exp.Expr", kind: str = "ROWS") -> exp.WindowSpec:
    return exp.WindowSpec(kind=kind, start=start, start_side="PRECEDING", end="CURRENT ROW")


def _difference(number: Typed, frame: Frame) -> exp.Expr:
    before = frame.over(func("lag", copies(number.sql)))
    return exp.Paren(this=exp.Sub(this=number.sql, expression=before))


def _lag(given: Arguments, frame: Frame) -> Typed:
    offset = integer(given.whole(1, 1, 0, MAX_WINDOW_ROWS))
    if len(given) < 3:
        return Typed(frame.over(func("lag", given[0].sql, offset)), given[0].type)
    (value, default), data_type = unify([given[0], given[2]])
    return Typed(frame.over(func("lag", value.sql, offset, default.sql)), data_type)


def _time_average(given: Arguments, number: Typed, frame: Frame) -> Typed:
    duration = read_duration(given.literal(2), given[2].at)
    if duration.months + duration.seconds <= 0:
        raise C9qlError("the window of tma must be longer than nothing.", at=given.at)
    # A window of five days has five days: it begins just after the same time five days before.
    window = exp.Paren(this=exp.Sub(this=interval(duration), expression=func("to_microseconds", integer(1))))
    moment = exp.Ordered(this=to_timestamp(given[1]).sql, desc=False, nulls_first=False)
    by_time = Frame(frame.partition, [moment])
    return Typed(by_time.over(func("avg", number.sql), _rows(window, "RANGE")), DECIMAL)
