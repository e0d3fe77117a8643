"""Versions: a commit is seen as a whole, old versions stay readable, and files without a version disappear."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from almanac.core import clock
from almanac.core.errors import NotFound
from almanac.data import versions
from almanac.data.versions import DatasetChanged
from tests.data.warehouse import Warehouse

STEPS = st.lists(
    st.tuples(st.just("append"), st.integers(1, 3))
    | st.tuples(st.just("replace"), st.integers(0, 3))
    | st.tuples(st.just("compact"), st.just(1))
    | st.tuples(st.just("restore"), st.integers(0, 100)),
    min_size=1,
    max_size=8,
)


async def test_appending_adds_rows_and_replacing_leaves_only_the_new_ones(warehouse: Warehouse):
    made = await warehouse.add("Sales")
    assert (await warehouse.commit(made, rows=[2, 3])).row_count == 5
    assert (await warehouse.commit(made, rows=[4])).row_count == 9
    replaced = await warehouse.commit(made, "replace", rows=[1], ended=None)
    assert (replaced.number, replaced.row_count, replaced.author_name) == (3, 1, "ada")
    stored = await warehouse.get(made)
    assert (stored.version, stored.row_count, [field.name for field in stored.fields]) == (3, 1, ["n"])
    assert [each.number for each in await versions.find(warehouse.db, stored)] == [3, 2, 1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(steps=STEPS)
async def test_every_version_keeps_its_files_whatever_follows(warehouse: Warehouse, steps: Sequence[tuple[str, int]]):
    made = await warehouse.add(f"Sales {clock.now()}")
    history: list[list[str]] = [[]]
    digests: list[str] = [""]
    for change, amount in steps:
        if change == "restore" and len(history) == 1:
            continue
        if change == "restore":
            number = 1 + amount % (len(history) - 1)
            stored = await warehouse.get(made)
            done = await warehouse.do(
                lambda tx, stored=stored, number=number: versions.restore(warehouse.ada, tx, stored, number)
            )
            assert await warehouse.hashes(made) == history[number]
            assert done.digest == digests[number]
        else:
            done = await warehouse.commit(made, change, rows=[1] * amount, ended=() if change == "append" else None)
        current = await warehouse.hashes(made)
        assert change != "append" or current[: len(history[-1])] == history[-1]
        assert done.row_count == len(current)
        history.append(current)
        digests.append(done.digest)
    for number, expected in enumerate(history[1:], 1):
        assert await warehouse.hashes(made, number) == expected


async def test_a_commit_on_a_version_that_is_no_longer_current_fails_and_changes_nothing(warehouse: Warehouse):
    made = await warehouse.add("Sales")
    await warehouse.commit(made, rows=[1])
    done = await asyncio.gather(
        *(warehouse.commit(made, "upsert", rows=[2], ended=None, base_version=1) for _ in range(4)),
        return_exceptions=True,
    )
    assert sum(isinstance(each, DatasetChanged) for each in done) == 3
    assert (await warehouse.get(made)).version == 2
    assert len(await warehouse.hashes(made)) == 1


async def test_simultaneous_appends_all_count(warehouse: Warehouse):
    made = await warehouse.add("Sales")
    done = await asyncio.gather(*(warehouse.commit(made, rows=[1]) for _ in range(10)))
    assert sorted(each.number for each in done) == list(range(1, 11))
    assert (await warehouse.get(made)).row_count == 10
    assert [each.row_count for each in sorted(done, key=lambda each: each.number)] == list(range(1, 11))


async def test_a_version_is_found_by_its_time(warehouse: Warehouse):
    made = await warehouse.add("Sales")
    before = clock.now() - 1
    first = await warehouse.commit(made, rows=[1])
    second = await warehouse.commit(made, rows=[1])
    stored = await warehouse.get(made)
    assert (await versions.as_of(warehouse.db, stored, first.created_at)).number in (1, 2)
    assert (await versions.as_of(warehouse.db, stored, second.created_at)).number == 2
    with pytest.raises(NotFound, match="or before"):
        await versions.as_of(warehouse.db, stored, before)


async def test_compaction_is_no_change_for_readers(warehouse: Warehouse):
    made = await warehouse.add("Sales")
    await warehouse.commit(made, rows=[1, 1, 1])
    before = await warehouse.get(made)
    await warehouse.commit(made, "compact", rows=[3], ended=None)
    after = await warehouse.get(made)
    assert (after.row_count, after.updated_at) == (before.row_count, before.updated_at)
    assert [each.change for each in await versions.find(warehouse.db, after)] == ["append"]


async def test_pruned_versions_lose_their_files_and_all_others_keep_theirs(warehouse: Warehouse):
    made = await warehouse.add("Sales")
    await warehouse.commit(made, rows=[1, 1])
    await warehouse.commit(made, rows=[1])
    await warehouse.commit(made, "replace", rows=[1, 1], ended=None)
    last = await warehouse.commit(made, rows=[1])
    kept = {number: await warehouse.hashes(made, number) for number in (3, 4)}
    third = await versions.get(warehouse.db, await warehouse.get(made), 3)
    assert await warehouse.do(lambda tx: versions.prune(tx, third.created_at + 1)) == 2
    assert await warehouse.files.remove_unused(warehouse.db) == 3
    stored = await warehouse.get(made)
    for number in (1, 2):
        with pytest.raises(NotFound, match="has no version"):
            await versions.get(warehouse.db, stored, number)
    assert {number: await warehouse.hashes(made, number) for number in (3, 4)} == kept
    assert (await versions.get(warehouse.db, stored)).digest == last.digest


async def test_the_key_of_a_push_finds_its_version_until_it_is_forgotten(warehouse: Warehouse):
    made = await warehouse.add("Sales")
    await warehouse.commit(made, rows=[1], push_key="a")
    found = await versions.find_push(warehouse.db, made.id, "a")
    assert found is not None and found.number == 1
    assert await versions.find_push(warehouse.db, made.id, "b") is None
    moment = found.created_at + 1
    await warehouse.do(lambda tx: versions.forget_push_keys(tx, moment))
    assert await versions.find_push(warehouse.db, made.id, "a") is None
