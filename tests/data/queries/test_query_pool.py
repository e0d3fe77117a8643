"""Queries over Parquet files in confined processes: results, limits, fair shares, and processes that end."""

import asyncio
import os
import signal
from dataclasses import replace
from datetime import UTC
from pathlib import Path

import pytest

from almanac.core.errors import AlmanacError, DeadlineExceeded, Unavailable
from almanac.data.fields import BOOLEAN, DATE, DECIMAL, INTEGER, TEXT, TIMESTAMP, Field, list_of, record_of
from almanac.data.queries.query_plan import DatasetFiles, QueryPlan, QueryResult
from almanac.data.queries.query_pool import QueryPool, QueryRefused
from tests.data.c9ql import page
from tests.data.c9ql.test_page import EXAMPLES
from tests.data.escapes import COSTLY
from tests.data.queries.conftest import LIMITS, SALES, write_parquet
from tests.sandbox.processes import children_of, cpu_ticks, fork_server_of
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range + b.range = 7"


async def run(pool: QueryPool, sql: str, sales: DatasetFiles | None = None, **how: int) -> QueryResult:
    return await pool.run(replace(QueryPlan(sql, {"Sales": sales} if sales else {}), **how))


async def refusal(pool: QueryPool, sql: str, sales: DatasetFiles | None = None) -> str:
    with pytest.raises(QueryRefused) as error:
        await run(pool, sql, sales)
    return error.value.message


# Results


async def test_a_query_returns_fields_with_types_and_rows_as_lists_or_objects(pool: QueryPool, sales: DatasetFiles):
    result = await run(
        pool, 'SELECT region, sum(amount) AS total, min("Order Date") d FROM sales GROUP BY 1 ORDER BY 2 LIMIT 2', sales
    )
    assert result.fields == (Field("region", TEXT), Field("total", DECIMAL), Field("d", DATE))
    assert result.rows == [["south", 20.25, "2024-01-02"], ["north", 40.5, "2024-01-01"]]
    assert result.objects()[0] == {"region": "south", "total": 20.25, "d": "2024-01-02"}
    assert (result.total_rows, result.returned_rows, result.truncation) == (2, 2, None)
    assert result.datasets == ("Sales",)


@pytest.mark.parametrize(
    ("sql", "value", "kind"),
    [
        ("1::TINYINT", 1, INTEGER),
        ("9007199254740991", 9007199254740991, INTEGER),
        ("-9007199254740992", "-9007199254740992", INTEGER),
        ("9223372036854775807 * 10::INT128", "92233720368547758070", INTEGER),
        ("1.50::DECIMAL(10,2)", 1.5, DECIMAL),
        ("123456789012345678.25::DECIMAL(38,2)", "123456789012345678.25", DECIMAL),
        ("12345678901.25::DECIMAL(38,2)", 12345678901.25, DECIMAL),
        ("0.1::DOUBLE", 0.1, DECIMAL),
        ("'nan'::DOUBLE", "NaN", DECIMAL),
        ("'inf'::FLOAT", "Infinity", DECIMAL),
        ("'-inf'::DOUBLE", "-Infinity", DECIMAL),
        ("NULL::DOUBLE", None, DECIMAL),
        ("true", True, BOOLEAN),
        ("'a\"b\\\n\u202e漢'", 'a"b\\\n\u202e漢', TEXT),
        ("DATE '2024-01-31'", "2024-01-31", DATE),
        ("DATE 'infinity'", "infinity", DATE),
        ("DATE '0044-03-15 (BC)'", "0044-03-15 (BC)", DATE),
        ("TIMESTAMP '2024-01-31 12:00:00.5'", "2024-01-31T12:00:00.5", TIMESTAMP),
        ("TIMESTAMPTZ '2024-01-31 12:00:00+02'", "2024-01-31T10:00:00Z", TIMESTAMP),
        ("TIME '12:30:00'", "12:30:00", TEXT),
        ("INTERVAL '3' MONTH", "3 months", TEXT),
        ("'00000000-0000-0000-0000-000000000001'::UUID", "00000000-0000-0000-0000-000000000001", TEXT),
        ("NULL", None, TEXT),
        ("[1, NULL, 9007199254740993]", [1, None, "9007199254740993"], list_of(INTEGER)),
        ("[]::INT[]", [], list_of(INTEGER)),
        ("{'a': 1, 'b c': [DATE '2024-01-31']}", {"a": 1, "b c": ["2024-01-31"]},
         record_of(Field("a", INTEGER), Field("b c", list_of(DATE)))),
        ("[{'a': 'nan'::DOUBLE}]", [{"a": "NaN"}], list_of(record_of(Field("a", DECIMAL)))),
        ("MAP {'k': 1}", [{"key": "k", "value": 1}],
         list_of(record_of(Field("key", TEXT), Field("value", INTEGER)))),
    ],
)  # fmt: skip
async def test_values_have_the_same_meaning_in_json(pool: QueryPool, sql: str, value: object, kind: object):
    result = await run(pool, f"SELECT {sql} AS x")
    assert result.rows == [[value]]
    assert result.fields == (Field("x", kind),)  # type: ignore[arg-type]


