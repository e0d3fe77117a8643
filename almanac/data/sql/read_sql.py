"""A caller's query as SQL that Almanac writes: text, tree, checks, names, and new text.

No text of the caller reaches the engine. Names and texts in the query are quoted by the generator, and comments are
left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlglot import exp

from almanac.data.sql import allow_list, functions, names
from almanac.data.sql.errors import SqlError
from almanac.data.sql.syntax import check_size, parse_sql

_CONDITION_TABLE = "condition"


@dataclass(frozen=True, slots=True)
class CheckedQuery:
    """A query that may be run."""

    sql: str
    tables: Mapping[str, str]  # the internal name of each table that it reads, by its name
    names: frozenset[str]  # all names in the query, without case
    reads_all_columns: bool


def read_sql(text: str, tables: Mapping[str, Sequence[str]], now: datetime) -> CheckedQuery:
    """Read a query over tables with these fields; raises `SqlError`. `now` stands for the current time."""
    return _check(parse_sql(text), tables, now, functions.NAMES)


def check_query(tree: exp.Query, tables: Mapping[str, Sequence[str]], now: datetime) -> CheckedQuery:
    """Check a tree that Almanac built from a query in another language. The tree is changed."""
    return _check(tree, tables, now, functions.names_of_built_trees())


def _check(
    tree: exp.Query, tables: Mapping[str, Sequence[str]], now: datetime, function_names: frozenset[str]
) -> CheckedQuery:
    try:
        check_size(tree)
        allow_list.check(tree, function_names)
        used_names, reads_all = names.names_in(tree), names.reads_all_columns(tree)
        used = names.resolve(tree, tables)
        return CheckedQuery(_write(_with_time(tree, now)), used, frozenset(used_names), reads_all)
    except RecursionError:
        raise SqlError("The query is nested too deeply.", expected="Use WITH to name its parts.") from None


def read_condition(text: str, fields: Sequence[str], now: datetime) -> str:
    """Read the condition of a row rule over these fields. It contains no subquery."""
    tree = parse_sql(f"SELECT 1 FROM {_CONDITION_TABLE} WHERE ({text}\n)")  # noqa: S608 - parsed, checked and written anew
    condition: Any = tree.args.get("where")
    is_alone = isinstance(condition, exp.Where) and isinstance(condition.this, exp.Paren)  # unlike "1) OR (1"
    if not is_alone or len(list(tree.find_all(exp.Query))) != 1 or set(_clauses(tree)) != _CONDITION_CLAUSES:
        raise SqlError("The condition must be one expression over the fields.")
    allow_list.check(tree)
    names.resolve(tree, {_CONDITION_TABLE: fields})
    return _write(_with_time(condition.this, now))


_CONDITION_CLAUSES = {"expressions", "from_", "where"}


def _clauses(tree: exp.Expr) -> list[str]:
    return [key for key, value in tree.args.items() if value]


def _with_time(tree: exp.Expr, now: datetime) -> exp.Expr:
    """Replace the current date and time, so that the query gives the same result when it is repeated."""
    moment = now.astimezone(UTC).replace(tzinfo=None)

    def replace(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.CurrentDate):
            return exp.cast(exp.Literal.string(moment.date().isoformat()), exp.DataType.Type.DATE)
        if isinstance(node, exp.CurrentTimestamp | exp.Localtimestamp) or _is_call(node, functions.CURRENT_TIME):
            return exp.cast(exp.Literal.string(moment.isoformat(" ")), exp.DataType.Type.TIMESTAMP)
        return node

    return tree.transform(replace, copy=False)


def _is_call(node: exp.Expr, function_names: frozenset[str]) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() in function_names


def _write(tree: exp.Expr) -> str:
    return tree.sql(dialect="duckdb", identify=True, comments=False)
