"""Supersession: links form trees with a live root, also when calls are concurrent."""

import asyncio
import random
import uuid
from dataclasses import replace
from itertools import pairwise

import pytest

from almanac.core import clock
from almanac.core.errors import Conflict, Forbidden, NotFound
from almanac.memory import supersession
from almanac.memory.note import Note, NoteDraft
from almanac.memory.supersession import AlreadySuperseded, SupersedeCycle
from tests.memory.agent_memory import AgentMemory

CALLS = 1_000
NOTES = 120
CONCURRENT_CALLS = 20


async def chain(memory: AgentMemory, length: int) -> list[Note]:
    notes = [await memory.store(f"Version {n}.") for n in range(length)]
    for old, new in pairwise(notes):
        await memory.supersede(old, new)
    return notes


async def heads(memory: AgentMemory, notes: list[Note]) -> list[str | None]:
    return [(await memory.get(note)).head_id for note in notes]


async def test_every_note_of_a_chain_has_its_end_as_head(memory: AgentMemory):
    notes = await chain(memory, 4)
    assert await heads(memory, notes) == [notes[3].id] * 3 + [None]
    assert [(await memory.get(note)).successor_id for note in notes] == [notes[1].id, notes[2].id, notes[3].id, None]


async def test_merged_chains_have_one_head(memory: AgentMemory):
    first, second = await chain(memory, 3), await chain(memory, 2)
    end = await memory.store("All of it.")
    assert (await memory.supersede(first[2], end)).moved == 3
    done = await memory.supersede(second[1], end)
    assert (done.head_id, done.moved) == (end.id, 2)
    assert await heads(memory, [*first, *second]) == [end.id] * 5


async def test_a_superseded_note_may_supersede_another(memory: AgentMemory):
    notes = await chain(memory, 3)
    late = await memory.store("Came late.")
    assert (await memory.supersede(late, notes[0])).head_id == notes[2].id
    assert (await memory.get(late)).successor_id == notes[0].id


async def test_a_cycle_is_refused(memory: AgentMemory):
    notes = await chain(memory, 3)
    for old, new in ((0, 0), (2, 2), (2, 0), (2, 1), (1, 0)):
        with pytest.raises(SupersedeCycle):
            await memory.supersede(notes[old], notes[new])
    assert await heads(memory, notes) == [notes[2].id] * 2 + [None]


async def test_a_repeated_link_changes_nothing_and_a_second_successor_is_refused(memory: AgentMemory):
    notes = await chain(memory, 3)
    before = await memory.get(notes[0])
    assert (await memory.supersede(notes[0], notes[1])).moved == 0
    assert (await memory.supersede(notes[0], notes[2])).head_id == notes[2].id
    assert await memory.get(notes[0]) == before
    other = await memory.store("Another.")
    with pytest.raises(AlreadySuperseded) as refused:
        await memory.supersede(notes[0], other)
    assert notes[2].id in refused.value.text


async def test_only_the_author_of_one_of_the_notes_may_link_them(memory: AgentMemory):
    old, new = await memory.store("Old."), await memory.store("New.")
    with pytest.raises(Forbidden, match=r"^You wrote neither"):
        await memory.supersede(old, new, by=memory.bob)
    bobs = await memory.store("Bob's.", by=memory.bob)
    await memory.supersede(old, bobs, by=memory.bob)
    await memory.supersede(bobs, new, by=memory.ada)
    operator = replace(memory.ada, actor=replace(memory.bob.actor, id=0, is_operator=True))
    late = await memory.store("Late.")
    await memory.supersede(new, late, by=operator)
    assert (await memory.get(old)).head_id == late.id


async def test_notes_of_another_organisation_cannot_be_linked(memory: AgentMemory):
    ours, theirs = await memory.store("Ours."), await memory.store("Theirs.", by=memory.eve)
    for old, new in ((ours.id, theirs.id), (theirs.id, ours.id), (str(uuid.uuid4()), ours.id)):
        with pytest.raises(NotFound):
            await memory.supersede(old, new)
    assert await heads(memory, [ours]) == [None]


