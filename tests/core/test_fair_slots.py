"""Slots are shared fairly between organisations."""

import asyncio
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from almanac.core.fair_slots import ORG_ID, FairSlots, compute


class Tasks:
    """Tasks that hold a slot until they are told to end."""

    def __init__(self, slots: FairSlots) -> None:
        self.slots = slots
        self.running: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, name: str) -> None:
        """Start a task of the organisation that the first letter names; run until it holds a slot or waits."""
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name))
        await self.settle()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await self.settle()

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        with suppress(asyncio.CancelledError):
            await self.tasks[name]
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _hold(self, name: str) -> None:
        ORG_ID.set(name[0])
        async with self.slots.hold():
            self.running.append(name)
            try:
                await self.ends[name].wait()
            finally:
                self.running.remove(name)


async def test_one_organisation_has_the_usual_number_of_slots():
    tasks = Tasks(FairSlots(2))
    for name in ("a1", "a2", "a3"):
        await tasks.start(name)
    assert tasks.running == ["a1", "a2"]
    await tasks.end("a1")
    assert tasks.running == ["a2", "a3"]


async def test_an_organisation_without_running_tasks_does_not_wait_for_another():
    tasks = Tasks(FairSlots(2))
    for name in ("a1", "a2", "a3", "b1", "b2", "c1", "d1"):
        await tasks.start(name)
    assert tasks.running == ["a1", "a2", "b1", "c1"]


async def test_the_next_slot_goes_to_the_organisation_with_the_fewest_running_tasks():
    tasks = Tasks(FairSlots(1))
    for name in ("a1", "b1", "a2", "a3", "c1", "c2", "b2"):
        await tasks.start(name)
    assert tasks.running == ["a1", "b1"]
    await tasks.end("a1")
    assert tasks.running == ["b1", "a2"], "both have none running; a has waited longer"
    await tasks.end("a2")
    assert tasks.running == ["b1", "c1"]
    await tasks.end("b1")
    assert tasks.running == ["c1", "b2"], "b's turn comes before a's second one"


async def test_a_cancelled_task_takes_no_slot_with_it():
    tasks = Tasks(FairSlots(1))
    for name in ("a1", "a2", "a3"):
        await tasks.start(name)
    await tasks.cancel("a2")
    await tasks.cancel("a1")
    assert tasks.running == ["a3"]
    assert tasks.slots.waiting() == 0


async def test_a_slot_that_is_freed_while_its_next_task_is_cancelled_goes_to_another():
    tasks = Tasks(FairSlots(1))
    for name in ("a1", "a2", "a3"):
        await tasks.start(name)
    tasks.ends["a1"].set()
    tasks.tasks["a2"].cancel()
    await tasks.settle()
    assert tasks.running == ["a3"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(("start", "end", "cancel"))), max_size=40))
def test_slots_are_never_lost_nor_held_by_too_many(steps: list[tuple[str, str]]):
    async def run() -> None:
        tasks = Tasks(FairSlots(2))
        started: list[str] = []
        for number, (org, step) in enumerate(steps):
            if step == "start":
                started.append(f"{org}{number}")
                await tasks.start(started[-1])
            elif mine := [name for name in started if name[0] == org and not tasks.tasks[name].done()]:
                await (tasks.end(mine[0]) if step == "end" else tasks.cancel(mine[0]))
            assert len(tasks.running) <= 4
            unfinished = [name for name in started if not tasks.tasks[name].done()]
            assert len(tasks.running) >= min(2, len(unfinished))
        for name in started:
            tasks.ends[name].set()
        await asyncio.gather(*tasks.tasks.values(), return_exceptions=True)
        assert tasks.running == []
        assert tasks.slots.waiting() == 0

    asyncio.run(run())


async def test_a_function_runs_in_a_thread_and_returns_its_value():
    assert await compute(divmod, 7, 2) == (3, 1)
