"""SQL expressions with their types, and the conversions between types.

A literal keeps the text that was written, because its type follows from the value that it is compared with.
"""

import re
from dataclasses import dataclass
from datetime import date, datetime

from sqlglot import exp

from almanac.data.c9ql.dates import RECOGNISED, read_date
from almanac.data.c9ql.errors import C9qlError
from almanac.data.fields import BOOLEAN, DECIMAL, INTEGER, JSON, TEXT, TIMESTAMP, DataType, Kind

MAX_REPEATED_NODES = 2_000  # of an expression that the SQL contains more than once
MAX_INTEGER_DIGITS = 18  # of a BIGINT
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
NUMERIC = (Kind.INTEGER, Kind.DECIMAL)
TEMPORAL = (Kind.DATE, Kind.TIMESTAMP)

SQL_TYPES = {
    Kind.TEXT: "VARCHAR",
    Kind.INTEGER: "BIGINT",
    Kind.DECIMAL: "DOUBLE",
    Kind.BOOLEAN: "BOOLEAN",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP",
}


@dataclass(frozen=True, slots=True)
class Typed:
    """An SQL expression and its type. `literal` is the text of a literal; the type of null is None."""

    sql: exp.Expr
    type: DataType | None
    literal: str | None = None
    at: int = 0

    @property
    def kind(self) -> Kind | None:
        """The kind of the value; None for null."""
        return None if self.type is None else self.type.kind

    @property
    def is_json(self) -> bool:
        """Whether the value is stored as JSON text, with contents that are not known."""
        return self.type is not None and (
            (self.type.kind == Kind.RECORD and not self.type.fields)
            or (self.type.kind == Kind.LIST and self.type.element is None)
        )


def func(name: str, *arguments: exp.Expr) -> exp.Expr:
    """Return the call of a DuckDB function."""
    return exp.Anonymous(this=name, expressions=list(arguments))


def identifier(name: str) -> exp.Identifier:
    """Return a quoted name."""
    return exp.Identifier(this=name, quoted=True)


def string(text: str) -> exp.Expr:
    """Return a string literal."""
    return exp.Literal.string(text)


def integer(number: int) -> exp.Expr:
    """Return an integer literal."""
    return exp.Literal.number(number) if number >= 0 else exp.Neg(this=exp.Literal.number(-number))


def cast(sql: exp.Expr, kind: Kind) -> exp.Expr:
    """Return the value in the SQL type of this kind; it fails if the value has no such form."""
    return exp.Cast(this=sql, to=exp.DataType.build(SQL_TYPES[kind], dialect="duckdb"))


def try_cast(sql: exp.Expr, kind: Kind) -> exp.Expr:
    """Return the value in the SQL type of this kind; null if the value has no such form."""
    return exp.TryCast(this=sql, to=exp.DataType.build(SQL_TYPES[kind], dialect="duckdb"))


def copies(sql: exp.Expr) -> exp.Expr:
    """Return an expression that the SQL may contain more than once; it must not be large."""
    if sum(1 for _ in sql.walk()) > MAX_REPEATED_NODES:
        raise C9qlError("the expression is too large.", remedy="Split it into several statements, separated by ';'.")
    return sql.copy()


def text_literal(text: str, at: int = 0) -> Typed:
    """Return a text as a value."""
    return Typed(string(text), TEXT, text, at)


def number_literal(digits: str, at: int = 0) -> Typed:
    """Return a number as a value: an integer, or a decimal if it has a point, an exponent or many digits."""
    if digits.lstrip("+-").isdigit() and len(digits.lstrip("+-0")) <= MAX_INTEGER_DIGITS:
        return Typed(integer(int(digits)), INTEGER, digits, at)
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise C9qlError(f"the number {digits[:20]} is too large.", at=at)
    # Without an exponent DuckDB would read a fixed-point number, whose products overflow.
    written = repr(abs(value))
    literal = exp.Literal.number(written if "e" in written else f"{written}e0")
    return Typed(exp.Neg(this=literal) if value < 0 else literal, DECIMAL, digits, at)


def moment_literal(moment: date | datetime, at: int = 0) -> Typed:
    """Return a date or timestamp as a value."""
    kind = Kind.TIMESTAMP if isinstance(moment, datetime) else Kind.DATE
    return Typed(cast(string(str(moment)), kind), DataType(kind), str(moment), at)


def boolean_literal(value: bool, at: int = 0) -> Typed:
    """Return true or false as a value."""
    return Typed(exp.Boolean(this=value), BOOLEAN, str(value).lower(), at)


def null(at: int = 0) -> Typed:
    """Return null as a value."""
    return Typed(exp.Null(), None, None, at)


def _null_of(data_type: DataType, at: int) -> Typed:
    """Return null in a type: DuckDB cannot choose between the forms of a function for a null without one."""
    return Typed(cast(exp.Null(), data_type.kind), data_type, at=at)


def to_text(value: Typed) -> Typed:
    """Return the value as text; a literal keeps its own text."""
    if value.literal is not None and value.kind not in TEMPORAL:
        return text_literal(value.literal, value.at)
    if value.kind == Kind.TEXT:
        return value
    if value.is_json:
        return Typed(func("json_extract_string", value.sql, string("$")), TEXT, at=value.at)
    if value.kind in (Kind.LIST, Kind.RECORD):
        # JSON, because the text form of DuckDB's own lists and records cannot be read by others.
        return Typed(cast(func("to_json", value.sql), Kind.TEXT), TEXT, at=value.at)
    return Typed(cast(value.sql, Kind.TEXT), TEXT, at=value.at)


