"""The timer queue expires timers in order and ignores those that were stopped."""

import asyncio

from almanac.core.timers import TimerQueue


class RecordingTimer:
    """A timer that sets an event when it expires."""

    def __init__(self) -> None:
        self.expired = asyncio.Event()

    def expire(self) -> None:
        self.expired.set()


async def test_a_queue_expires_each_timer_in_its_own_time_and_none_that_was_stopped():
    queue, loop = TimerQueue(0.05), asyncio.get_running_loop()
    early, stopped, late = RecordingTimer(), RecordingTimer(), RecordingTimer()
    begun = loop.time()
    queue.start(early, loop)
    queue.start(stopped, loop)
    await asyncio.sleep(0.03)
    queue.start(late, loop)
    queue.stop(stopped)
    await early.expired.wait()
    assert loop.time() - begun >= 0.05
    assert not late.expired.is_set()
    await late.expired.wait()
    assert loop.time() - begun >= 0.08
    assert not stopped.expired.is_set()


async def test_a_queue_whose_timers_were_all_stopped_can_be_used_again():
    queue, loop = TimerQueue(0.01), asyncio.get_running_loop()
    for _ in range(3):
        timer, stopped = RecordingTimer(), RecordingTimer()
        queue.start(stopped, loop)
        queue.stop(stopped)
        await asyncio.sleep(0.02)
        queue.start(timer, loop)
        await timer.expired.wait()
