"""A caller's SQL is read, checked and written anew, or refused with a message that helps."""

from datetime import UTC, datetime

import duckdb
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from almanac.data.c9ql import Context, compile_query, parse
from almanac.data.sql.errors import SqlError
from almanac.data.sql.read_sql import CheckedQuery, check_query, read_condition, read_sql
from almanac.data.sql.syntax import MAX_SQL_CHARS
from tests.data.c9ql import page
from tests.data.c9ql.test_page import EXAMPLES
from tests.data.escapes import ESCAPES

FIELDS = ["region", "amount", "count", "Order Date", "secret", "tags"]
TABLES = {"sales": FIELDS, "Größen, 2024": ["数量", "a b"]}
NOW = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)


def read(sql: str) -> CheckedQuery:
    return read_sql(sql, TABLES, NOW)


def refusal(sql: str) -> SqlError:
    with pytest.raises(SqlError) as error:
        read(sql)
    return error.value


@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_is_refused(name: str):
    paths = {"secret": "/etc/hostname", "dataset": "/data/x.parquet", "new": "/tmp/new", "file": "/f", "port": 1}
    sql = ESCAPES[name]
    refusal(sql.format(**paths) if "{" in sql else sql)


@pytest.mark.parametrize(
    ("sql", "written"),
    [
        (
            "select region, sum(amount) total from SALES group by 1 -- a comment",
            'SELECT "region", SUM("amount") AS "total" FROM "almanac_table_0" AS "SALES" GROUP BY 1',
        ),
        ('select "数量" from "größen, 2024"', 'SELECT "数量" FROM "almanac_table_0" AS "größen, 2024"'),
        (
            "with sales as (select * from sales) select s.region from sales s",
            'WITH "sales" AS (SELECT * FROM "almanac_table_0" AS "sales") SELECT "s"."region" FROM "sales" AS "s"',
        ),
        (
            "with a as (select x.amount b from sales x) select x.b from a x",
            'WITH "a" AS (SELECT "x"."amount" AS "b" FROM "almanac_table_0" AS "x") SELECT "x"."b" FROM "a" AS "x"',
        ),
        ("select /* x */ 'it''s' /* y */", "SELECT 'it''s'"),
        ("select list_filter(tags, t -> t > 'a') from sales",
         'SELECT LIST_FILTER("tags", LAMBDA "t" : "t" > \'a\') FROM "almanac_table_0" AS "sales"'),
        ("select * from range(3) r(i)", 'SELECT * FROM RANGE(0, 3) AS "r"("i")'),
        ("select current_date, now()", "SELECT CAST('2026-01-31' AS DATE), CAST('2026-01-31 12:30:00' AS TIMESTAMP)"),
    ],
)  # fmt: skip
def test_a_query_is_written_anew(sql: str, written: str):
    assert read(sql).sql == written


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select amuont from sales", 'Line 1, column 8: There is no field "amuont". Did you mean "amount"?'),
        ("select 1,\n  s.amout from sales s", 'Line 2, column 5: There is no field "amout". Did you mean "amount"?'),
        ("select 1 from sale", 'Line 1, column 15: There is no dataset "sale". Did you mean "sales"? Datasets: "s'),
        ("select summ(amount) from sales", 'The function "summ" is not available. Did you mean "sum"?'),
        ("select region from sales where", "Line 1, column"),
        ("select 1 +* 2", "Line 1, column"),
        ("", "The query is empty."),
        ("-- nothing", "The query is empty."),
        ("drop table sales", "The statement DROP is not a query. Only SELECT is possible."),
        ("select 1; select 2", "There are 2 statements. Write exactly one SELECT query."),
        ("x" * (MAX_SQL_CHARS + 1), "The query has 20,001 characters; at most 20,000 are allowed."),
        ("select '\u202e\x1b[31m' from sal\u202ees", "There is no dataset"),
    ],
)  # fmt: skip
def test_an_error_tells_position_expectation_and_nearest_name(sql: str, message: str):
    text = refusal(sql).text
    assert message in text
    assert all(character.isprintable() for character in text)


def test_a_hidden_field_is_answered_like_one_that_does_not_exist():
    visible = {"sales": ["region", "amount"]}
    errors: list[str] = []
    for name in ("secret", "nosuch"):
        with pytest.raises(SqlError) as error:
            read_sql(f"SELECT {name} FROM sales", visible, NOW)
        errors.append(error.value.text.replace(name, ""))
    assert errors[0] == errors[1]


def test_the_names_of_a_query_are_reported():
    query = read("SELECT count(*), max(Amount) FROM sales")
    assert query.tables == {"sales": "almanac_table_0"}
    assert "amount" in query.names
    assert not query.reads_all_columns
    assert read("SELECT * FROM sales").reads_all_columns
    assert read("SELECT s.* FROM sales s").reads_all_columns


