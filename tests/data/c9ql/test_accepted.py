"""DuckDB accepts every query that the compiler accepts, whatever types meet in it."""

from random import Random

import duckdb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from almanac.data.c9ql import C9qlError, compile_query, parse
from almanac.data.c9ql.functions import FUNCTIONS, Role
from almanac.data.fields import BOOLEAN, DATE, DECIMAL, INTEGER, JSON, TEXT, TIMESTAMP, Field, list_of, record_of

RECORD = record_of(Field("k", TEXT), Field("v", INTEGER))
FIELDS = [
    *(Field("i", INTEGER), Field("f", DECIMAL), Field("t", TEXT), Field("d", DATE), Field("s", TIMESTAMP)),
    *(
        Field("b", BOOLEAN),
        Field("l", list_of(TEXT)),
        Field("r", RECORD),
        Field("g", list_of(RECORD)),
        Field("j", JSON),
    ),
]
TABLE = """
    CREATE TABLE data (i BIGINT, f DOUBLE, t VARCHAR, d DATE, s TIMESTAMP, b BOOLEAN, l VARCHAR[],
        r STRUCT(k VARCHAR, v BIGINT), g STRUCT(k VARCHAR, v BIGINT)[], j JSON);
    INSERT INTO data VALUES
        (1, 1.5, 'x', '2024-01-01', '2024-01-02 03:04:05', true, ['a', 'b'], {'k': 'q', 'v': 3}, [{'k': 'q', 'v': 3}],
         '{"a": [1]}'),
        (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
        (2, -0.5, '2024-01-05', '2024-02-01', '2023-01-02 03:04:05', false, [], NULL, [], '[1, {"a": 2}]')
"""
OPERANDS = [
    *("i", "f", "t", "d", "s", "b", "l", "r", "g", "j", "r.k", "r.v", "g[0].v", "l[1]", "j.a", "j.a[0]"),
    *("null", "true", "1", "2.5", "'x'", "'2024-01-05'", "2024-01-01", "{$c9_now}"),
]
OPERATORS = ["+", "-", "*", "/", "%", "^", "=", "<", "!=", "like", "and", "or", ">="]
LITERALS = {"format": "yyyy-MM-dd", "step": "1d", "separator": "a", "pattern": "a", "replacement": "z", "search": "x",
            "start": "1", "digits": "1"}  # fmt: skip
SCALARS = [each for each in FUNCTIONS.values() if each.role == Role.SCALAR]
AGGREGATES = ["count", "sum", "avg", "min", "max", "median", "sd", "distinct", "array", "group_concat"]
RESHAPES = [
    *("expand(l)", "expand(g)", "expand(r)", "expand(j)", "expand(t)", "expand_arrays(l, g, r)", "inject(d, 1w)"),
    *("expand_arrays_with_defaults(l, none, j, 0)", "inject(s, 1m, t)", "reverse_transpose(k, v, i)"),
]


def expression(random: Random, depth: int) -> str:
    """Return an expression without regard to types."""

    def inner() -> str:
        return expression(random, depth - 1)

    shape = random.randrange(8) if depth > 0 else 0
    if shape in (0, 1):
        return random.choice(OPERANDS)
    if shape in (2, 3):
        function = random.choice(SCALARS)
        given = [LITERALS.get(each.name) or inner() for each in function.parameters if each.required]
        return f"{function.name}({', '.join(given)})"
    if shape == 4:
        return f"(case when {inner()} then {inner()} else {inner()} end)"
    if shape == 5:
        return f"({inner()} in ({inner()}, {inner()}) or {inner()} between {inner()} and {inner()})"
    return f"({inner()} {random.choice(OPERATORS)} {inner()})"


def aggregate(random: Random) -> str:
    return f"{random.choice(AGGREGATES)}({expression(random, 2)})"


def rolling(random: Random) -> str:
    value, group = expression(random, 2), random.choice(OPERANDS)
    calls = [
        "lag({})",
        "lag({}, 1, {})",
        "accumulate({}, {})",
        "delta({})",
        "growth({})",
        "sma({}, 2)",
        "tma({}, d, 5d, {})",
    ]
    windows = ["sum({}) over (partition by {})", "max({}) over (order by {})", "group_concat({}) over ()"]
    return random.choice([*calls, *windows, "rank() over (order by {})"]).format(value, group)


def statement(random: Random) -> str:
    where = f" where {expression(random, 2)}" if random.random() < 0.3 else ""
    match random.randrange(5):
        case 0:
            order = f" order by {expression(random, 2)} limit 2" if random.random() < 0.5 else ""
            return f"select {expression(random, 3)} as a, {expression(random, 2)} as q{where}{order}"
        case 1:
            group = expression(random, 1)
            having = f" having {aggregate(random)} > 1" if random.random() < 0.3 else ""
            return f"select {group} as a, {aggregate(random)} as q{where} group by {group}{having}"
        case 2:
            return f"select {rolling(random)} as a, *{where}"
        case 3:
            return f"select *, {random.choice(RESHAPES)}{where}; select * order by 1"
        case _:
            return f"select distinct {expression(random, 2)} as a{where} order by a limit 2"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_duckdb_accepts_what_the_compiler_accepts(data: duckdb.DuckDBPyConnection, seed: int):
    text = statement(Random(seed))
    try:
        compiled = compile_query(parse(text, FIELDS), FIELDS, "data")
    except C9qlError:
        return
    data.execute("DROP TABLE IF EXISTS data")
    data.execute(TABLE)
    try:
        data.execute(compiled.query.sql("duckdb")).fetchall()
    except duckdb.OutOfRangeException:
        pass  # a number became too large for its type: an error of the values, not of the query
    except duckdb.Error as error:
        raise AssertionError(f"{text}\n{error}") from error
