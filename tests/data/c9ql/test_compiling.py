"""Properties of the compiled SQL that the callers rely on."""

import subprocess
import sys
from datetime import date, datetime

import duckdb
import pytest
from sqlglot import exp

from almanac.data.c9ql import C9qlError, Context, compile_query, parse
from almanac.data.c9ql.reshapes import MAX_TRANSPOSED_FIELDS
from almanac.data.fields import DATE, INTEGER, TEXT, TIMESTAMP, Field
from tests.data.c9ql import page

FIELDS = [
    Field("name", TEXT),
    Field("Name", INTEGER, column="c2"),
    Field("at", TIMESTAMP),
]
NOW = datetime(2026, 1, 15)

# Every function that the compiled SQL may call: the allow-list of SQL must permit them.
SQL_FUNCTIONS = """
    ABS ACOS AND ARG_MAX ARRAY ARRAY_TO_STRING ASIN ATAN AVG CASE CAST CBRT CEIL COALESCE CONCAT CONTAINS COS COSH COUNT
    DATE_SUB DATE_TRUNC DAY DAYOFWEEK DENSE_RANK EPOCH EPOCH_MS EXISTS EXP FLOOR GENERATE_SERIES GREATEST IF
    JSON_EXTRACT_STRING JSON_TYPE LAG LEAST LEN LENGTH LIST LIST_EXTRACT LIST_SLICE LIST_SORT LN LOG10 LOWER MAX MEDIAN
    MIN MONTH NULLIF OR POW QUANTILE_CONT RADIANS RANGE RANK REGEXP_EXTRACT_ALL REGEXP_REPLACE REPLACE ROUND ROW_NUMBER
    SIN SPLIT_PART SQRT STDDEV_SAMP STRFTIME STRING_AGG STRING_SPLIT STRUCT_EXTRACT SUBSTRING SUM TAN TO_DAYS TO_JSON
    TO_MICROSECONDS TO_MILLISECONDS TO_MONTHS TO_SECONDS TRIM TRY_CAST TRY_STRPTIME UNNEST UPPER WEEK
"""


def functions_of(query: exp.Query) -> set[str]:
    """Return the names of the functions in a query."""
    return {
        str(each.this).upper() if isinstance(each, exp.Anonymous) else each.sql_name()
        for each in query.find_all(exp.Func)
    }


@pytest.mark.parametrize("example", page.EXAMPLE.findall(page.PAGE.read_text("utf-8")), ids=lambda each: each[1][:40])
def test_the_sql_calls_known_functions_and_reads_one_table(example: tuple[str, str, str]):
    table, text, _ = example[0] or "sales", example[1], example[2]
    keys = [["Transactional", "Newsletter"]]
    compiled = compile_query(parse(text, page.FIELDS[table]), page.FIELDS[table], table, transposed=keys)
    assert functions_of(compiled.query) <= set(SQL_FUNCTIONS.split())
    tables = {each.name for each in compiled.query.find_all(exp.Table)}
    assert {each for each in tables if not each.startswith("step ")} == {table}
    assert all(each.this.args.get("quoted") for each in compiled.query.find_all(exp.Column))


def test_fields_that_differ_in_case_are_kept_apart(data: duckdb.DuckDBPyConnection):
    data.execute("CREATE TABLE t AS SELECT 'x' AS name, 7 AS c2, TIMESTAMP '2026-01-01' AS at")
    compiled = compile_query(parse("select *; select Name, name, Name + 1 as more", FIELDS), FIELDS, "t")
    assert [each.name for each in compiled.fields] == ["Name", "name", "more"]
    assert data.execute(compiled.query.sql("duckdb")).fetchall() == [(7, "x", 8)]


