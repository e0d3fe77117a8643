"""The compiled SQL, run by DuckDB, agrees with a slow and obvious interpreter."""

import json
import math
from collections.abc import Sequence
from datetime import date, datetime, time
from typing import Any, cast

import duckdb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from almanac.data.c9ql import Context, compile_query, parse, print_query
from almanac.data.c9ql.tree import (
    AllFields,
    Between,
    Binary,
    Call,
    Case,
    Constant,
    Expression,
    In,
    IsNull,
    Item,
    Logic,
    Name,
    Number,
    Over,
    Path,
    Query,
    Sort,
    Statement,
    Text,
    Unary,
    Without,
)
from almanac.data.fields import BOOLEAN, DATE, DECIMAL, INTEGER, TEXT, TIMESTAMP, Field, list_of, record_of
from tests.data.c9ql import reference

GRADE = record_of(Field("grade", TEXT), Field("score", INTEGER))
FIELDS = [
    Field("id", INTEGER),
    Field("Message Type", TEXT),
    Field("order", TEXT),
    Field("sent", INTEGER),
    Field('it\'s a "rate" (%)', DECIMAL, column="c5"),
    Field("SENT", INTEGER, column="c6"),
    Field("day", DATE),
    Field("at", TIMESTAMP),
    Field("ok", BOOLEAN),
    Field("tags", list_of(TEXT)),
    Field("grades", list_of(GRADE)),
]
COLUMNS = ("BIGINT", "VARCHAR", "VARCHAR", "BIGINT", "DOUBLE", "BIGINT", "DATE", "TIMESTAMP", "BOOLEAN", "VARCHAR[]",
           "STRUCT(grade VARCHAR, score BIGINT)[]")  # fmt: skip
RATE = FIELDS[4].name
WORDS = ["West", "East", "west", "", "Köln", "it's", "100%", "a b"]
NOW = datetime(2024, 5, 17, 12)

# Values


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


integers = st.integers(-9, 9)
words = st.sampled_from(WORDS)
days = st.builds(date, st.integers(2023, 2025), st.integers(1, 12), st.integers(1, 28))
times = st.builds(time, st.integers(0, 23), st.sampled_from([0, 30]))
moments = st.builds(datetime.combine, days, times)
# Hypothesis varies the order of keys, and a stored record has one order.
grades = st.fixed_dictionaries({"grade": nullable(words), "score": nullable(integers)}).map(
    lambda each: {name: each[name] for name in ("grade", "score")}
)
ROWS = st.lists(
    st.tuples(
        *(nullable(words), nullable(words), nullable(integers), nullable(integers.map(lambda n: n / 2))),
        *(nullable(integers), nullable(days), nullable(moments), nullable(st.booleans())),
        *(nullable(st.lists(words, max_size=3)), nullable(st.lists(grades, max_size=2))),
    ),
    max_size=8,
).map(lambda rows: [dict(zip([each.name for each in FIELDS], (at, *row), strict=True)) for at, row in enumerate(rows)])

# Expressions

NUMBERS = st.one_of(
    st.sampled_from([Name("sent"), Name(RATE), Name("SENT"), Name("id")]),
    integers.filter(lambda n: n >= 0).map(lambda n: Number(str(n))),
    st.just(Number("2.5")),
)
DATES = st.sampled_from([Name("day"), Name("at")])
TEXTS = st.sampled_from([Name("Message Type"), Name("order")])
LITERALS = words.map(Text)
PATTERNS = st.sampled_from(["yyyy-MM-dd", "ddMMMyyyy", "HH:mm"]).map(Text)


