"""The check of a query's tree. Nodes, functions, types and words that are not on a list are refused.

It also covers trees that other code of Almanac builds: the generator writes some values as they are, such as numbers,
words and names of functions, so each of them is compared with a list or a pattern.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

from sqlglot import exp

from almanac.data.sql import functions
from almanac.data.sql.errors import SqlError, TextPosition, nearest, quote

MAX_NAME_CHARS = 255
MAX_SERIES_ELEMENTS = 1_000_000
MAX_PADDED_CHARS = 10_000

# The structure of a query, and operators, which have no name and whose result is about as long as the operands.
NODES = frozenset(
    {
        exp.Select, exp.From, exp.Join, exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.Offset,
        exp.Distinct, exp.With, exp.CTE, exp.TableAlias, exp.Table, exp.Identifier, exp.Column, exp.Star, exp.Alias,
        exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Tuple, exp.Subquery, exp.Union, exp.Except, exp.Intersect,
        exp.Values, exp.Qualify, exp.Window, exp.WindowSpec, exp.Cube, exp.Rollup, exp.GroupingSets, exp.Filter,
        exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls, exp.Lateral,
        exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is, exp.Not, exp.In, exp.Between, exp.Like, exp.ILike,
        exp.SimilarTo, exp.Glob, exp.Escape, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Any, exp.All,
        exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe, exp.BitwiseAnd, exp.BitwiseOr,
        exp.BitwiseXor, exp.BitwiseNot, exp.BitwiseLeftShift, exp.BitwiseRightShift,
        exp.Interval, exp.Var, exp.DataType, exp.DataTypeParam, exp.ColumnDef, exp.AtTimeZone,
        exp.Bracket, exp.Slice, exp.Dot, exp.Lambda, exp.Comprehension, exp.PropertyEQ, exp.JSONKeyValue,
        exp.JSONPath, exp.JSONPathRoot, exp.JSONPathKey, exp.JSONPathSubscript,
    }
)  # fmt: skip

TYPES = frozenset(
    {
        "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "INT128", "UTINYINT", "USMALLINT", "UINT", "UBIGINT",
        "FLOAT", "DOUBLE", "DECIMAL", "TEXT", "VARCHAR", "CHAR", "DATE", "TIME", "TIMESTAMP", "TIMESTAMPNTZ",
        "TIMESTAMPTZ", "INTERVAL", "UUID", "JSON", "LIST", "ARRAY", "STRUCT", "MAP",
    }
)  # fmt: skip

# Units of time, parts of dates, and words of window frames.
_WORD_TEXT = """
YEAR YEARS MONTH MONTHS DAY DAYS HOUR HOURS MINUTE MINUTES SECOND SECONDS WEEK WEEKS QUARTER QUARTERS DECADE DECADES
CENTURY CENTURIES MILLENNIUM MILLENNIA MILLISECOND MILLISECONDS MICROSECOND MICROSECONDS NANOSECOND NANOSECONDS DOW
ISODOW DOY DAYOFWEEK DAYOFYEAR DAYOFMONTH ISOYEAR EPOCH YEARWEEK ERA WEEKDAY WEEKOFYEAR TIMEZONE_HOUR TIMEZONE_MINUTE
JULIAN CURRENT ROW TIES GROUP NO OTHERS
"""
WORDS = frozenset(_WORD_TEXT.split())

_NUMBER = re.compile(r"\d{1,60}|\d{0,40}\.\d{0,40}(?:[eE][+-]?\d{1,3})?|\d{1,40}[eE][+-]?\d{1,3}")
_KEYWORDS = re.compile(r"[A-Za-z_ ]{0,40}")

_CHECKED_TEXTS = {(exp.Anonymous, "this"), (exp.JSONPathKey, "this")}

# Arguments of a table that no query needs: other databases, samples, versions, pivots.
_TABLE_ARGUMENTS = {"this", "alias", "joins"}


def check(tree: exp.Expr, function_names: frozenset[str] = functions.NAMES) -> None:
    """Refuse a tree with anything that is not on the lists; remove comments, and quote all names."""
    for node in tree.walk():
        node.comments = None
        _check_kind(node, function_names)
        for key, value in node.args.items():
            _check_plain_values(node, key, value)
        if (check_node := _CHECKS.get(type(node))) is not None:
            check_node(node)


def position_of(node: exp.Expr) -> TextPosition | None:
    """The position of a node or of the first part of it that has one."""
    for each in node.walk():
        if "line" in each.meta:
            return TextPosition(each.meta["line"], max(1, each.meta["col"] - len(each.name) + 1))
    return None


def _check_kind(node: exp.Expr, function_names: frozenset[str]) -> None:
    kind = type(node)
    if kind in NODES or kind in functions.CLASSES:
        return
    if kind is exp.Anonymous:
        if node.name.lower() in function_names:
            return
        name = node.name
    elif isinstance(node, exp.Func):
        name = node.sql_name().lower()
    else:
        raise SqlError(f"{kind.__name__} is not possible in a query.", position_of(node))
    hint = nearest(name, functions.known_names())
    raise SqlError(
        f"The function {quote(name)} is not available.", position_of(node), "The reference page lists all.", hint
    )


def _check_plain_values(node: exp.Expr, key: str, value: Any) -> None:
    """Values that are not nodes: keywords, which come from the parser's own lists in parsed text."""
    if isinstance(node, exp.Literal | exp.Identifier | exp.Var) or (type(node), key) in _CHECKED_TEXTS:
        return  # these have checks of their own, or are written in quotation marks
    values = cast("list[Any]", value if isinstance(value, list) else [value])
    for each in values:
        if isinstance(each, str) and not _KEYWORDS.fullmatch(each):
            raise SqlError(f"{quote(each)} is not possible in a query.", position_of(node))


