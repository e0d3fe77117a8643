"""Comparisons of values with different types.

A literal takes the type of the value beside it. A timestamp is compared with a date by the day.
"""

from datetime import datetime, timedelta

from sqlglot import exp

from almanac.data.c9ql.dates import read_date
from almanac.data.c9ql.errors import C9qlError
from almanac.data.c9ql.tree import BinaryOperator
from almanac.data.c9ql.values import (
    NUMERIC,
    TEMPORAL,
    Typed,
    boolean_literal,
    cast,
    func,
    moment_literal,
    null,
    string,
    to_boolean,
    to_moment,
    to_number,
    to_text,
)
from almanac.data.fields import BOOLEAN, Kind

OPERATORS: dict[str, type[exp.Binary]] = {
    "=": exp.EQ,
    "!=": exp.NEQ,
    "<": exp.LT,
    "<=": exp.LTE,
    ">": exp.GT,
    ">=": exp.GTE,
}
MIRRORED: dict[str, BinaryOperator] = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


def compare(operator: BinaryOperator, left: Typed, right: Typed) -> Typed:
    """Return the comparison of two values."""
    if left.kind is None or right.kind is None:
        return _compare_null(operator, left, right)
    left, right = _alike(left, right)
    day = _compare_by_day(operator, left, right)
    if day is None:
        day = OPERATORS[operator](this=left.sql, expression=right.sql)
    return Typed(exp.Paren(this=day), BOOLEAN, at=left.at)


def _compare_null(operator: BinaryOperator, left: Typed, right: Typed) -> Typed:
    """Compare with the word null: `= null` means `is null`."""
    if operator not in ("=", "!="):
        return Typed(cast(exp.Null(), Kind.BOOLEAN), BOOLEAN)
    return is_null(right if left.kind is None else left, negated=operator == "!=")


def is_null(value: Typed, *, negated: bool) -> Typed:
    """Return the test for null."""
    sql = to_text(value).sql if value.is_json else value.sql
    test = exp.Is(this=sql, expression=exp.Null())
    return Typed(exp.Not(this=test) if negated else exp.Paren(this=test), BOOLEAN, at=value.at)


def _alike(left: Typed, right: Typed) -> tuple[Typed, Typed]:
    """Return both values in a type in which they can be compared."""
    if left.is_json or right.is_json:
        left, right = (to_text(each) if each.is_json else each for each in (left, right))
    if left.kind in (Kind.LIST, Kind.RECORD) or right.kind in (Kind.LIST, Kind.RECORD):
        if left.type == right.type:
            return left, right
        raise C9qlError("a list or record cannot be compared with another type.", at=left.at)
    if left.literal is not None and right.literal is None:
        left = _literal_like(left, right)
    elif right.literal is not None and left.literal is None:
        right = _literal_like(right, left)
    return _values_alike(left, right)


def _literal_like(literal: Typed, value: Typed) -> Typed:
    purpose = "the comparison needs one"
    if value.kind == Kind.TEXT:
        return to_moment_if_date(literal)
    if value.kind in NUMERIC:
        return to_number(literal, purpose)
    if value.kind in TEMPORAL:
        return to_moment(literal, purpose)
    if literal.kind in NUMERIC and literal.literal in ("0", "1"):
        return boolean_literal(literal.literal == "1", literal.at)
    return to_boolean(literal, purpose)


def to_moment_if_date(literal: Typed) -> Typed:
    """Return a literal beside a text: a date stays one, so that the text is compared as a date."""
    return literal if literal.kind in TEMPORAL else to_text(literal)


def _values_alike(left: Typed, right: Typed) -> tuple[Typed, Typed]:
    kinds = {left.kind, right.kind}
    if kinds == {Kind.TEXT} or kinds <= set(NUMERIC) or kinds <= set(TEMPORAL) or kinds == {Kind.BOOLEAN}:
        return left, right
    if kinds & set(TEMPORAL) and not kinds & {Kind.BOOLEAN}:
        return to_moment(left), to_moment(right)
    if kinds & set(NUMERIC):
        return to_number(left), to_number(right)
    return to_text(left), to_text(right)


def _compare_by_day(operator: BinaryOperator, left: Typed, right: Typed) -> exp.Expr | None:
    """Compare a timestamp with a date; None if neither side is one.

    A date literal becomes a range of timestamps, so that DuckDB can skip the parts of a file outside of it.
    """
    if (left.kind, right.kind) == (Kind.DATE, Kind.TIMESTAMP):
        return _compare_by_day(MIRRORED[operator], right, left)
    if (left.kind, right.kind) != (Kind.TIMESTAMP, Kind.DATE):
        return None
    day = read_date(right.literal) if right.literal is not None and operator not in ("=", "!=") else None
    if day is None:
        return OPERATORS[operator](this=cast(left.sql, Kind.DATE), expression=right.sql)
    start = datetime(day.year, day.month, day.day)
    bound = start + timedelta(days=1) if operator in ("<=", ">") else start
    before = operator in ("<", "<=")
    return (exp.LT if before else exp.GTE)(this=left.sql, expression=moment_literal(bound).sql)


def is_one_of(value: Typed, options: list[Typed], *, negated: bool) -> Typed:
    """Return the test for one of several values; null among the options counts as a value."""
    listed, tests = list[exp.Expr](), list[exp.Expr]()
    for each in options:
        plain = _plain_option(value, each)
        if plain is None:
            tests.append(compare("=", value, each).sql)
        else:
            listed.append(plain)
    if listed:
        tests.append(exp.Paren(this=exp.In(this=value.sql, expressions=listed)))
    found = any_of(tests)
    return Typed(exp.Not(this=found) if negated else found, BOOLEAN, at=value.at)


def _plain_option(value: Typed, option: Typed) -> exp.Expr | None:
    """Return the option if SQL's own `IN` compares the value with it as we do."""
    if value.kind is None or option.kind is None:
        return None
    left, right = _alike(value, option)
    is_by_day = {left.kind, right.kind} == {Kind.DATE, Kind.TIMESTAMP}
    return right.sql if left is value and not is_by_day else None


def any_of(conditions: list[exp.Expr]) -> exp.Expr:
    """Return the disjunction, as a balanced tree."""
    return _balanced(conditions, exp.Or)


def all_of(conditions: list[exp.Expr]) -> exp.Expr:
    """Return the conjunction, as a balanced tree."""
    return _balanced(conditions, exp.And)


def _balanced(conditions: list[exp.Expr], connector: type[exp.Connector]) -> exp.Expr:
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    left, right = _balanced(conditions[:half], connector), _balanced(conditions[half:], connector)
    return exp.Paren(this=connector(this=left, expression=right))


def like(value: Typed, pattern: Typed) -> exp.Expr:
    """Return whether a text contains another, in any case. In a literal pattern `%` stands for any text."""
    if value.kind is None or pattern.kind is None:
        return cast(null().sql, Kind.BOOLEAN)
    text, sought = to_text(value), to_text(pattern)
    if pattern.literal is None or "%" not in pattern.literal:
        return func("contains", func("lower", text.sql), func("lower", sought.sql))
    escaped = pattern.literal.replace("\\", "\\\\").replace("_", "\\_")
    test = exp.ILike(this=text.sql, expression=string(escaped))
    return exp.Paren(this=exp.Escape(this=test, expression=string("\\")))