async def test_fields_of_one_name_are_told_apart(pool: QueryPool):
    result = await run(pool, "SELECT 1 AS a, 2 AS a, 3 AS a_2, 4 AS A")
    assert [each.name for each in result.fields] == ["a", "a_2", "a_2_2", "A"]


async def test_a_result_without_rows_has_fields(pool: QueryPool, sales: DatasetFiles):
    result = await run(pool, "SELECT region, amount FROM sales WHERE false", sales)
    assert (result.rows, result.total_rows) == ([], 0)
    assert result.fields == (Field("region", TEXT), Field("amount", DECIMAL))


async def test_a_dataset_without_files_has_fields_and_no_rows(pool: QueryPool):
    result = await run(pool, "SELECT *, sum(amount) OVER () AS s FROM sales", DatasetFiles([], SALES))
    assert [each.name for each in result.fields] == [*(each.name for each in SALES), "s"]
    assert (await run(pool, "SELECT count(*) FROM sales", DatasetFiles([], SALES))).rows == [[0]]


async def test_the_answer_is_limited_in_rows_and_says_so(pool: QueryPool):
    result = await run(pool, "SELECT range AS i FROM range(100) ORDER BY i DESC", limit=3)
    assert result.rows == [[99], [98], [97]]
    assert result.total_rows == 100
    assert result.truncation == (
        "The answer has 3 of 100 rows, because it is limited to 3 rows. Aggregate or filter in the query, or select "
        "fewer fields."
    )


async def test_the_answer_is_limited_in_bytes_and_says_so(pool: QueryPool):
    result = await run(pool, "SELECT range AS i, repeat('x', 1000) AS t FROM range(5000)", max_bytes=100_000)
    assert 90 <= result.returned_rows < 100
    assert result.total_rows == 5000
    assert result.truncation is not None
    assert "97 KiB" in result.truncation


async def test_a_dataset_may_have_hundreds_of_files_with_different_fields(pool: QueryPool, tmp_path: Path):
    files = [write_parquet(tmp_path / "0.parquet", "SELECT 1 AS a, 0.5::DOUBLE AS b")]
    files += [write_parquet(tmp_path / f"{number}.parquet", f"SELECT {number} AS a") for number in range(1, 300)]
    dataset = DatasetFiles(files, [Field("a", INTEGER), Field("b", DECIMAL)])
    assert (await run(pool, "SELECT count(*), sum(a), sum(b) FROM sales", dataset)).rows == [[300, 44851, 0.5]]


async def test_names_of_datasets_and_fields_may_have_any_form(pool: QueryPool, tmp_path: Path):
    path = write_parquet(tmp_path / "x.parquet", 'SELECT 1 AS "Größe ""cm""", 2 AS "select", 3 AS "漢字 ; --"')
    fields = [Field('Größe "cm"', INTEGER), Field("select", INTEGER), Field("漢字 ; --", INTEGER)]
    plan = QueryPlan(
        'SELECT "größe ""cm""", t."select", "漢字 ; --" FROM "pg_class" t', {"PG_CLASS": DatasetFiles([path], fields)}
    )
    assert (await pool.run(plan)).rows == [[1, 2, 3]]


async def test_the_current_time_is_the_time_of_the_request(pool: QueryPool):
    plan = QueryPlan("SELECT now() AS a, current_date AS b, now() = current_timestamp AS c", {})
    first, second = await pool.run(plan), await pool.run(plan)
    assert first.rows == second.rows


# C9QL


async def test_every_documented_example_of_c9ql_runs(pool: QueryPool, tmp_path: Path):
    datasets: dict[str, DatasetFiles] = {}
    with page.connect() as connection:
        for name, fields in page.FIELDS.items():
            connection.execute(f"COPY {name} TO '{tmp_path / name}' (FORMAT parquet)")
            datasets[name] = DatasetFiles([tmp_path / name], fields)
    for table, text, result in EXAMPLES:
        name = table or "sales"
        plan = QueryPlan(text, {name: datasets[name]}, language="c9ql", now=page.NOW.replace(tzinfo=UTC))
        answer = await pool.run(plan)
        header = page.line([each.name for each in answer.fields])
        assert result.startswith(header), text
        assert len(result.splitlines()) == 2 + answer.total_rows, text


