"""Pushes: one push is one version, types widen as far as they must, and a repeated push stores nothing twice."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.errors import BadRequest, Forbidden
from almanac.data import datasets, push, versions
from almanac.data.compaction import CompactDataset, compact
from almanac.data.dataset import Dataset, FieldEdit
from almanac.data.engine import DataEngine, open_data
from almanac.data.fields import Field
from almanac.data.new_rows import NewRows
from almanac.data.parquet_source import ParquetFile, source_sql
from almanac.data.push import PushOptions, PushResult
from almanac.data.row_writer import Kept, RowWriter, WriteLimits, WrittenFile
from almanac.data.versions import DatasetChanged
from almanac.jobs import queue
from tests.data.warehouse import Warehouse


class Pusher:
    """Pushes rows, and reads them back with a bare engine."""

    def __init__(self, warehouse: Warehouse, engine: DataEngine) -> None:
        self.warehouse = warehouse
        self.engine = engine

    async def push(self, *rows: dict[str, Any], by: Call | None = None, name: str = "Sales", **how: Any) -> PushResult:
        return await push.push(by or self.warehouse.ada, self.engine, name, rows, PushOptions(**how))

    async def rows(self, number: int | None = None, name: str = "Sales") -> list[dict[str, Any]]:
        dataset = await self.dataset(name)
        stored = await versions.files_of(self.warehouse.db, dataset, number)
        version = await versions.get(self.warehouse.db, dataset, number)
        files = [ParquetFile(self.warehouse.files.path(file.name), file.fields) for file in stored]
        with duckdb.connect() as connection:
            found = connection.sql(source_sql(files, version.fields)).fetchall()
        assert len(found) == version.row_count
        return [dict(zip((field.name for field in version.fields), row, strict=True)) for row in found]

    async def dataset(self, name: str = "Sales") -> Dataset:
        return await datasets.get_by_name(self.warehouse.db, self.warehouse.ada, name)

    async def types(self) -> dict[str, str]:
        return {field.name: str(field.type.kind) for field in (await self.dataset()).fields}


@pytest.fixture
async def pusher(warehouse: Warehouse) -> AsyncIterator[Pusher]:
    async with open_data(warehouse.files, b"key") as engine:
        yield Pusher(warehouse, engine)


async def test_the_first_push_creates_the_dataset_and_the_next_ones_append(pusher: Pusher):
    first = await pusher.push({"Größe m": 1, "city": "Graz"}, {"Größe m": 2, "city": None})
    assert (first.is_new, first.pushed_rows, first.version and first.version.number) == (True, 2, 1)
    second = await pusher.push({"city": "Wien", "Größe m": 3}, name="sales")
    assert (second.is_new, second.dataset.row_count, second.dataset.version) == (False, 3, 2)
    assert await pusher.rows() == [
        {"Größe m": 1, "city": "Graz"},
        {"Größe m": 2, "city": None},
        {"Größe m": 3, "city": "Wien"},
    ]
    assert len(await pusher.rows(1)) == 2


async def test_types_widen_as_far_as_the_values_need_and_the_answer_says_so(pusher: Pusher):
    await pusher.push({"n": 1, "d": "2026-01-31", "b": True, "x": 1, "l": [1], "r": {"a": 1}})
    done = await pusher.push(
        {"n": 2.5, "d": "2026-01-31T12:00:00Z", "b": "maybe", "x": "007", "l": ["a"], "r": {"b": 2}}
    )
    assert set(done.widened) == {
        ("n", "integer", "decimal"),
        ("d", "date", "timestamp"),
        ("b", "boolean", "text"),
        ("x", "integer", "text"),
    }
    first, second = await pusher.rows()
    assert first == {
        "n": 1.0, "d": datetime(2026, 1, 31), "b": "true", "x": "1", "l": ["1"], "r": {"a": 1, "b": None},
    }  # fmt: skip
    assert second == {
        "n": 2.5, "d": datetime(2026, 1, 31, 12), "b": "maybe", "x": "007", "l": ["a"], "r": {"a": None, "b": 2},
    }  # fmt: skip


async def test_a_field_of_nulls_takes_the_type_of_its_first_value(pusher: Pusher):
    await pusher.push({"a": None, "b": 1})
    assert await pusher.types() == {"a": "text", "b": "integer"}
    await pusher.push({"a": 5, "b": None})
    assert await pusher.types() == {"a": "integer", "b": "integer"}
    assert await pusher.rows() == [{"a": None, "b": 1}, {"a": 5, "b": None}]


async def test_names_that_differ_in_case_only_are_different_fields(pusher: Pusher):
    await pusher.push({"Name": "a", "name": "b"})
    await pusher.push({"NAME": "c", "name": "d"})
    assert await pusher.rows() == [
        {"Name": "a", "name": "b", "NAME": None},
        {"Name": None, "name": "d", "NAME": "c"},
    ]


async def test_odd_names_and_hostile_text_stay_as_they_are(pusher: Pusher):
    row = {'a"b': "';DROP TABLE x;--", "c d": "\\N", "é\u0301": "\u202e", "select": 1, "c0": 2, "*": {"x y": [None]}}
    await pusher.push(row)
    # A list without a value has no type for its elements, so it is kept as JSON text.
    assert await pusher.rows() == [{**row, "*": {"x y": "[null]"}}]


async def test_a_declared_type_refuses_other_values_and_changes_nothing(pusher: Pusher, warehouse: Warehouse):
    made = (await pusher.push({"n": 1.5})).dataset
    edit = {"n": FieldEdit(declared_type="decimal")}
    await warehouse.do(lambda tx: datasets.update(warehouse.ada, tx, made.id, notes=edit))
    await pusher.push({"n": 2})
    with pytest.raises(BadRequest, match=r"Row 2: the value of 'n' is no decimal"):
        await pusher.push({"n": 3}, {"n": "many"})
    assert await pusher.rows() == [{"n": 1.5}, {"n": 2.0}]


async def test_replacing_with_nothing_keeps_the_rows_unless_the_caller_insists(pusher: Pusher):
    await pusher.push({"n": 1}, {"n": 2})
    await pusher.push({"m": "a"}, strategy="replace")
    assert await pusher.rows() == [{"m": "a"}]
    assert (await pusher.push(strategy="replace")).version is None
    assert await pusher.rows() == [{"m": "a"}]
    await pusher.push(strategy="replace_even_if_empty")
    assert await pusher.rows() == []
    assert await pusher.types() == {"m": "text"}


async def test_an_upsert_replaces_rows_with_the_same_keys_and_the_last_of_equal_new_rows_wins(pusher: Pusher):
    await pusher.push({"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": None, "v": "c"})
    await pusher.push({"id": 2, "v": "x"}, {"id": 3, "v": "y"}, {"id": 2, "v": "z"}, strategy="upsert", keys=("id",))
    rows = await pusher.rows()
    assert sorted(rows, key=str) == sorted(
        [{"id": 1, "v": "a"}, {"id": None, "v": "c"}, {"id": 2, "v": "z"}, {"id": 3, "v": "y"}], key=str
    )
    with pytest.raises(BadRequest, match="Row 1 has no value of the key"):
        await pusher.push({"v": "a"}, strategy="upsert", keys=("id",))


async def test_simultaneous_upserts_lose_no_row(pusher: Pusher):
    await pusher.push({"id": 0, "v": 0})
    await asyncio.gather(*(pusher.push({"id": n, "v": n}, strategy="upsert", keys=("id",)) for n in range(1, 5)))
    assert sorted(row["id"] for row in await pusher.rows()) == [0, 1, 2, 3, 4]


async def test_rows_older_than_the_period_are_left_out(pusher: Pusher):
    today = datetime.now(UTC).date()
    rows = [{"day": str(today - timedelta(days=days))} for days in (1, 20, 400)]
    await pusher.push(*rows, {"day": None})
    await pusher.push({"day": str(today)}, strategy="expire", date_field="day", keep_for="1m")
    kept = [row["day"] for row in await pusher.rows()]
    assert kept == [today - timedelta(days=1), today - timedelta(days=20), None, today]


async def test_a_repeated_push_stores_nothing_even_at_the_same_time(pusher: Pusher):
    done = await asyncio.gather(*(pusher.push({"n": 1}, idempotency_key="a") for _ in range(4)))
    assert len(await pusher.rows()) == 1
    assert {each.version and each.version.number for each in done} == {1}
    assert (await pusher.push({"n": 1}, idempotency_key="a")).is_repeated
    await pusher.push({"n": 1}, idempotency_key="b")
    assert len(await pusher.rows()) == 2


BAD_PUSHES: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    ([], {}),
    ([{}], {}),
    ([{"": 1}], {}),
    ([{"a\x07": 1}], {}),
    ([{"x" * 201: 1}], {}),
    ([{str(n): n for n in range(1_001)}], {}),
    ([{"a": 1}], {"strategy": "merge"}),
    ([{"a": 1}], {"strategy": "upsert"}),
    ([{"a": 1}], {"keys": ("a",)}),
    ([{"a": 1}], {"strategy": "expire", "date_field": "a", "keep_for": "1y"}),
    ([{"a": "2026-01-01"}], {"strategy": "expire", "date_field": "a", "keep_for": "soon"}),
    ([{"a": 1}], {"strategy": "upsert", "keys": ("b",)}),
]


@pytest.mark.parametrize(("rows", "how"), BAD_PUSHES)
async def test_a_bad_push_is_refused_and_leaves_no_dataset(pusher: Pusher, rows: list[dict[str, Any]], how: Any):
    with pytest.raises(BadRequest):
        await pusher.push(*rows, **how)
    assert (await datasets.find(pusher.warehouse.ada)).total == 0
    assert await pusher.warehouse.files.remove_unused(pusher.warehouse.db) == 0


async def test_a_push_to_the_dataset_of_a_colleague_is_denied_and_to_a_name_of_another_organisation_is_not(
    pusher: Pusher, warehouse: Warehouse
):
    await pusher.push({"n": 1})
    with pytest.raises(Forbidden):
        await pusher.push({"n": 2}, by=warehouse.bob)
    assert (await pusher.push({"n": 3}, by=warehouse.eve)).is_new
    assert await pusher.rows() == [{"n": 1}]


class InterruptedWriter(RowWriter):
    """Writes rows, while somebody else commits a version of the dataset."""

    def __init__(self, commit: Callable[[], Awaitable[object]]) -> None:
        super().__init__(WriteLimits())
        self._commit = commit

    async def write(self, fields: Sequence[Field], new: NewRows | None, kept: Kept | None = None) -> WrittenFile:
        written = await super().write(fields, new, kept)
        await self._commit()
        return written


async def test_an_upsert_that_always_meets_another_push_gives_up_and_says_so(pusher: Pusher, warehouse: Warehouse):
    made = (await pusher.push({"id": 1})).dataset
    writer = InterruptedWriter(lambda: warehouse.commit(made))
    engine = replace(pusher.engine, writer=writer)
    with pytest.raises(DatasetChanged, match="changed by somebody else"):
        await push.push(warehouse.ada, engine, "Sales", [{"id": 1}], PushOptions("upsert", keys=("id",)))
    await writer.close()


async def test_many_small_pushes_become_one_file_and_every_version_keeps_its_rows(pusher: Pusher, warehouse: Warehouse):
    for number in range(versions.FILES_PER_COMPACTION):
        await pusher.push({"n": number, "v": number if number < 20 else "text"})
    made = await pusher.dataset()
    jobs = await queue.claim(warehouse.db, "a-worker", [versions.COMPACT_JOB], limit=10, lease=clock.MINUTE)
    assert [(job.payload, job.org_id) for job in jobs] == [({"dataset": made.id}, made.org_id)]
    before = await pusher.rows()
    await CompactDataset(warehouse.db, pusher.engine)(jobs[0])
    assert len(await versions.files_of(warehouse.db, await pusher.dataset())) == 1
    assert await pusher.rows() == before
    assert len(await pusher.rows(5)) == 5
    assert not await compact(warehouse.db, pusher.engine, made.id)
    await pusher.push({"n": 99})
    assert [row["n"] for row in await pusher.rows()] == [*range(versions.FILES_PER_COMPACTION), 99]


async def test_rows_that_are_pushed_during_a_compaction_stay_behind_the_merged_ones(
    pusher: Pusher, warehouse: Warehouse
):
    for number in range(10):
        await pusher.push({"n": number})
    made = await pusher.dataset()
    writer = InterruptedWriter(lambda: pusher.push({"n": 10}))
    assert await compact(warehouse.db, replace(pusher.engine, writer=writer), made.id)
    assert [row["n"] for row in await pusher.rows()] == list(range(11))
    assert len(await versions.files_of(warehouse.db, await pusher.dataset())) == 2
    await writer.close()


async def test_a_compaction_whose_rows_are_replaced_meanwhile_changes_nothing(pusher: Pusher, warehouse: Warehouse):
    for number in range(10):
        await pusher.push({"n": number})
    made = await pusher.dataset()
    writer = InterruptedWriter(lambda: pusher.push({"n": 0}, strategy="replace"))
    assert not await compact(warehouse.db, replace(pusher.engine, writer=writer), made.id)
    assert await pusher.rows() == [{"n": 0}]
    assert await warehouse.files.remove_unused(warehouse.db) == 0
    await writer.close()