def _check_literal(node: exp.Expr) -> None:
    if not node.args.get("is_string") and not _NUMBER.fullmatch(node.name):
        raise SqlError(f"{quote(node.name)} is not a number.", position_of(node))
    if "\0" in node.name:
        raise SqlError("A text in the query contains a null character.", position_of(node))


def _check_identifier(node: exp.Expr) -> None:
    if not node.name or len(node.name) > MAX_NAME_CHARS or "\0" in node.name:
        raise SqlError(f"{quote(node.name)} is not a name.", position_of(node))
    node.set("quoted", True)


def _check_word(node: exp.Expr) -> None:
    if node.name.upper() not in WORDS:
        raise SqlError(f"The word {quote(node.name)} is not possible here.", position_of(node))


def _check_type(node: exp.Expr) -> None:
    if not isinstance(node.this, exp.DataType.Type) or node.this.name not in TYPES:
        raise SqlError("There is no such type.", position_of(node), f"Types: {', '.join(sorted(TYPES))}.")


def _check_table(node: exp.Expr) -> None:
    if node.args.get("db") or node.args.get("catalog"):
        raise SqlError("A dataset has a name of one part.", position_of(node), "Put a name with dots in double quotes.")
    surplus = {key for key, value in node.args.items() if value} - _TABLE_ARGUMENTS
    if surplus:
        raise SqlError(f"{quote(min(surplus).upper())} is not possible for a dataset.", position_of(node))
    if not isinstance(node.this, exp.Identifier | exp.GenerateSeries):
        raise SqlError("Only datasets, unnest, range and generate_series can be queried.", position_of(node))


def _check_with(node: exp.Expr) -> None:
    if node.args.get("recursive"):
        raise SqlError("WITH RECURSIVE is not possible.", position_of(node), "Write the query without recursion.")


def _check_series(node: exp.Expr) -> None:
    start, end, step = (_number(node.args.get(key)) for key in ("start", "end", "step"))
    if start is None or end is None or (node.args.get("step") and not step):
        raise SqlError("The limits of a series must be whole numbers.", position_of(node))
    if abs(end - start) // abs(step or 1) > MAX_SERIES_ELEMENTS:
        raise SqlError(f"A series has at most {MAX_SERIES_ELEMENTS:,} elements.", position_of(node))


def _check_length(key: str) -> Callable[[exp.Expr], None]:
    def check_length(node: exp.Expr) -> None:
        length = _number(node.args.get(key))
        if length is None or length > MAX_PADDED_CHARS:
            message = f"The length must be a number of at most {MAX_PADDED_CHARS:,}."
            raise SqlError(message, position_of(node))

    return check_length


def _number(node: Any) -> int | None:
    """The value of a whole number, with or without a sign."""
    if isinstance(node, exp.Neg):
        value = _number(node.this)
        return None if value is None else -value
    is_number = isinstance(node, exp.Literal) and not node.is_string and node.name.isdecimal()
    return int(node.name) if is_number and len(node.name) < 19 else None


_CHECKS: Mapping[type[exp.Expr], Callable[[exp.Expr], None]] = MappingProxyType(
    {
        exp.Literal: _check_literal,
        exp.Identifier: _check_identifier,
        exp.Var: _check_word,
        exp.DataType: _check_type,
        exp.Table: _check_table,
        exp.With: _check_with,
        exp.GenerateSeries: _check_series,
        exp.Repeat: _check_length("times"),
        exp.Pad: _check_length("expression"),
    }
)