def test_a_transpose_asks_for_its_keys_first(data: duckdb.DuckDBPyConnection):
    data.execute("CREATE TABLE t AS SELECT * FROM (VALUES ('b', 1), ('a', 2), (NULL, 3)) AS v(name, c2)")
    fields = [Field("name", TEXT), Field("n", INTEGER, column="c2")]
    query = parse("select transpose(name, n); select a, b, a + b as sum", fields)
    first = compile_query(query, fields, "t")
    assert first.asks_for_keys
    keys = [row[0] for row in data.execute(first.query.sql("duckdb")).fetchall()]
    assert keys == ["b", "a"]
    second = compile_query(query, fields, "t", transposed=[keys])
    assert not second.asks_for_keys
    assert data.execute(second.query.sql("duckdb")).fetchall() == [(2, 1, 3)]


def test_a_transpose_of_an_empty_table_has_no_rows(data: duckdb.DuckDBPyConnection):
    data.execute("CREATE TABLE t (name VARCHAR, n BIGINT)")
    fields = [Field("name", TEXT), Field("n", INTEGER)]
    compiled = compile_query(parse("select transpose(name, n)", fields), fields, "t", transposed=[[]])
    assert data.execute(compiled.query.sql("duckdb")).fetchall() == []


def test_a_transpose_with_too_many_keys_is_refused():
    query = parse("select transpose(name, at)", FIELDS)
    with pytest.raises(C9qlError, match="more than 500 fields"):
        compile_query(query, FIELDS, "t", transposed=[[str(each) for each in range(MAX_TRANSPOSED_FIELDS + 1)]])


def test_parameters_are_literals_and_take_the_type_beside_them(data: duckdb.DuckDBPyConnection):
    data.execute("CREATE TABLE t AS SELECT 'x''; --' AS name, DATE '2026-01-02' AS day")
    fields = [Field("name", TEXT), Field("day", DATE)]
    text = 'where name in $c9_n${list|"|,}$ and day between $c9_d${from|yyyy-MM-dd}$ and $c9_d${to|}$'
    parameters = {"n": ["x'; --"], "d": ["2026-01-01", "2026-01-02"]}
    compiled = compile_query(parse(text, fields), fields, "t", context=Context(NOW, parameters))
    assert len(data.execute(compiled.query.sql("duckdb")).fetchall()) == 1


def test_a_timestamp_is_compared_with_a_date_by_the_day(data: duckdb.DuckDBPyConnection):
    data.execute("CREATE TABLE t AS SELECT TIMESTAMP '2026-01-02 10:00' AS at")
    fields = [Field("at", TIMESTAMP)]
    holds = {"=": True, "!=": False, "<": False, "<=": True, ">": False, ">=": True}
    for operator, expected in holds.items():
        compiled = compile_query(parse(f"select at {operator} 2026-01-02 as x", fields), fields, "t")
        assert data.execute(compiled.query.sql("duckdb")).fetchall() == [(expected,)], operator


def test_a_date_in_quotes_beside_dates_is_a_date(data: duckdb.DuckDBPyConnection):
    data.execute("CREATE TABLE t AS SELECT DATE '2026-01-02' AS day UNION ALL SELECT NULL")
    fields = [Field("day", DATE)]
    compiled = compile_query(parse("select ifnull(day, 2026-01-01) as x", fields), fields, "t")
    assert [each.type for each in compiled.fields] == [DATE]
    assert data.execute(compiled.query.sql("duckdb")).fetchall() == [(date(2026, 1, 2),), (date(2026, 1, 1),)]


def test_json_null_expands_to_no_row(data: duckdb.DuckDBPyConnection):
    data.execute("CREATE TABLE t AS SELECT '[1, {\"a\": 2}]' AS j UNION ALL SELECT NULL UNION ALL SELECT '3'")
    fields = [Field("j", TEXT)]
    compiled = compile_query(parse("select expand(j); select j.a, j", fields), fields, "t")
    rows = data.execute(compiled.query.sql("duckdb")).fetchall()
    assert rows == [(None, "1"), ("2", '{"a":2}'), (None, "3")]


def test_the_command_does_not_import_the_language():
    code = "import sys, almanac.cli; print([m for m in ('duckdb', 'sqlglot', 'rapidfuzz') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
