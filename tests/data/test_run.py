"""Queries over datasets: rights, row rules, versions and receipts."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from almanac.core.call import Call
from almanac.core.errors import BadRequest, NotFound
from almanac.data import datasets, push, receipts, row_rules, run
from almanac.data.engine import DataEngine, open_data
from almanac.data.receipts import InvalidReceipt
from almanac.data.run import DataAnswer, DataQuery
from tests.data.warehouse import Warehouse

ORDERS = [
    {"City": "Graz", "net amount": 10, "region": "south", "margin": 1.5},
    {"City": "Wien", "net amount": 20, "region": "east", "margin": 2.5},
    {"City": "Graz", "net amount": 30, "region": "south", "margin": 3.5},
]


class Analyst:
    """Pushes and queries rows."""

    def __init__(self, warehouse: Warehouse, engine: DataEngine) -> None:
        self.warehouse = warehouse
        self.engine = engine

    async def push(self, name: str, *rows: dict[str, Any], by: Call | None = None) -> None:
        await push.push(by or self.warehouse.ada, self.engine, name, rows)

    async def run(self, sql: str, *, by: Call | None = None, **how: Any) -> DataAnswer:
        return await run.run(by or self.warehouse.ada, self.engine, DataQuery(sql, **how))

    async def rows(self, sql: str, *, by: Call | None = None, **how: Any) -> list[list[Any]]:
        return (await self.run(sql, by=by, **how)).rows

    async def restrict(self, name: str, condition: str = "", hidden: tuple[str, ...] = ()) -> None:
        """Set the rule of Bob."""
        ada = self.warehouse.ada
        dataset = await datasets.get_by_name(self.warehouse.db, ada, name)
        if condition:
            await run.check_condition(ada, self.engine, dataset, condition)
        await self.warehouse.do(
            lambda tx: row_rules.put(ada, tx, dataset, user="bob", condition=condition, hidden=hidden)
        )


@pytest.fixture
async def analyst(warehouse: Warehouse) -> AsyncIterator[Analyst]:
    async with open_data(warehouse.files, b"a key") as engine:
        yield Analyst(warehouse, engine)


async def test_datasets_are_named_as_tables_and_joined(analyst: Analyst):
    await analyst.push("My orders", *ORDERS)
    await analyst.push("Cities", {"name": "Graz", "people": 300_000}, {"name": "Wien", "people": 2_000_000})
    sql = (
        'SELECT c.name, sum(o."net amount") AS total FROM "my orders" o JOIN Cities c ON c.name = o.city'
        " GROUP BY c.name ORDER BY total DESC"
    )
    answer = await analyst.run(sql)
    assert answer.rows == [["Graz", 40], ["Wien", 20]]
    assert [(field.name, str(field.type.kind)) for field in answer.fields] == [("name", "text"), ("total", "integer")]
    assert sorted((read.name, read.rows) for read in answer.receipt.datasets) == [("Cities", 2), ("My orders", 3)]
    assert answer.receipt.rows_read == 5


async def test_another_organisation_has_no_such_table(analyst: Analyst):
    await analyst.push("Orders", *ORDERS)
    with pytest.raises(BadRequest) as foreign:
        await analyst.run("SELECT * FROM Orders", by=analyst.warehouse.eve)
    with pytest.raises(BadRequest) as absent:
        await analyst.run("SELECT * FROM Absent", by=analyst.warehouse.eve)
    assert foreign.value.text.replace("Orders", "Absent") == absent.value.text


async def test_rules_hide_rows_and_fields_from_those_whom_they_name_only(analyst: Analyst):
    await analyst.push("Orders", *ORDERS)
    await analyst.restrict("Orders", "region = 'south'", ("margin",))
    bob, admin = analyst.warehouse.bob, analyst.warehouse.admin
    assert await analyst.rows('SELECT count(*), sum("net amount") FROM Orders', by=bob) == [[2, 40]]
    answer = await analyst.run("SELECT * FROM Orders", by=bob)
    assert [field.name for field in answer.fields] == ["City", "net amount", "region"]
    with pytest.raises(BadRequest, match="margin"):
        await analyst.run("SELECT margin FROM Orders", by=bob)
    for call in (analyst.warehouse.ada, admin):
        assert await analyst.rows("SELECT count(*), max(margin) FROM Orders", by=call) == [[3, 3.5]]


async def test_a_condition_that_no_row_can_meet_by_its_types_is_refused(analyst: Analyst):
    await analyst.push("Orders", *ORDERS)
    for condition in ("regio = 'south'", "region =", "(SELECT 1)", "region = 'a'; DROP TABLE x"):
        with pytest.raises(BadRequest):
            await analyst.restrict("Orders", condition)


async def test_an_older_state_is_read_by_its_time(analyst: Analyst):
    await analyst.push("Orders", ORDERS[0])
    first = (await analyst.run("SELECT count(*) FROM Orders")).receipt
    await analyst.push("Orders", *ORDERS[1:])
    assert await analyst.rows("SELECT count(*) FROM Orders") == [[3]]
    assert await analyst.rows("SELECT count(*) FROM Orders", as_of=first.at) == [[1]]
    with pytest.raises(NotFound):
        await analyst.run("SELECT count(*) FROM Orders", as_of=1)


async def test_a_receipt_confirms_the_result_of_its_versions_and_lists_the_changes_since(analyst: Analyst):
    await analyst.push("Orders", *ORDERS)
    answer = await analyst.run('SELECT city, sum("net amount") AS total FROM Orders GROUP BY city ORDER BY city')
    await analyst.push("Orders", ORDERS[0])
    done = await run.verify(analyst.warehouse.bob, analyst.engine, answer.sealed)
    assert (done.is_confirmed, done.reason) == (True, "")
    assert [(change.number, change.row_count) for change in done.changes] == [(2, 4)]
    assert len(answer.sealed) < 600


async def test_a_receipt_is_not_confirmed_for_callers_who_see_something_else(analyst: Analyst):
    await analyst.push("Orders", *ORDERS)
    answer = await analyst.run("SELECT count(*) FROM Orders")
    await analyst.restrict("Orders", "region = 'south'")
    done = await run.verify(analyst.warehouse.bob, analyst.engine, answer.sealed)
    assert not done.is_confirmed
    assert "You see other rows" in done.reason


async def test_forged_damaged_and_foreign_receipts_are_refused_alike(analyst: Analyst):
    await analyst.push("Orders", *ORDERS)
    answer = await analyst.run("SELECT count(*) FROM Orders")
    forged = receipts.seal(answer.receipt, b"another key")
    for text in ("", "x", forged, answer.sealed[:-3] + "abc", "é" * 40, "A" * 50_000):
        with pytest.raises(InvalidReceipt):
            await run.verify(analyst.warehouse.ada, analyst.engine, text)
    with pytest.raises(InvalidReceipt):
        await run.verify(analyst.warehouse.eve, analyst.engine, answer.sealed)


async def test_the_same_query_on_the_same_versions_gives_the_same_answer_and_a_push_changes_it(analyst: Analyst):
    await analyst.push("Orders", *ORDERS)
    first, second = [await analyst.run("SELECT count(*) FROM Orders") for _ in range(2)]
    assert first.receipt.result == second.receipt.result
    await analyst.push("Orders", ORDERS[0])
    assert await analyst.rows("SELECT count(*) FROM Orders") == [[4]]


async def test_the_answer_says_how_many_rows_there_are_beyond_the_limit(analyst: Analyst):
    await analyst.push("Orders", *ORDERS)
    answer = await analyst.run("SELECT * FROM Orders", limit=2)
    assert (len(answer.rows), answer.total_rows) == (2, 3)
    assert "2 of 3 rows" in (answer.truncation or "")


async def test_c9ql_reads_one_dataset_under_the_same_rules(analyst: Analyst):
    await analyst.push("Orders", *ORDERS)
    c9ql: dict[str, Any] = {"language": "c9ql", "dataset": "orders"}
    answer = await analyst.run("select sum(net amount) as Total, City group by City order by City", **c9ql)
    assert ([field.name for field in answer.fields], answer.rows) == (["Total", "City"], [[40, "Graz"], [20, "Wien"]])
    assert [read.name for read in answer.receipt.datasets] == ["Orders"]
    assert (await run.verify(analyst.warehouse.ada, analyst.engine, answer.sealed)).is_confirmed
    await analyst.restrict("Orders", "region = 'south'", ("margin",))
    bob = analyst.warehouse.bob
    assert await analyst.rows("select sum(net amount) as total", by=bob, **c9ql) == [[40]]
    with pytest.raises(BadRequest, match=r"Column \d+: there is no field 'margin'"):
        await analyst.run("select margin", by=bob, **c9ql)
    with pytest.raises(BadRequest, match="Did you mean 'net amount'"):
        await analyst.run("select `net amout`", **c9ql)
    with pytest.raises(NotFound):
        await analyst.run("select *", language="c9ql", dataset="Orders", by=analyst.warehouse.eve)


async def test_a_transpose_makes_fields_of_values(analyst: Analyst):
    await analyst.push("Sales", {"city": "Graz", "year": "y1", "n": 1}, {"city": "Graz", "year": "y2", "n": 2})
    answer = await analyst.run("select transpose(year, n), city", language="c9ql", dataset="Sales")
    assert {field.name for field in answer.fields} >= {"y1", "y2"}


async def test_files_with_narrower_types_are_read_with_the_types_of_the_version(analyst: Analyst):
    await analyst.push("Mixed", {"v": True, "d": "2026-01-31"})
    await analyst.push("Mixed", {"v": 7, "d": "2026-01-31T10:00:00"})
    await analyst.push("Mixed", {"v": "text", "d": None})
    assert await analyst.rows("SELECT v, d FROM Mixed") == [
        ["true", "2026-01-31T00:00:00"],
        ["7", "2026-01-31T10:00:00"],
        ["text", None],
    ]
