"""Profiles: made in the background for the latest version, shown only to callers who see all rows."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from almanac.core import clock
from almanac.core.call import Call
from almanac.data import dataset_index, datasets, profiles, push, row_rules, run, versions
from almanac.data.dataset import Dataset, FieldEdit
from almanac.data.dataset_index import collection_of
from almanac.data.engine import DataEngine, open_data
from almanac.data.profile_job import ProfileDataset
from almanac.data.push import PushOptions
from almanac.data.versions import Commit
from almanac.jobs import queue
from almanac.search import passage_store
from tests.data.warehouse import Warehouse

ORDERS: list[dict[str, Any]] = [
    {"City": "Graz", "amount": 10, "day": "2026-01-01", "tags": ["a"], "note": "x" * 300},
    {"City": "Graz", "amount": 20, "day": "2026-01-11", "tags": ["b"], "note": None},
    {"City": "Wien", "amount": None, "day": "2026-01-03", "tags": [], "note": None},
]


class Profiler:
    """Pushes rows and runs the profile jobs."""

    def __init__(self, warehouse: Warehouse, engine: DataEngine) -> None:
        self.warehouse = warehouse
        self.engine = engine
        self.handler = ProfileDataset(warehouse.db, warehouse.files, engine.pool)

    async def push(self, name: str, *rows: dict[str, Any], strategy: str = "append") -> Dataset:
        ada = self.warehouse.ada
        return (await push.push(ada, self.engine, name, rows, PushOptions(strategy))).dataset

    async def run_jobs(self) -> int:
        """Run the waiting profile jobs as a worker does, and return their number."""
        now = clock.now() + clock.HOUR
        done = await queue.claim(self.warehouse.db, "test", [profiles.PROFILE_JOB], limit=10, lease=clock.HOUR, now=now)
        for job in done:
            effect = await self.handler(job)

            async def settle(tx: Any, job: Any = job, effect: Any = effect) -> None:
                assert await queue.finish(tx, job)
                if effect is not None:
                    await effect(tx)

            await self.warehouse.do(settle)
        return len(done)

    async def profile(self, dataset: Dataset, *, by: Call | None = None) -> tuple[Any, str]:
        seen = await self.warehouse.get(dataset, by=by)
        return await run.profile_seen(by or self.warehouse.ada, seen)

    async def restrict(self, dataset: Dataset, condition: str = "", hidden: tuple[str, ...] = ()) -> None:
        """Set the rule of Bob."""
        ada, current = self.warehouse.ada, await self.warehouse.get(dataset)
        await self.warehouse.do(
            lambda tx: row_rules.put(ada, tx, current, user="bob", condition=condition, hidden=hidden)
        )

    async def indexed(self, dataset: Dataset) -> str:
        """The text of a dataset in the search index."""
        found = await passage_store.find(self.warehouse.db, "dataset", str(dataset.id))
        return "\n".join(passage.text for passage in found)


@pytest.fixture
async def profiler(warehouse: Warehouse) -> AsyncIterator[Profiler]:
    async with open_data(warehouse.files, b"a key") as engine:
        yield Profiler(warehouse, engine)


async def test_a_profile_has_nulls_distinct_values_range_frequent_values_and_a_histogram(profiler: Profiler):
    made = await profiler.push("Orders", *ORDERS)
    assert (await profiler.profile(made))[1] == run.LATE_PROFILE_NOTE
    assert await profiler.run_jobs() == 1
    profile, note = await profiler.profile(made)
    assert (profile.version, note) == (1, "")
    city, amount, day, tags, remark = profile.fields
    assert (city.name, city.nulls, city.distinct, city.lowest, city.highest) == ("City", 0, 2, "Graz", "Wien")
    assert city.frequent == (("Graz", 2), ("Wien", 1))
    assert (amount.nulls, amount.lowest, amount.highest) == (1, 10, 20)
    assert amount.histogram == (1, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    assert (day.lowest, day.highest, day.histogram) == ("2026-01-01", "2026-01-11", (1, 0, 1, 0, 0, 0, 0, 0, 0, 1))
    assert (tags.name, tags.nulls, tags.distinct, tags.frequent) == ("tags", 0, None, ())
    assert (remark.nulls, remark.frequent, remark.lowest) == (2, (), "x" * 100)


async def test_values_that_a_histogram_cannot_hold_leave_it_out(profiler: Profiler):
    rows = [{"Name": 'x"y', 'odd "name"': number, "same": 5, "yes": True} for number in (-1e308, 1e308, float(2**60))]
    made = await profiler.push("Odd", *rows)
    await profiler.run_jobs()
    _, odd, same, yes = (await profiler.profile(made))[0].fields
    assert (odd.lowest, odd.highest, odd.histogram) == (-1e308, 1e308, ())
    assert (same.lowest, same.highest, same.histogram) == (5, 5, ())
    assert (yes.lowest, yes.highest, yes.frequent) == (True, True, ())


async def test_many_pushes_share_a_job_and_compaction_needs_none(profiler: Profiler):
    made = await profiler.push("Orders", *ORDERS)
    for _ in range(3):
        await profiler.push("Orders", *ORDERS)
    assert await profiler.run_jobs() == 1
    assert (await profiler.profile(made))[0].version == 4
    current = await profiler.warehouse.get(made)
    files = await versions.files_of(profiler.warehouse.db, current)
    same = Commit("compact", current.fields, kept=files, ended=None, base_version=4)
    await profiler.warehouse.do(lambda tx: versions.commit(tx, current, same, None))
    assert await profiler.run_jobs() == 0
    profile, _ = await profiler.profile(made)
    assert (profile.version, profile.fields[0].frequent) == (5, (("Graz", 8), ("Wien", 4)))


async def test_a_push_during_a_job_is_profiled_afterwards(profiler: Profiler):
    made = await profiler.push("Orders", *ORDERS)
    handler = profiler.handler

    async def interrupted(job: Any) -> Any:
        effect = await handler(job)
        await profiler.push("Orders", {"City": "Linz"})
        return effect

    profiler.handler = interrupted  # pyright: ignore[reportAttributeAccessIssue]
    await profiler.run_jobs()
    profiler.handler = handler
    assert (await profiler.profile(made))[0].version == 1
    assert await profiler.run_jobs() == 1
    assert (await profiler.profile(made))[0].version == 2


async def test_a_profile_is_deleted_with_its_version(profiler: Profiler):
    made = await profiler.push("Orders", *ORDERS)
    await profiler.run_jobs()
    await profiler.push("Orders", *ORDERS)
    await profiler.run_jobs()
    count = "SELECT version FROM field_profiles ORDER BY version"
    assert [row["version"] for row in await profiler.warehouse.db.fetch(count)] == [1, 2]
    await profiler.warehouse.do(lambda tx: versions.prune(tx, clock.now() + clock.DAY))
    assert [row["version"] for row in await profiler.warehouse.db.fetch(count)] == [2]
    await profiler.warehouse.do(lambda tx: datasets.remove(profiler.warehouse.ada, tx, made.id))
    await profiler.warehouse.do(lambda tx: datasets.purge(tx, clock.now() + clock.DAY))
    assert await profiler.warehouse.db.fetch(count) == []


async def test_a_lost_job_is_added_again(profiler: Profiler):
    made = await profiler.push("Orders", *ORDERS)
    await profiler.warehouse.do(lambda tx: tx.execute("DELETE FROM jobs"))
    await profiles.enqueue_missing(profiler.warehouse.db)
    await profiles.enqueue_missing(profiler.warehouse.db)
    assert await profiler.run_jobs() == 1
    await profiles.enqueue_missing(profiler.warehouse.db)
    assert await profiler.run_jobs() == 0
    assert (await profiler.profile(made))[0].version == 1


@pytest.mark.parametrize(("condition", "hidden"), [("City = 'Wien'", ()), ("", ("note",))])
async def test_a_caller_with_a_rule_gets_no_profile_and_is_told_why(
    profiler: Profiler, condition: str, hidden: tuple[str, ...]
):
    made = await profiler.push("Orders", *ORDERS)
    await profiler.run_jobs()
    bob = profiler.warehouse.bob
    assert (await profiler.profile(made, by=bob))[0] is not None
    await profiler.restrict(made, condition, hidden)
    assert await profiler.profile(made, by=bob) == (None, run.NO_PROFILE_NOTE)
    assert (await profiler.profile(made))[0] is not None


async def test_the_index_has_the_name_description_fields_and_frequent_values(profiler: Profiler):
    made = await profiler.push("Orders", *ORDERS)
    assert await profiler.indexed(made) == "Orders"
    ada = profiler.warehouse.ada
    edit = {"amount": FieldEdit(label="Turnover", unit="EUR", synonyms=("sales", "revenue"))}
    await profiler.warehouse.do(lambda tx: datasets.update(ada, tx, made.id, description="Of the shop", notes=edit))
    text = await profiler.indexed(made)
    assert "Of the shop" in text and "Turnover (amount): EUR: sales, revenue" in text and "Graz" not in text
    await profiler.run_jobs()
    assert "City: Graz, Wien" in await profiler.indexed(made)
    await profiler.push("Orders", {"City": "Linz"}, strategy="replace")
    await profiler.run_jobs()
    assert "City: Linz\n" in await profiler.indexed(made) + "\n"


async def test_a_rule_removes_values_and_hidden_fields_from_the_index_at_once(profiler: Profiler):
    made = await profiler.push("Orders", *ORDERS)
    await profiler.run_jobs()
    assert "Graz" in await profiler.indexed(made) and "note" in await profiler.indexed(made)
    await profiler.restrict(made, "City = 'Wien'")
    assert "Graz" not in await profiler.indexed(made) and "note" in await profiler.indexed(made)
    await profiler.restrict(made, hidden=("note",))
    await profiler.push("Orders", *ORDERS)
    await profiler.run_jobs()
    text = await profiler.indexed(made)
    assert "City" in text and "Graz" not in text and "note" not in text
    current = await profiler.warehouse.get(made)
    await profiler.warehouse.do(lambda tx: row_rules.remove(tx, current, user="bob"))
    assert "Graz" in await profiler.indexed(made) and "note" in await profiler.indexed(made)


async def test_a_profile_that_was_computed_before_a_rule_is_not_indexed_after_it(profiler: Profiler):
    made = await profiler.push("Orders", *ORDERS)
    fetch = profiler.handler._profile  # pyright: ignore[reportPrivateUsage]

    async def slow(dataset: Dataset) -> Any:
        computed = await fetch(dataset)
        await profiler.restrict(made, "City = 'Wien'")
        return computed

    profiler.handler._profile = slow  # pyright: ignore[reportPrivateUsage]
    await profiler.run_jobs()
    assert "Graz" not in await profiler.indexed(made) and "City" in await profiler.indexed(made)


async def test_a_dataset_leaves_the_index_with_the_trash_and_returns(profiler: Profiler):
    made, ada = await profiler.push("Orders", *ORDERS), profiler.warehouse.ada
    await profiler.run_jobs()
    await profiler.warehouse.do(lambda tx: datasets.remove(ada, tx, made.id))
    assert await profiler.indexed(made) == ""
    await profiler.warehouse.do(lambda tx: datasets.restore(ada, tx, made.id))
    assert "Graz" in await profiler.indexed(made)
    await profiler.warehouse.do(lambda tx: datasets.remove(ada, tx, made.id))
    await profiler.warehouse.do(lambda tx: datasets.purge(tx, clock.now() + clock.DAY))
    rows = await profiler.warehouse.db.fetch("SELECT 1 FROM sources WHERE collection = $1", collection_of(made.org_id))
    assert rows == []


async def test_differences_between_the_index_and_the_datasets_are_found_and_repaired(profiler: Profiler):
    db, made = profiler.warehouse.db, await profiler.push("Orders", *ORDERS)
    assert await dataset_index.compare(db) == []
    await profiler.warehouse.do(lambda tx: dataset_index.remove(tx, [made.id]))
    assert await dataset_index.compare(db) == [made.id]
    assert (await dataset_index.repair(db), await dataset_index.compare(db)) == (1, [])
    changes = "UPDATE datasets SET name = 'Sales'", "UPDATE datasets SET removed_at = 1"
    for change in changes:
        await profiler.warehouse.do(lambda tx, sql=change: tx.execute(sql))
        assert await dataset_index.compare(db) == [made.id]
        assert (await dataset_index.repair(db), await dataset_index.compare(db)) == (1, [])
    assert await profiler.indexed(made) == ""
