"""The deadline: it ends what takes too long, and never claims a cancellation that is somebody else's."""

import asyncio
import time
from contextlib import suppress

import pytest

from almanac.core.timers import Deadline, TimerQueue

LONG = 30.0
SHORT = 0.01


async def test_what_is_quick_enough_is_left_alone():
    deadline = Deadline(TimerQueue(LONG))
    with deadline:
        await asyncio.sleep(0)
    assert not deadline.is_over


async def test_what_takes_too_long_is_cancelled_and_leaves_with_timeout_error():
    begun, deadline = time.monotonic(), Deadline(TimerQueue(SHORT))
    with pytest.raises(TimeoutError), deadline:
        await asyncio.sleep(LONG)
    assert deadline.is_over
    assert time.monotonic() - begun < 5


async def test_afterwards_the_task_goes_on_as_if_nothing_had_happened():
    with suppress(TimeoutError), Deadline(TimerQueue(SHORT)):
        await asyncio.sleep(LONG)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_an_error_inside_passes_through_unchanged():
    with pytest.raises(ZeroDivisionError), Deadline(TimerQueue(LONG)):
        _ = 1 / 0


async def test_a_timeout_error_raised_inside_is_not_ours():
    deadline = Deadline(TimerQueue(LONG))
    with pytest.raises(TimeoutError), deadline:
        raise TimeoutError("a socket's own")
    assert not deadline.is_over


async def test_a_cancellation_from_outside_stays_a_cancellation():
    outcome: list[str] = []

    async def work() -> None:
        deadline = Deadline(TimerQueue(LONG))
        try:
            with deadline:
                await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            outcome.append(f"cancelled, over: {deadline.is_over}")
            raise

    task = asyncio.create_task(work())
    await asyncio.sleep(SHORT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert outcome == ["cancelled, over: False"]


async def test_when_both_happen_at_once_the_outer_cancellation_wins():
    async def work() -> None:
        with Deadline(TimerQueue(SHORT)):
            await asyncio.sleep(LONG)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    time.sleep(SHORT * 2)  # both are due in the loop's next round
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_inner_of_two_ends_only_what_is_inside_it():
    with Deadline(TimerQueue(LONG)) as outer:
        with suppress(TimeoutError), Deadline(TimerQueue(SHORT)) as inner:
            await asyncio.sleep(LONG)
        await asyncio.sleep(0)
    assert (inner.is_over, outer.is_over) == (True, False)


async def test_the_outer_of_two_ends_both_and_only_the_outer_is_over():
    inner, outer = Deadline(TimerQueue(LONG)), Deadline(TimerQueue(SHORT))
    with pytest.raises(TimeoutError), outer, inner:
        await asyncio.sleep(LONG)
    assert (inner.is_over, outer.is_over) == (False, True)


async def test_two_that_end_at_once_end_with_one_timeout_error():
    inner, outer = Deadline(TimerQueue(SHORT)), Deadline(TimerQueue(SHORT))
    with pytest.raises(TimeoutError), outer, inner:
        time.sleep(SHORT * 2)
        await asyncio.sleep(LONG)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_body_that_turns_the_cancellation_into_an_error_of_its_own_leaves_no_trace():
    with pytest.raises(ConnectionError), Deadline(TimerQueue(SHORT)):
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            raise ConnectionError("closed while waiting") from None
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with pytest.raises(TimeoutError), Deadline(TimerQueue(SHORT)):  # the next one is none the worse for it
        await asyncio.sleep(LONG)


async def test_a_deadline_on_the_cleaning_up_after_a_cancellation_still_says_timeout():
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(LONG)
        finally:
            try:
                with Deadline(TimerQueue(SHORT)):
                    await asyncio.sleep(LONG)
            except TimeoutError:
                seen.append("timeout")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["timeout"]


class Bell:
    """A sleeper that notes when it was woken."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()

    def expire(self) -> None:
        self.woken.set()


async def test_an_alarm_wakes_each_sleeper_in_its_own_time_and_none_that_was_dropped():
    alarm, loop = TimerQueue(0.05), asyncio.get_running_loop()
    early, dropped, late = Bell(), Bell(), Bell()
    begun = loop.time()
    alarm.set(early, loop)
    alarm.set(dropped, loop)
    await asyncio.sleep(0.03)
    alarm.set(late, loop)
    alarm.drop(dropped)
    await early.woken.wait()
    assert loop.time() - begun >= 0.05
    assert not late.woken.is_set()
    await late.woken.wait()
    assert loop.time() - begun >= 0.08
    assert not dropped.woken.is_set()


async def test_an_alarm_that_had_nobody_to_wake_can_be_set_again():
    alarm, loop = TimerQueue(0.01), asyncio.get_running_loop()
    for _ in range(3):
        bell, gone = Bell(), Bell()
        alarm.set(gone, loop)
        alarm.drop(gone)
        await asyncio.sleep(0.02)
        alarm.set(bell, loop)
        await bell.woken.wait()
