"""The refreshing cache: values are used for a while, then renewed in the background."""

import asyncio
import time

import pytest

from almanac.core.errors import NotFound
from almanac.search.index import caching
from almanac.search.index.caching import RefreshingCache, SharedTask
from tests.waiting import never


class Counter:
    """A source with another number at each call."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.times, self.fails = seconds, 0, False

    async def __call__(self) -> tuple[int, float]:
        self.times += 1
        await asyncio.sleep(0)
        if self.fails:
            raise NotFound("It is gone.")
        return self.times, self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_value_is_believed_and_then_renewed_while_it_serves_on(clock: list[float]):
    known, count = RefreshingCache[int](), Counter(10.0)
    assert [await known.get_or_load("k", count) for _ in range(3)] == [1, 1, 1]
    clock[0] += 10
    assert [await known.get_or_load("k", count), await known.get_or_load("k", count)] == [1, 1]
    await settle()
    assert await known.get_or_load("k", count) == count.times == 2
    clock[0] += 10 + 10 * caching.STALE_FACTOR
    assert await known.get_or_load("k", count) == 3  # too old to serve


async def test_what_is_not_to_be_believed_is_found_out_each_time(clock: list[float]):
    known, count = RefreshingCache[int](), Counter(0.0)
    assert [await known.get_or_load("k", count) for _ in range(3)] == [1, 2, 3]


async def test_what_could_not_be_renewed_is_told_when_the_old_is_of_no_more_use(clock: list[float]):
    known, count = RefreshingCache[int](), Counter(10.0)
    await known.get_or_load("k", count)
    count.fails = True
    clock[0] += 11
    assert await known.get_or_load("k", count) == 1
    await settle()
    assert (await known.get_or_load("k", count), count.times) == (1, 2)
    await settle()
    clock[0] += 10 * caching.STALE_FACTOR
    with pytest.raises(NotFound):
        await known.get_or_load("k", count)


async def test_nothing_goes_on_after_it_is_closed(clock: list[float]):
    known, count = RefreshingCache[int](), Counter(10.0)
    await known.get_or_load("k", count)
    clock[0] += 11
    await known.get_or_load("k", count)
    await known.close()
    await settle()
    assert count.times == 1  # it had not begun


async def test_shared_work_ends_with_the_last_who_waits_for_it():
    shared, task = SharedTask(), asyncio.create_task(never())
    waiting = [asyncio.create_task(shared.wait(task)) for _ in range(2)]
    await settle()
    waiting[0].cancel()
    await settle()
    assert not task.done()
    waiting[1].cancel()
    await settle()
    assert task.cancelled()


async def test_shared_work_is_done_for_all_who_wait_for_it():
    shared, count = SharedTask(), Counter(1.0)
    task = asyncio.create_task(count())
    assert await asyncio.gather(shared.wait(task), shared.wait(task)) == [(1, 1.0), (1, 1.0)]
    assert await shared.wait(task) == (1, 1.0)
