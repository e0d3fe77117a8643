"""Hostile text is refused with an error, quickly, or compiled to SQL in which it is a literal."""

import time
from contextlib import suppress

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlglot import exp

from almanac.data.c9ql import C9qlError, Compiled, Query, compile_query, parse
from almanac.data.c9ql.functions import FUNCTIONS
from almanac.data.c9ql.parser import MAX_QUERY_CHARS
from almanac.data.fields import DATE, INTEGER, JSON, TEXT, Field, list_of
from tests.data.c9ql.samples import ODD_NAMES, QUERIES, TEXTS

FIELDS = [
    *(Field(each, INTEGER) for each in ODD_NAMES),
    Field("t", TEXT),
    Field("d", DATE),
    Field("l", list_of(TEXT)),
    Field("j", JSON),
]
MAX_SECONDS = 5  # a query of the greatest length takes well under a second on an idle machine

PIECES = st.sampled_from(
    [
        *(
            "select ",
            "where ",
            " and ",
            " or ",
            " not ",
            "(",
            ")",
            ",",
            ";",
            "'",
            '"',
            "`",
            "*",
            "~",
            "a",
            "b",
            "t",
            "d",
        ),
        *("case ", " when ", " then ", " end ", " group by ", " order by ", " limit ", "1", "2.5", "{$c9_today", "}"),
        *(" in ", " between ", " like ", " is null ", " as ", "=", "<", "-", "+", "^", "[0]", ".", " over (", "\n"),
        *("a-b", "Cost (USD)", "売上", "--", "/*", "\\", "%", "j.x", "2024-01-05", "$c9_x$", "d", "l", "\t"),
        *(f"{each}(" for each in FUNCTIONS),
    ]
)


def compile_text(text: str) -> Compiled | None:
    """Compile the query; None if it is refused."""
    try:
        return compile_query(parse(text, FIELDS), FIELDS, "data")
    except C9qlError:
        return None


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES | TEXTS, max_size=25).map("".join))
def test_any_text_is_compiled_or_refused(text: str):
    compiled = compile_text(text)
    if compiled is not None:
        compiled.query.sql("duckdb")


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(QUERIES)
def test_any_tree_is_compiled_or_refused(query: Query):
    with suppress(C9qlError):
        compile_query(query, FIELDS, "data")


LONGEST = {
    "parentheses": "(" * MAX_QUERY_CHARS,
    "signs": "select " + "-" * (MAX_QUERY_CHARS - 10) + "1",
    "negations": "where " + "not " * 4_990 + "a",
    "quotes": "'" * (MAX_QUERY_CHARS - 1),
    "spaces": "select a" + " " * (MAX_QUERY_CHARS - 20) + ", b",
    "order without by": ("order " + " " * 50) * 350,
    "almost a field": "Order By Dat " * 1_500,
    "words": "select a where t = " + "x " * 9_000,
    "items": "select " + ",".join(["a"] * 9_000),
    "conditions": "where " + " or ".join(["a=1"] * 2_000),
    "options": "where a in (" + ",".join(["1"] * 9_000) + ")",
    "statements": "a;" * 9_000,
    "nested calls": "select " + "upper(" * 2_000 + "t" + ")" * 2_000,
    "nested haversine": "select " + "haversine(" * 30 + "1,1,1,1" + ",1,1,1)" * 30,
    "nested dates": "select " + "date(concat(" * 15 + "t" + "))" * 15,
    "nested growth": "; ".join(["select growth(b) as b, *"] * 50),
    "tokens": "select '" + "{$c9_today}" * 1_700 + "'",
    "unclosed tokens": "select '" + "{$c9_" * 3_900 + "'",
    "parameters": "where t = " + "$c9_x$(" * 2_800,
    "long digits": "select " + "9" * 19_000,
    "power": "select " + "2^" * 9_000 + "2",
    "paths": "select j" + "[0]" * 6_000,
}


@pytest.mark.parametrize("text", LONGEST.values(), ids=LONGEST.keys())
def test_a_long_text_takes_no_long_time(text: str):
    start = time.perf_counter()
    compiled = compile_text(text[:MAX_QUERY_CHARS])
    if compiled is not None:
        assert len(compiled.query.sql("duckdb")) < 4_000_000
    assert time.perf_counter() - start < MAX_SECONDS


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
def test_a_text_reaches_duckdb_as_it_is(data: duckdb.DuckDBPyConnection, text: str):
    quoted = text.replace("'", "''")
    compiled = compile_query(parse(f"select '{quoted}' as `x`, concat('{quoted}', t) as y", FIELDS), FIELDS, "data")
    data.execute("CREATE OR REPLACE TABLE data AS SELECT 'end' AS t")
    assert data.sql(compiled.query.sql("duckdb")).fetchall() == [(text, text + "end")]


INJECTIONS = [
    "'; DROP TABLE data; --",
    '"; DROP TABLE data; --',
    "x' OR '1'='1",
    "\\'; SELECT 1; --",
    "$$x$$",
    "E'\\n'",
]


@pytest.mark.parametrize("text", INJECTIONS)
def test_names_and_texts_stay_names_and_literals(data: duckdb.DuckDBPyConnection, text: str):
    fields = [Field(text, TEXT)]
    name, literal = text.replace("`", "``"), text.replace("'", "''")
    compiled = compile_query(parse(f"select `{name}`, '{literal}' as `{name}2` where `{name}` = '{literal}'", fields),
                             fields, "data")  # fmt: skip
    column = text.replace('"', '""')
    data.execute(f'CREATE TABLE data AS SELECT $1 AS "{column}"', [text])
    assert data.sql(compiled.query.sql("duckdb")).fetchall() == [(text, text)]
    assert {each.name for each in compiled.query.find_all(exp.Table)} == {"data", "step 1"}
