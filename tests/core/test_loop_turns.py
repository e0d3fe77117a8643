"""Organisations take turns on the event loop."""

import asyncio
import time
from contextlib import suppress

import pytest

from almanac.core.loop_turns import MAX_STEP_SECONDS, LoopTurns, pause

STEP_SECONDS = 0.003


def compute(seconds: float) -> None:
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        pass


async def work(steps: int, done: list[str], name: str, seconds: float = STEP_SECONDS) -> str:
    for _ in range(steps):
        compute(seconds)
        done.append(name)
        await asyncio.sleep(0)
    return name


async def test_a_request_does_not_wait_for_all_requests_of_another_organisation():
    turns, done = LoopTurns(), list[str]()
    attack = [asyncio.ensure_future(turns.run("a", work(5, done, "a"))) for _ in range(40)]
    await turns.run("b", work(10, done, "b", seconds=0.0001))
    assert done.count("a") < 40 + 40, "each step of b waited for a step of every request of a"
    await asyncio.gather(*attack)
    assert done.count("a") == 200


async def test_requests_that_began_while_their_organisation_was_alone_do_not_delay_another():
    turns, done = LoopTurns(), list[str]()
    attack = [asyncio.ensure_future(turns.run("a", work(5, done, "a"))) for _ in range(40)]
    while len(done) < 40:
        await asyncio.sleep(0)
    before = len(done)
    await turns.run("b", work(10, done, "b", seconds=0.0001))
    assert done.count("a") < before + 80, "each step of b waited for a step of every request of a"
    await asyncio.gather(*attack)
    assert done.count("a") == 200


async def test_a_long_step_ends_at_a_pause_although_a_part_of_it_ran_by_turns_too():
    turns, done = LoopTurns(), list[str]()

    async def outer() -> None:
        await turns.run("a", asyncio.sleep(0))
        done.append(await turns.run("a", work(0, done, "inner")))
        compute(2 * MAX_STEP_SECONDS)
        await pause()
        done.append("outer")

    async def other() -> None:
        await asyncio.sleep(0)
        done.append("other")

    await asyncio.gather(turns.run("a", outer()), other())
    assert done == ["inner", "other", "outer"]


async def test_one_organisation_alone_never_waits():
    turns, done = LoopTurns(), list[str]()
    await asyncio.gather(*(turns.run("a", work(3, done, str(number))) for number in range(5)))
    assert done == ["0", "1", "2", "3", "4"] * 3


async def test_an_organisation_continues_when_the_others_have_finished():
    turns, done = LoopTurns(), list[str]()
    finished = await asyncio.gather(
        *(turns.run("a", work(20, done, "a")) for _ in range(5)), turns.run("b", work(2, done, "b"))
    )
    assert finished == [*"aaaaa", "b"]


async def test_results_and_errors_reach_the_caller():
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def recover() -> str:
        loop = asyncio.get_running_loop()
        failed = loop.create_future()
        loop.call_soon(failed.set_exception, TimeoutError())
        try:
            return await failed
        except TimeoutError:
            return "recovered"

    turns = LoopTurns()
    with pytest.raises(ValueError, match="no"):
        await turns.run("a", fail())
    assert await turns.run("a", recover()) == "recovered"


async def test_a_waiting_request_can_be_cancelled_and_the_others_continue():
    turns, done = LoopTurns(), list[str]()
    tasks = [asyncio.ensure_future(turns.run("a", work(10, done, "a"))) for _ in range(10)]
    await turns.run("b", work(3, done, "b"))
    for task in tasks[:5]:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert [task.cancelled() for task in tasks[:5]] == [True] * 5
    assert await asyncio.gather(*tasks[5:]) == ["a"] * 5


async def test_the_coroutine_is_closed_with_its_task():
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("closed")

    task = asyncio.ensure_future(LoopTurns().run("a", wait()))
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert ended == ["closed"]