def call(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    return st.tuples(*arguments).map(lambda given: Call(name, given))


def one_call(names: Sequence[str], *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    return st.sampled_from(names).flatmap(lambda name: call(name, *arguments))


SMALL = st.integers(1, 3).map(lambda n: Number(str(n)))
MARKS = st.sampled_from(["e", "s", " ", "st"]).map(Text)
TEXT_CALLS = st.one_of(
    one_call(["upper", "lower", "trim"], TEXTS),
    call("substring", TEXTS, SMALL, SMALL),
    one_call(["substring_before", "substring_after"], TEXTS, MARKS),
    call("replace", TEXTS, MARKS, LITERALS),
    call("concat", TEXTS, LITERALS, TEXTS),
    call("ifnull", TEXTS, LITERALS),
    call("date_format", DATES, PATTERNS),
)
DATE_CALLS = st.one_of(
    one_call(["date", "week", "month", "quarter", "year", "hour"], DATES),
    call("date_add", DATES, st.sampled_from(["1d", "-2w", "3m", "5h"]).map(Text)),
)
NUMBER_CALLS = st.one_of(
    one_call(["abs", "ceil", "floor", "sqrt", "acos", "cos", "atan"], NUMBERS),
    call("round", NUMBERS, st.just(Number("1"))),
    call("length", TEXTS),
    call("ifnull", NUMBERS, integers.filter(lambda n: n >= 0).map(lambda n: Number(str(n)))),
    one_call(["month_only", "day_of_month", "day_of_week", "week_of_year", "epoch_ms", "epoch_secs"], DATES),
    one_call(["days_between", "hours_between", "minutes_between"], DATES, DATES),
    st.builds(Binary, st.just("-"), DATES, DATES),
    st.builds(Path, st.just(Name("grades")), st.sampled_from([(0, "score"), (1, "score")])),
)


def arithmetic(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.one_of(
        st.builds(Binary, st.sampled_from(["+", "-", "*", "/", "%"]), inner, inner),
        st.builds(Binary, st.just("^"), inner, st.sampled_from([Number("2"), Number(".5")])),
        st.builds(Unary, st.just("-"), inner),
        st.builds(Case, st.none(), st.tuples(st.tuples(COMPARISONS, inner)), st.none() | inner),
    )


PARTS = st.sampled_from(["e", "ST", "'"]).map(Text)
OPERATORS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
DAY_TEXTS = days.map(lambda day: Text(str(day)))
COMPARISONS: st.SearchStrategy[Expression] = st.one_of(
    st.builds(Binary, OPERATORS, NUMBERS | NUMBER_CALLS, NUMBERS),
    st.builds(Binary, OPERATORS, TEXTS | TEXT_CALLS, LITERALS | TEXTS),
    st.builds(Binary, OPERATORS, DATES | DATE_CALLS, DAY_TEXTS | DATES),
    st.builds(
        Binary, st.sampled_from(["like", "not like"]), TEXTS, st.sampled_from(["e", "ST", "'"]).map(Text) | TEXTS
    ),
    st.builds(In, TEXTS, st.lists(LITERALS, min_size=1, max_size=3).map(tuple), st.booleans()),
    st.builds(In, DATES, st.lists(DAY_TEXTS, min_size=1, max_size=2).map(tuple), st.booleans()),
    st.builds(In, NUMBERS, st.lists(NUMBERS, min_size=1, max_size=3).map(tuple), st.booleans()),
    st.builds(Between, NUMBERS, NUMBERS, NUMBERS, st.booleans()),
    st.builds(Between, DATES, DAY_TEXTS, DAY_TEXTS, st.booleans()),
    st.builds(IsNull, NUMBERS | TEXTS | DATES, st.booleans()),
    st.just(Name("ok")),
)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.builds(Unary, st.just("not"), inner),
        st.builds(Logic, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=3,
)
ARITHMETIC = st.recursive(NUMBERS | NUMBER_CALLS, arithmetic, max_leaves=3)
CASES = st.builds(Case, TEXTS, st.tuples(st.tuples(LITERALS, LITERALS)), st.none() | LITERALS)
VALUES = st.one_of(ARITHMETIC, TEXTS, TEXT_CALLS, DATES, DATE_CALLS, CONDITIONS, CASES,
                   st.just(Path(Name("tags"), (1,))), call("split", TEXTS, MARKS))  # fmt: skip
SORTABLE = st.one_of(ARITHMETIC, TEXTS, TEXT_CALLS, DATES, DATE_CALLS, CONDITIONS)
GROUP_KEYS = st.one_of(TEXTS, st.just(Name("sent")), one_call(["week", "month"], DATES), one_call(["upper"], TEXTS))
AGGREGATES = st.one_of(
    st.just(Call("count", (AllFields(),))),
    one_call(["count", "distinct"], NUMBERS | TEXTS | DATES),
    one_call(["sum", "avg", "median", "sd"], NUMBERS),
    one_call(["min", "max"], NUMBERS | TEXTS | DATES),
    call("percentile", NUMBERS, st.sampled_from(["0", "25", "90", "100"]).map(Number)),
    call("array", TEXTS, st.booleans().map(Constant), st.booleans().map(Constant)),
    call("group_concat", TEXTS, st.sampled_from([", ", "-"]).map(Text)),
)


def items(values: st.SearchStrategy[Expression], least: int = 1) -> st.SearchStrategy[tuple[Item, ...]]:
    """Return items with the aliases `v0`, `v1` and so on."""
    return st.lists(values, min_size=least, max_size=3).map(
        lambda found: tuple(Item(each, f"v{at}") for at, each in enumerate(found))
    )


def sorts(names: tuple[Item, ...]) -> st.SearchStrategy[list[Sort]]:
    aliases = [Name(each.alias or "") for each in names]
    return st.lists(st.builds(Sort, st.sampled_from(aliases), st.booleans()), min_size=1, max_size=2)


# Statements

STAR = Item(AllFields())
STARS: tuple[tuple[Item | Without, ...], ...] = ((), (STAR,), (STAR, Without(Name("sent")), Without(Name("order"))))


@st.composite
def plain_statements(draw: st.DrawFn) -> Statement:
    listed = (*draw(st.sampled_from(STARS)), *draw(items(VALUES)))
    return Statement(listed, distinct=draw(st.booleans()), where=draw(st.none() | CONDITIONS))


@st.composite
def limited_statements(draw: st.DrawFn) -> Statement:
    listed = draw(items(SORTABLE))
    order = draw(sorts(listed))
    hidden = draw(st.lists(st.builds(Sort, SORTABLE, st.booleans()), max_size=1))
    return Statement(listed, where=draw(st.none() | CONDITIONS), order=(*order, *hidden), limit=draw(st.integers(0, 5)))


@st.composite
def grouped_statements(draw: st.DrawFn) -> Statement:
    keys = draw(st.lists(GROUP_KEYS, max_size=2))
    shown = tuple(Item(each, f"k{at}") for at, each in enumerate(keys))
    aggregates = draw(items(AGGREGATES))
    number = draw(st.sampled_from(["count", "sum", "max"]).flatmap(lambda name: call(name, NUMBERS)))
    bound = integers.filter(lambda n: n >= 0).map(lambda n: Number(str(n)))
    having = draw(st.none() | st.builds(Binary, OPERATORS, st.just(number), bound))
    return Statement((*shown, *aggregates), where=draw(st.none() | CONDITIONS), group=tuple(keys), having=having)


IN_ORDER = Statement((STAR,), order=(Sort(Name("id")),))
GROUPS = st.lists(TEXTS, max_size=2, unique=True)


@st.composite
def rolling_calls(draw: st.DrawFn) -> Call:
    name = draw(st.sampled_from(["accumulate", "growth", "delta", "cma", "sma", "tma", "lag"]))
    match name:
        case "lag":
            default = draw(st.booleans())
            cell = draw(NUMBERS if default else NUMBERS | TEXTS | DATES)
            return Call("lag", (cell, draw(SMALL), *((Number("0"),) if default else ())))
        case "sma":
            options: tuple[Expression, ...] = (draw(SMALL),)
        case "tma":
            options = (draw(DATES), Text(f"{draw(st.integers(1, 400))}d"))
        case _:
            options = ()
    return Call(name, (draw(NUMBERS), *options, *draw(GROUPS)))


OVERS = st.builds(Over, st.lists(TEXTS, max_size=1).map(tuple),
                  st.lists(st.builds(Sort, NUMBERS | DATES, st.booleans()), max_size=2).map(tuple))  # fmt: skip


@st.composite
def window_calls(draw: st.DrawFn) -> Call:
    name, over = draw(st.sampled_from(["sum", "avg", "count", "max", "rank", "dense_rank"])), draw(OVERS)
    if not name.endswith("rank"):
        return Call(name, (draw(NUMBERS),), over)
    return Call(name, (), over if over.order else Over(over.partition, (Sort(Name("sent")),)))


RESHAPES = st.sampled_from(
    [
        "select expand(tags)",
        "select *, expand(tags) where id < 5",
        "select id, `order`, expand(grades)",
        "select expand(grades); select grade, count(*) as n group by grade",
        "select `order`, transpose(Message Type, sent)",
        "select id, sent, Message Type; select transpose(Message Type, sent)",
        "select id, `order`, Message Type; select reverse_transpose('k', 'v', id) where id != 1",
        "select id, sent, `SENT`; select reverse_transpose('k', 'v', id)",
    ]
)

# Runs


def load(data: duckdb.DuckDBPyConnection, rows: Sequence[dict[str, Any]]) -> None:
    columns = ", ".join(f'"{each.column or each.name}" {kind}' for each, kind in zip(FIELDS, COLUMNS, strict=True))
    data.execute(f"CREATE OR REPLACE TABLE data ({columns})")
    for row in rows:
        data.execute(f"INSERT INTO data VALUES ({', '.join('?' * len(FIELDS))})", list(row.values()))


def run_compiled(data: duckdb.DuckDBPyConnection, query: Query) -> list[tuple[Any, ...]]:
    keys: list[list[str]] = []
    while True:
        compiled = compile_query(query, FIELDS, "data", context=Context(NOW), transposed=keys)
        result = data.execute(compiled.query.sql("duckdb"))
        rows = result.fetchall()
        if not compiled.asks_for_keys:
            assert [each[0] for each in result.description] == [each.name or "(empty)" for each in compiled.fields]
            return rows
        keys.append([row[0] for row in rows])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return isinstance(one, bool) == isinstance(other, bool) and math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(one, list) and isinstance(other, list):
        return all_same(cast("list[Any]", one), cast("list[Any]", other))
    return one == other


def all_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(same, one, other))


def sortable(row: tuple[Any, ...]) -> str:
    return json.dumps([f"{cell:.6g}" if isinstance(cell, int | float) else str(cell) for cell in row])


def check(data: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]], query: Query, *, in_order: bool = False) -> None:
    """Compare the compiled query with the reference."""
    load(data, rows)
    expected = [tuple(row.values()) for row in reference.run(query, rows)]
    found = run_compiled(data, query)
    if not in_order:
        expected, found = sorted(expected, key=sortable), sorted(found, key=sortable)
    assert len(expected) == len(found) and all(map(all_same, expected, found)), (
        f"{print_query(query)}\nexpected {expected}\nfound    {found}"
    )