async def test_an_error_of_c9ql_tells_the_nearest_field(pool: QueryPool, sales: DatasetFiles):
    with pytest.raises(QueryRefused, match="amount"):
        await pool.run(QueryPlan("select amuont", {"sales": sales}, language="c9ql"))
    hidden = replace(sales, hidden=["secret"], condition="region = 'north'")
    with pytest.raises(QueryRefused, match="there is no field"):
        await pool.run(QueryPlan("select secret", {"sales": hidden}, language="c9ql"))
    assert (await pool.run(QueryPlan("select amount", {"sales": hidden}, language="c9ql"))).rows == [[10.5], [30.0]]


# Refusals


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT amuont FROM sales", 'Line 1, column 8: There is no field "amuont". Did you mean "amount"?'),
        ("SELECT sum(region) FROM sales", "No function matches the given name and argument types 'sum(VARCHAR)'"),
        ("SELECT region FROM sales GROUP BY amount", 'column "region" must appear in the GROUP BY clause'),
        ("SELECT CAST(secret AS INT) FROM sales", "A value cannot be converted. Use TRY_CAST"),
        ("SELECT 9223372036854775807 + count FROM sales", "A number is too large for its type."),
        ("SELECT strptime(secret, '%Y-%m-%d') FROM sales", "A function does not accept one of its values."),
        ("SELECT regexp_matches(region, '(') FROM sales", "A function does not accept one of its values."),
    ],
)
async def test_an_error_is_explained_without_values(pool: QueryPool, sales: DatasetFiles, sql: str, message: str):
    text = await refusal(pool, sql, sales)
    assert message in text
    assert "the-secret" not in text
    assert "/proc" not in text


async def test_a_missing_and_a_damaged_file_are_told_apart(pool: QueryPool, tmp_path: Path):
    with pytest.raises(Unavailable):
        await run(pool, "SELECT * FROM sales", DatasetFiles([tmp_path / "none"], SALES))
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 no parquet PAR1")
    assert "cannot be read" in await refusal(pool, "SELECT * FROM sales", DatasetFiles([damaged], SALES))


@pytest.mark.parametrize("name", COSTLY)
async def test_a_costly_query_is_stopped_in_time_and_others_continue(pool: QueryPool, sales: DatasetFiles, name: str):
    async def others() -> list[QueryResult]:
        return [await run(pool, "SELECT count(*) FROM sales", sales) for _ in range(3)]

    async def costly() -> str:
        try:
            plan = QueryPlan(COSTLY[name], {"Sales": sales}, max_bytes=100_000)
            return f"{(await pool.run(plan, seconds=3)).returned_rows} rows"
        except AlmanacError as error:
            return error.text

    async with asyncio.timeout(15):
        outcome, results = await asyncio.gather(costly(), others())
    assert [each.rows for each in results] == [[[5]]] * 3
    assert "took longer" in outcome or "memory" in outcome or outcome.endswith(" rows")


# Deadline and cancellation


async def test_a_query_is_stopped_at_its_deadline(pool: QueryPool):
    with pytest.raises(DeadlineExceeded, match=r"The query took longer than 0\.5 s"):
        await pool.run(QueryPlan(ENDLESS, {}), seconds=0.5)
    await until(lambda: len(children_of(fork_server_of(os.getpid()))) == LIMITS.processes)


async def test_cancellation_kills_the_process(pool: QueryPool):
    task = asyncio.create_task(pool.run(QueryPlan(ENDLESS, {})))
    server = fork_server_of(os.getpid())
    await until(lambda: any(cpu_ticks(pid) > 20 for pid in children_of(server)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not any(cpu_ticks(pid) > 20 for pid in children_of(server)))


# Processes that end


async def test_a_prepared_child_that_was_killed_is_not_noticed(pool: QueryPool, sales: DatasetFiles):
    server = fork_server_of(os.getpid())
    for _ in range(3):
        for pid in children_of(server):
            os.kill(pid, signal.SIGKILL)
        assert (await run(pool, "SELECT count(*) FROM sales", sales)).rows == [[5]]


async def test_a_running_child_that_was_killed_is_tried_once_more(pool: QueryPool):
    task = asyncio.create_task(pool.run(QueryPlan(ENDLESS, {})))
    server = fork_server_of(os.getpid())
    for _ in range(2):
        await until(lambda: any(cpu_ticks(pid) > 20 for pid in children_of(server)))
        os.kill(max(children_of(server), key=cpu_ticks), signal.SIGKILL)
        await until(lambda: not any(cpu_ticks(pid) > 20 for pid in children_of(server)) or task.done())
    with pytest.raises(Unavailable, match="interrupted"):
        await task
    assert (await run(pool, "SELECT 1 AS x")).rows == [[1]]


async def test_a_killed_fork_server_is_replaced(pool: QueryPool, sales: DatasetFiles):
    os.kill(fork_server_of(os.getpid()), signal.SIGKILL)
    assert (await run(pool, "SELECT count(*) FROM sales", sales)).rows == [[5]]