def to_number(value: Typed, purpose: str = "a number is needed") -> Typed:
    """Return the value as a number; null for a text that is none."""
    if value.kind in NUMERIC:
        return value
    if value.kind is None:
        return _null_of(DECIMAL, value.at)
    if value.literal is not None and value.kind == Kind.TEXT:
        if not NUMBER.fullmatch(value.literal.strip()):
            raise C9qlError(f"'{value.literal}' is not a number: {purpose}.", at=value.at)
        return number_literal(value.literal.strip(), value.at)
    if value.kind == Kind.BOOLEAN:
        return Typed(cast(value.sql, Kind.INTEGER), INTEGER, at=value.at)
    if value.kind == Kind.TEXT or value.is_json:
        return Typed(try_cast(to_text(value).sql, Kind.DECIMAL), DECIMAL, at=value.at)
    raise C9qlError(f"{purpose}, not a {value.kind}.", at=value.at)


def to_moment(value: Typed, purpose: str = "a date is needed") -> Typed:
    """Return the value as a date or timestamp: text in a recognised form, numbers as milliseconds since 1970."""
    if value.kind in TEMPORAL:
        return value
    if value.kind is None:
        return _null_of(TIMESTAMP, value.at)
    if value.literal is not None and value.kind in (Kind.TEXT, Kind.INTEGER):
        moment = read_date(value.literal)
        if moment is not None:
            return moment_literal(moment, value.at)
    if value.literal is not None and value.kind == Kind.TEXT:
        raise C9qlError(f"'{value.literal}' is not a date: {purpose}.", at=value.at, remedy="Write it as 2026-01-31.")
    if value.kind == Kind.TEXT or value.is_json:
        return Typed(_recognised(to_text(value).sql), TIMESTAMP, at=value.at)
    if value.kind in NUMERIC:
        return Typed(func("epoch_ms", cast(value.sql, Kind.INTEGER)), TIMESTAMP, at=value.at)
    raise C9qlError(f"{purpose}, not a {value.kind}.", at=value.at)


def is_date_text(value: Typed) -> bool:
    """Return whether a value is a text literal in a recognised form of a date."""
    return value.kind == Kind.TEXT and value.literal is not None and read_date(value.literal) is not None


def _recognised(text: exp.Expr) -> exp.Expr:
    forms = exp.Array(expressions=[string(form) for form in RECOGNISED])
    trimmed = func("trim", text)
    return func("coalesce", try_cast(copies(trimmed), Kind.TIMESTAMP), func("try_strptime", copies(trimmed), forms))


def to_timestamp(value: Typed, purpose: str = "a date is needed") -> Typed:
    """Return the value as a timestamp."""
    moment = to_moment(value, purpose)
    if moment.kind == Kind.TIMESTAMP:
        return moment
    return Typed(cast(moment.sql, Kind.TIMESTAMP), TIMESTAMP, at=value.at)


def to_boolean(value: Typed, purpose: str = "a condition is needed") -> Typed:
    """Return the value as a condition."""
    if value.kind == Kind.BOOLEAN:
        return value
    if value.kind is None:
        return _null_of(BOOLEAN, value.at)
    words = {"true": True, "false": False}
    if value.literal is not None and value.literal.lower() in words:
        return boolean_literal(words[value.literal.lower()], value.at)
    if value.is_json:
        return Typed(try_cast(to_text(value).sql, Kind.BOOLEAN), BOOLEAN, at=value.at)
    shown = f"'{value.literal}'" if value.literal is not None else f"a {value.kind}"
    raise C9qlError(f"{purpose}, not {shown}.", at=value.at)


def to_json(value: Typed) -> Typed:
    """Return the value as JSON whose contents are not known."""
    if value.is_json:
        return value
    json = exp.DataType.build("JSON", dialect="duckdb")
    return Typed(exp.TryCast(this=to_text(value).sql, to=json), JSON, at=value.at)


def convert(value: Typed, data_type: DataType) -> Typed:
    """Return the value in this type."""
    match data_type.kind:
        case Kind.TEXT:
            return to_text(value)
        case Kind.INTEGER | Kind.DECIMAL:
            return to_number(value)
        case Kind.DATE | Kind.TIMESTAMP:
            return to_moment(value) if data_type.kind == Kind.DATE else to_timestamp(value)
        case Kind.BOOLEAN:
            return to_boolean(value)
        case _:
            return value


def common_type(values: list[Typed]) -> DataType | None:
    """Return the type that holds all these values: their own, the wider number or date, else text."""
    types = {each.type for each in values if each.type is not None}
    if len(types) <= 1:
        return types.pop() if types else None
    kinds = {each.kind for each in types}
    if kinds <= set(NUMERIC):
        return DECIMAL
    if kinds <= set(TEMPORAL):
        return TIMESTAMP
    return TEXT


def unify(values: list[Typed]) -> tuple[list[Typed], DataType | None]:
    """Return the values in the type that holds all of them."""
    if any(each.kind in TEMPORAL for each in values):
        values = [to_moment(each) if is_date_text(each) else each for each in values]
    data_type = common_type(values)
    if data_type is None:
        return values, None
    return [convert(each, data_type) for each in values], data_type