def checked(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@checked(40)
@given(rows=ROWS, statement=plain_statements())
def test_selecting_and_filtering_agree(
    data: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]], statement: Statement
):
    check(data, rows, Query((statement,)))


@checked(40)
@given(rows=ROWS, statement=limited_statements())
def test_order_and_limit_agree(data: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]], statement: Statement):
    check(data, rows, Query((statement,)), in_order=True)


@checked(60)
@given(rows=ROWS, statement=grouped_statements())
def test_groups_and_aggregates_agree(data: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]], statement: Statement):
    check(data, rows, Query((statement,)))


@checked(50)
@given(rows=ROWS, listed=items(rolling_calls()), descending=st.booleans())
def test_rolling_functions_agree(
    data: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]], listed: tuple[Item, ...], descending: bool
):
    ordered = Statement((STAR,), order=(Sort(Name("id"), descending),))
    check(data, rows, Query((ordered, Statement((*listed, Item(Name("id")))))), in_order=True)


@checked(60)
@given(rows=ROWS, group=TEXTS)
def test_lag_by_groups_agrees(data: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]], group: Expression):
    lag = Item(Call("lag", (Name("sent"), Number("1"))), "before")
    check(data, rows, Query((IN_ORDER, Statement((lag, Item(Name("id"))), group=(group,)))), in_order=True)


@checked(40)
@given(rows=ROWS, listed=items(window_calls()))
def test_windows_agree(data: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]], listed: tuple[Item, ...]):
    check(data, rows, Query((Statement((Item(Name("id")), *listed)),)))


@checked(40)
@given(rows=ROWS, text=RESHAPES)
def test_reshaping_agrees(data: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]], text: str):
    check(data, rows, Query((IN_ORDER, *parse(text, FIELDS).statements)), in_order="count(" not in text)


@checked(60)
@given(rows=ROWS, first=grouped_statements(), count=st.integers(0, 3))
def test_a_statement_reads_the_result_of_the_one_before(
    data: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]], first: Statement, count: int
):
    second = Statement((STAR, Item(Call("count", (Name("v0"),), Over()), "n")))
    third = Statement((Item(Name("n")), Item(Call("count", (AllFields(),)), "rows")), group=(Name("n"),), limit=count)
    check(data, rows, Query((first, second, third)), in_order=True)
