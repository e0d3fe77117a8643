"""The guard ends code that takes too long, and does not convert cancellations from elsewhere."""

import asyncio
import time
from contextlib import suppress

import pytest

from almanac.core.errors import DeadlineExceeded
from almanac.core.timers import TimerQueue
from almanac.operations.pipeline.guard import RequestGuard
from tests.waiting import never

LONG = 30.0
SHORT = 0.01


def guard(seconds: float) -> RequestGuard:
    return RequestGuard(TimerQueue(min(seconds, SHORT)), seconds)


def is_over(guard: RequestGuard) -> bool:
    return isinstance(guard.error, DeadlineExceeded)


async def test_what_is_quick_enough_is_left_alone():
    deadline = guard(LONG)
    with deadline:
        await asyncio.sleep(0)
    assert not is_over(deadline)


async def test_what_takes_too_long_is_cancelled_and_leaves_with_deadline_exceeded():
    begun, deadline = time.monotonic(), guard(SHORT)
    with pytest.raises(DeadlineExceeded), deadline:
        await never()
    assert is_over(deadline)
    assert time.monotonic() - begun < 5


async def test_afterwards_the_task_goes_on_as_if_nothing_had_happened():
    with suppress(DeadlineExceeded), guard(SHORT):
        await never()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_an_error_inside_passes_through_unchanged():
    with pytest.raises(ZeroDivisionError), guard(LONG):
        _ = 1 / 0


async def test_a_timeout_error_raised_inside_is_not_ours():
    deadline = guard(LONG)
    with pytest.raises(TimeoutError), deadline:
        raise TimeoutError("a socket's own")
    assert not is_over(deadline)


async def test_a_cancellation_from_outside_stays_a_cancellation():
    outcome, begun = list[str](), asyncio.Event()

    async def work() -> None:
        deadline = guard(LONG)
        try:
            with deadline:
                begun.set()
                await never()
        except asyncio.CancelledError:
            outcome.append(f"cancelled, over: {is_over(deadline)}")
            raise

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert outcome == ["cancelled, over: False"]


async def test_when_both_happen_at_once_the_outer_cancellation_wins():
    async def work() -> None:
        with guard(SHORT):
            await never()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    time.sleep(SHORT * 2)  # both are due in the loop's next round
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_inner_of_two_ends_only_what_is_inside_it():
    with guard(LONG) as outer:
        with suppress(DeadlineExceeded), guard(SHORT) as inner:
            await never()
        await asyncio.sleep(0)
    assert (is_over(inner), is_over(outer)) == (True, False)


async def test_the_outer_of_two_ends_both_and_only_the_outer_is_over():
    inner, outer = guard(LONG), guard(SHORT)
    with pytest.raises(DeadlineExceeded), outer, inner:
        await never()
    assert (is_over(inner), is_over(outer)) == (False, True)


async def test_two_that_end_at_once_end_with_one_error():
    inner, outer = guard(SHORT), guard(SHORT)
    with pytest.raises(DeadlineExceeded), outer, inner:
        time.sleep(SHORT * 2)
        await never()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_body_that_turns_the_cancellation_into_an_error_of_its_own_leaves_no_trace():
    with pytest.raises(ConnectionError), guard(SHORT):
        try:
            await never()
        except asyncio.CancelledError:
            raise ConnectionError("closed while waiting") from None
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with pytest.raises(DeadlineExceeded), guard(SHORT):  # the next one is not affected
        await never()


async def test_a_deadline_on_the_cleaning_up_after_a_cancellation_still_ends_it():
    seen: list[str] = []

    async def work() -> None:
        try:
            await never()
        finally:
            try:
                with guard(SHORT):
                    await never()
            except DeadlineExceeded:
                seen.append("timeout")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["timeout"]