async def test_notes_that_cite_a_superseded_note_are_listed(memory: AgentMemory):
    base = await memory.store("The limit is 100.")
    citing = await memory.store("So we batch by 50.", title="Batching", cites=(base.id,))
    by_uri = await memory.store(f"As almanac://knowledge/{base.id} says, and drobek://knowledge/{base.id.upper()}.")
    newer = await memory.store("The limit is 200.")
    done = await memory.supersede(base, newer)
    assert {note.id for note in done.cited_by} == {citing.id, by_uri.id}
    newest = await memory.store("The limit is 300.", cites=(newer.id,))
    done = await memory.supersede(newer, newest)
    # They cite the predecessor of the superseded note. The new note itself is not listed.
    assert {note.id for note in done.cited_by} == {citing.id, by_uri.id}
    await memory.supersede(citing, newest)
    again = await memory.store("The limit is 400.")
    assert {note.id for note in (await memory.supersede(newest, again)).cited_by} == {by_uri.id}


async def test_the_history_of_a_note_is_its_whole_tree(memory: AgentMemory):
    notes = await chain(memory, 3)
    merged = await memory.store("Merged.")
    await memory.supersede(merged, notes[2])
    for note in (*notes, merged):
        history = await supersession.history(memory.db, await memory.get(note))
        assert [entry.id for entry in history] == [entry.id for entry in (*notes, merged)]


async def test_a_note_can_be_read_as_it_was_at_a_time(memory: AgentMemory):
    times: list[int] = []
    notes: list[Note] = []
    for n in range(3):
        notes.append(await memory.store(f"Version {n}."))
        if n:
            await memory.supersede(notes[n - 1], notes[n])
        times.append(clock.now())
    first = await memory.get(notes[0])
    past = [await supersession.note_at(memory.db, first, at) for at in times]
    assert [note and note.head_id for note in past] == [None, notes[1].id, notes[2].id]
    assert await supersession.note_at(memory.db, first, first.created_at - 1) is None


async def test_a_failed_revision_stores_nothing(memory: AgentMemory):
    old = await memory.store("Fridays.")
    revised = await supersession.revise(memory.ada, old.id, NoteDraft("Day", "Mondays."), 0)
    assert (await memory.get(old)).head_id == revised.note.id
    with pytest.raises(AlreadySuperseded):
        await supersession.revise(memory.ada, old.id, NoteDraft("Day", "Tuesdays."), 0)
    with pytest.raises(NotFound):
        await supersession.revise(memory.ada, str(uuid.uuid4()), NoteDraft("Day", "Never."), 0)
    rows = await memory.db.fetch("SELECT body FROM notes ORDER BY number")
    assert [row["body"] for row in rows] == ["Fridays.", "Mondays."]


async def test_two_concurrent_calls_cannot_create_a_cycle(memory: AgentMemory):
    for _ in range(10):
        one, other = await memory.store("One."), await memory.store("Other.")
        results = await asyncio.gather(
            memory.supersede(one, other), memory.supersede(other, one), return_exceptions=True
        )
        assert sorted(isinstance(result, SupersedeCycle) for result in results) == [False, True]


async def test_a_thousand_concurrent_calls_leave_trees_with_live_heads(memory: AgentMemory):
    rng = random.Random(1)
    notes = [(await memory.store(f"Note {n}.")).id for n in range(NOTES)]
    links: dict[str, str] = {}

    async def attempt(old: str, new: str) -> None:
        try:
            await memory.supersede(old, new)
        except Conflict:
            return
        # A note keeps its successor: a link that was confirmed is never replaced.
        assert links.setdefault(old, new) == new or (await memory.get(old)).head_id is not None

    pairs = [(rng.choice(notes), rng.choice(notes)) for _ in range(CALLS)]
    for start in range(0, CALLS, CONCURRENT_CALLS):
        await asyncio.gather(*(attempt(old, new) for old, new in pairs[start : start + CONCURRENT_CALLS]))
        if start % 200 == 0:
            await check_trees(memory)
    await check_trees(memory)
    rows = await memory.db.fetch("SELECT id, successor_id FROM notes")
    assert all(row["successor_id"] is not None for row in rows if row["id"] in links)


async def check_trees(memory: AgentMemory) -> None:
    """There is no cycle, and the head of each note is the live end of its chain."""
    rows = await memory.db.fetch("SELECT id, successor_id, head_id FROM notes")
    successor = {row["id"]: row["successor_id"] for row in rows}
    for row in rows:
        end, steps = row["id"], 0
        while successor[end] is not None:
            end, steps = successor[end], steps + 1
            assert steps <= len(rows), "a cycle"
        assert row["head_id"] == (None if end == row["id"] else end)
    live = {
        row["owner_id"]: row["collection"] for row in await memory.db.fetch("SELECT owner_id, collection FROM sources")
    }
    assert {id for id, next_id in successor.items() if next_id is not None} == {
        id for id, collection in live.items() if collection.endswith(":superseded")
    }
