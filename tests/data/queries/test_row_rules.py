"""Row rules: a query answers as if the hidden rows and fields did not exist. No error, count or time tells of them."""

import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from almanac.core.errors import AlmanacError
from almanac.data.fields import INTEGER, TEXT, Field
from almanac.data.queries.query_plan import DatasetFiles, QueryPlan
from almanac.data.queries.query_pool import QueryPool, QueryRefused
from tests.data.queries.conftest import write_parquet

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
FIELDS = (Field("a", INTEGER), Field("b", INTEGER), Field("t", TEXT), Field("hidden", TEXT))
HIDDEN = ("hidden",)


async def answer(pool: QueryPool, dataset: DatasetFiles, sql: str) -> Any:
    """The fields and rows of a query, or its error."""
    try:
        result = await pool.run(QueryPlan(sql, {"data": dataset}, now=NOW))
    except AlmanacError as error:
        return error.text
    return result.fields, result.rows, result.total_rows


def dataset(path: Path, condition: str | None = None, hidden: tuple[str, ...] = ()) -> DatasetFiles:
    return DatasetFiles([path], FIELDS, condition, hidden)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two visible rows, whose text is a number, and hidden ones, whose text is not."""
    text = "CASE WHEN range < 2 THEN '1' ELSE 'hidden-' || range END"
    rows = f"SELECT range AS a, range % 7 AS b, {text} AS t, 'x' AS hidden FROM range(1000)"
    return write_parquet(tmp_path_factory.mktemp("rules") / "x.parquet", rows)


# Each of these has an error, or takes long, on a hidden row.
PROBES = [
    "SELECT count(*) FROM data WHERE CAST(t AS INT) = 1",
    "SELECT CAST(t AS INT) AS x FROM data",
    "SELECT sum(CAST(t AS INT)) AS x FROM data",
    "SELECT count(*) FROM data WHERE 1000 // (a - 5) < 0 AND strptime(t, '%d') IS NOT NULL",
    "WITH x AS (SELECT * FROM data) SELECT count(*) FROM x WHERE CAST(t AS INT) > 0",
    "SELECT count(*) FROM data x JOIN data y ON CAST(x.t AS INT) = CAST(y.t AS INT)",
    "SELECT (SELECT max(CAST(t AS INT)) FROM data) AS x",
    "SELECT a FROM data WHERE a IN (SELECT CAST(t AS INT) FROM data)",
    "SELECT count(*) FROM data WHERE CASE WHEN a >= 2 THEN CAST('x' || t AS INT) > 0 ELSE true END",
    "SELECT a FROM data ORDER BY CAST(t AS INT), a",
    "SELECT t, count(*) FROM data GROUP BY t HAVING CAST(t AS INT) = 1",
    "SELECT DISTINCT ON (CAST(t AS INT)) a FROM data ORDER BY CAST(t AS INT), a",
    "SELECT row_number() OVER (ORDER BY CAST(t AS INT), a) AS x FROM data QUALIFY x > 0",
    "SELECT x FROM data, unnest([CAST(t AS INT)]) AS u(x)",
    "SELECT min(t), max(t), count(t), approx_count_distinct(t), mode(t) FROM data",
]


@pytest.mark.parametrize("sql", PROBES)
async def test_an_expression_is_never_evaluated_on_a_hidden_row(pool: QueryPool, file: Path, sql: str):
    assert "cannot be converted" in str(await answer(pool, dataset(file), PROBES[1]))  # without the rule it fails
    fields, rows, _ = await answer(pool, dataset(file, "a < 2"), sql)
    assert fields
    assert "hidden" not in str(rows)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT hidden FROM data",
        "SELECT data.hidden FROM data",
        "SELECT d.hidden FROM data AS d",
        "SELECT a FROM data WHERE hidden = 'x'",
        "SELECT a FROM data ORDER BY hidden",
        "SELECT HIDDEN FROM data",
        "SELECT * EXCLUDE (hidden) FROM data",
        "SELECT count(hidden) FROM data",
        "SELECT a FROM data JOIN data AS o USING (hidden)",
        "SELECT (SELECT max(hidden) FROM data)",
        "SELECT data['hidden'] FROM data",
        "SELECT struct_extract(data, 'hidden') FROM data",
    ],
)
@pytest.mark.parametrize("condition", [None, "a < 2"])
async def test_a_hidden_field_does_not_exist(pool: QueryPool, file: Path, tmp_path: Path, sql: str, condition: str):
    with_rule = await answer(pool, dataset(file, condition, HIDDEN), sql)
    bare = write_parquet(tmp_path / "bare.parquet", f"SELECT a, b, t FROM '{file}' WHERE {condition or 'true'}")
    without_field = await answer(pool, DatasetFiles([bare], FIELDS[:3]), sql)
    assert with_rule == without_field
    assert isinstance(with_rule, str)


async def test_a_star_and_a_whole_row_leave_out_hidden_fields(pool: QueryPool, file: Path):
    rule = dataset(file, "a < 1", HIDDEN)
    assert (await answer(pool, rule, "SELECT * FROM data"))[1] == [[0, 0, "1"]]
    assert (await answer(pool, rule, "SELECT d.* FROM data d"))[1] == [[0, 0, "1"]]
    assert (await answer(pool, rule, "SELECT d AS x FROM data d"))[1] == [[{"a": 0, "b": 0, "t": "1"}]]


@pytest.mark.parametrize(
    "condition", ["a <", "nosuch = 1", "CAST(t AS INT) = 1", "a IN (SELECT a FROM data)", "t + 1 > 0"]
)
async def test_a_rule_that_cannot_be_applied_shows_nothing(pool: QueryPool, file: Path, condition: str):
    with pytest.raises(QueryRefused) as error:
        await pool.run(QueryPlan("SELECT * FROM data", {"data": dataset(file, condition)}))
    assert error.value.message == "A row rule of this dataset cannot be applied. Tell its owner."


async def test_a_condition_that_is_null_hides_the_row(pool: QueryPool, file: Path):
    _, rows, _ = await answer(pool, dataset(file, "CASE WHEN a > 0 THEN NULL ELSE true END"), "SELECT a FROM data")
    assert rows == [[0]]


CELLS = st.none() | st.integers(-3, 3)
TABLES = st.lists(st.tuples(CELLS, CELLS, st.none() | st.sampled_from(["", "1", "x", "é'"])), max_size=8)
VALUES = st.sampled_from(["a", "b", "length(t)", "a + b", "CAST(t AS INT)", "a // b", "1", "coalesce(a, 0)"])
CONDITIONS = st.builds(
    "{} {} {}".format, VALUES, st.sampled_from(["=", "<", "<>", "IS DISTINCT FROM"]), VALUES
) | st.sampled_from(["t = 'x'", "t IS NULL", "a IS NOT NULL", "a IN (1, 2)", "NOT a = b"])
QUERIES = st.builds(
    "SELECT {} FROM data WHERE {} ORDER BY ALL".format,
    st.sampled_from(["*", "a, t", "count(*), sum(a), max(t)", "CAST(t AS INT)", "data.*, a + b AS s", "to_json(data)"]),
    CONDITIONS,
) | st.builds(
    "SELECT x.a, count(*) AS n FROM data x {} GROUP BY 1 HAVING count(*) > {} ORDER BY ALL".format,
    st.sampled_from(["LEFT JOIN data y ON x.a = y.b AND CAST(y.t AS INT) = 1", "NATURAL JOIN data y", ""]),
    st.integers(0, 2),
)  # fmt: skip
SAFE_CONDITIONS = st.sampled_from(
    [
        "a > 0",
        "b = 1 OR t = 'x'",
        "t IS NOT NULL",
        "a IS NULL",
        "a < b",
        "false",
        "true",
        "NOT (a = 1)",
        "length(t) = 1",
    ]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=TABLES, condition=SAFE_CONDITIONS, sql=QUERIES)
async def test_a_query_with_a_rule_equals_one_on_a_dataset_without_the_hidden_rows_and_fields(
    pool: QueryPool, tmp_path: Path, rows: list[tuple[Any, ...]], condition: str, sql: str
):
    values = ", ".join(f"({', '.join(map(literal, row))}, 'secret')" for row in [*rows, (0, 0, "")])
    table = (
        f"SELECT a::BIGINT AS a, b::BIGINT AS b, t::VARCHAR AS t, h AS hidden FROM (VALUES {values}) AS v(a, b, t, h)"
    )
    whole = write_parquet(tmp_path / "whole.parquet", table)
    visible = write_parquet(tmp_path / "visible.parquet", f"SELECT a, b, t FROM ({table}) WHERE {condition}")
    expected = await answer(pool, DatasetFiles([visible], FIELDS[:3]), sql)
    assert await answer(pool, dataset(whole, condition, HIDDEN), sql) == expected


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