@pytest.mark.parametrize(
    "build",
    [
        lambda: exp.select(exp.Literal(this="1; DROP TABLE x", is_string=False)),
        lambda: exp.select(exp.Anonymous(this="abs(1), read_text", expressions=[])),
        lambda: exp.select(exp.Var(this="1; ATTACH 'x'")),
        lambda: exp.select("1").from_(exp.Table(this=exp.Var(this="x; y"))),
        lambda: exp.select(exp.Interval(this=exp.Literal.string("1"), unit=exp.Var(this="day; x"))),
        lambda: exp.select(exp.Cast(this=exp.Literal.number(1), to=exp.DataType(this="INT; x"))),
        lambda: exp.select("1").from_("sales").join(exp.Join(this=exp.to_table("sales"), side="LEFT; x")),
        lambda: exp.Command(this="ATTACH", expression="'x'"),
        lambda: exp.select(exp.Column(this=exp.Identifier(this="a\0b"))),
    ],
)
def test_a_tree_that_was_built_is_checked_like_one_that_was_read(build: object):
    with pytest.raises(SqlError):
        check_query(build(), TABLES, NOW)  # type: ignore[operator]


def test_a_tree_that_was_built_is_written_with_quoted_names():
    tree = exp.select(exp.column('a" OR 1=1 --')).from_(exp.to_table("t"))
    assert check_query(tree, {"t": ['a" OR 1=1 --']}, NOW).sql == (
        'SELECT "a"" OR 1=1 --" FROM "almanac_table_0" AS "t"'
    )


@pytest.mark.parametrize(("table", "text", "result"), EXAMPLES)
def test_every_documented_example_of_c9ql_passes_the_check(table: str, text: str, result: str):
    name = table or "sales"
    fields = page.FIELDS[name]
    compiled = compile_query(parse(text, fields), fields, name, context=Context(page.NOW))
    check_query(compiled.query, {name: [each.column or each.name for each in fields]}, NOW)


def test_a_tree_that_was_built_may_have_series_with_computed_limits():
    lengths = exp.Anonymous(this="len", expressions=[exp.column("tags")])
    tree = exp.select(exp.Unnest(expressions=[exp.Anonymous(this="range", expressions=[lengths])])).from_("sales")
    assert check_query(tree, TABLES, NOW).sql == ('SELECT UNNEST(RANGE(LEN("tags"))) FROM "almanac_table_0" AS "sales"')
    assert "whole numbers" in refusal("SELECT unnest(range(len(tags))) FROM sales").text


@pytest.mark.parametrize("text", ["1) OR (1=1", "amount IN (SELECT 1)", "1=1) GROUP BY (1", "nosuch = 1", "getenv('x')",
                                  "1=1) UNION SELECT 1 FROM condition WHERE (1=1", "", ";"])  # fmt: skip
def test_a_condition_of_a_rule_is_one_expression_over_the_fields(text: str):
    with pytest.raises(SqlError):
        read_condition(text, FIELDS, NOW)


def test_a_condition_of_a_rule_is_written_anew():
    assert read_condition("region = 'x' -- y", FIELDS, NOW) == "(\"region\" = 'x')"


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50))
def test_any_text_stays_a_text(text: str):
    query = read_sql("SELECT 'x' AS y", {}, NOW)
    tree = sqlglot.parse_one(query.sql, dialect="duckdb")
    [literal] = tree.find_all(exp.Literal)
    literal.set("this", text)
    assert isinstance(tree, exp.Query)
    with duckdb.connect() as connection:
        assert connection.execute(check_query(tree, {}, NOW).sql).fetchall() == [(text,)]


@settings(deadline=None)
@given(st.text(max_size=60) | st.lists(st.sampled_from(
    ["SELECT", "FROM", "sales", "(", ")", "*", ",", "region", "WITH", "x", "AS", "'", '"', "--", "/*", ";", "1", "JOIN",
     "ON", "UNION", "[", "]", "{", "}", ":", "->", "CASE", "WHEN", "END", "::", "INT", "$", "?", "\0", "read_text"]),
    max_size=14).map(" ".join))  # fmt: skip
def test_any_text_is_read_or_refused_and_the_result_means_the_same_when_it_is_read_again(text: str):
    try:
        query = read(text)
    except SqlError:
        return
    inner = {name: TABLES[each] for each, name in query.tables.items()}
    again = sqlglot.parse(query.sql, dialect="duckdb")
    assert len(again) == 1
    assert isinstance(again[0], exp.Query)
    assert {table.name for table in again[0].find_all(exp.Table) if table.name.startswith("almanac_")} <= set(inner)
