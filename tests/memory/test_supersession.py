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
from tests.memory.circle import Circle

CALLS = 1_000
NOTES = 120
CONCURRENT_CALLS = 20


async def chain(circle: Circle, length: int) -> list[Note]:
    notes = [await circle.store(f"Version {n}.") for n in range(length)]
    for old, new in pairwise(notes):
        await circle.supersede(old, new)
    return notes


async def heads(circle: Circle, notes: list[Note]) -> list[str | None]:
    return [(await circle.get(note)).head_id for note in notes]


async def test_every_note_of_a_chain_has_its_end_as_head(circle: Circle):
    notes = await chain(circle, 4)
    assert await heads(circle, notes) == [notes[3].id] * 3 + [None]
    assert [(await circle.get(note)).successor_id for note in notes] == [notes[1].id, notes[2].id, notes[3].id, None]


async def test_merged_chains_have_one_head(circle: Circle):
    first, second = await chain(circle, 3), await chain(circle, 2)
    end = await circle.store("All of it.")
    assert (await circle.supersede(first[2], end)).moved == 3
    done = await circle.supersede(second[1], end)
    assert (done.head_id, done.moved) == (end.id, 2)
    assert await heads(circle, [*first, *second]) == [end.id] * 5


async def test_a_superseded_note_may_supersede_another(circle: Circle):
    notes = await chain(circle, 3)
    late = await circle.store("Came late.")
    assert (await circle.supersede(late, notes[0])).head_id == notes[2].id
    assert (await circle.get(late)).successor_id == notes[0].id


async def test_a_cycle_is_refused(circle: Circle):
    notes = await chain(circle, 3)
    for old, new in ((0, 0), (2, 2), (2, 0), (2, 1), (1, 0)):
        with pytest.raises(SupersedeCycle):
            await circle.supersede(notes[old], notes[new])
    assert await heads(circle, notes) == [notes[2].id] * 2 + [None]


async def test_a_repeated_link_changes_nothing_and_a_second_successor_is_refused(circle: Circle):
    notes = await chain(circle, 3)
    before = await circle.get(notes[0])
    assert (await circle.supersede(notes[0], notes[1])).moved == 0
    assert (await circle.supersede(notes[0], notes[2])).head_id == notes[2].id
    assert await circle.get(notes[0]) == before
    other = await circle.store("Another.")
    with pytest.raises(AlreadySuperseded) as refused:
        await circle.supersede(notes[0], other)
    assert notes[2].id in refused.value.text


async def test_only_the_author_of_one_of_the_notes_may_link_them(circle: Circle):
    old, new = await circle.store("Old."), await circle.store("New.")
    with pytest.raises(Forbidden, match=r"^You wrote neither"):
        await circle.supersede(old, new, by=circle.bob)
    bobs = await circle.store("Bob's.", by=circle.bob)
    await circle.supersede(old, bobs, by=circle.bob)
    await circle.supersede(bobs, new, by=circle.ada)
    operator = replace(circle.ada, actor=replace(circle.bob.actor, id=0, is_operator=True))
    late = await circle.store("Late.")
    await circle.supersede(new, late, by=operator)
    assert (await circle.get(old)).head_id == late.id


async def test_notes_of_another_organisation_cannot_be_linked(circle: Circle):
    ours, theirs = await circle.store("Ours."), await circle.store("Theirs.", by=circle.eve)
    for old, new in ((ours.id, theirs.id), (theirs.id, ours.id), (str(uuid.uuid4()), ours.id)):
        with pytest.raises(NotFound):
            await circle.supersede(old, new)
    assert await heads(circle, [ours]) == [None]


async def test_notes_that_cite_a_superseded_note_are_listed(circle: Circle):
    base = await circle.store("The limit is 100.")
    citing = await circle.store("So we batch by 50.", title="Batching", cites=(base.id,))
    by_uri = await circle.store(f"As almanac://knowledge/{base.id} says, and drobek://knowledge/{base.id.upper()}.")
    newer = await circle.store("The limit is 200.")
    done = await circle.supersede(base, newer)
    assert {note.id for note in done.cited_by} == {citing.id, by_uri.id}
    newest = await circle.store("The limit is 300.", cites=(newer.id,))
    done = await circle.supersede(newer, newest)
    # They cite the predecessor of the superseded note. The new note itself is not listed.
    assert {note.id for note in done.cited_by} == {citing.id, by_uri.id}
    await circle.supersede(citing, newest)
    again = await circle.store("The limit is 400.")
    assert {note.id for note in (await circle.supersede(newest, again)).cited_by} == {by_uri.id}


async def test_the_history_of_a_note_is_its_whole_tree(circle: Circle):
    notes = await chain(circle, 3)
    merged = await circle.store("Merged.")
    await circle.supersede(merged, notes[2])
    for note in (*notes, merged):
        history = await supersession.history(circle.db, await circle.get(note))
        assert [entry.id for entry in history] == [entry.id for entry in (*notes, merged)]


async def test_a_note_can_be_read_as_it_was_at_a_time(circle: Circle):
    times: list[int] = []
    notes: list[Note] = []
    for n in range(3):
        notes.append(await circle.store(f"Version {n}."))
        if n:
            await circle.supersede(notes[n - 1], notes[n])
        times.append(clock.now())
    first = await circle.get(notes[0])
    past = [await supersession.note_at(circle.db, first, at) for at in times]
    assert [note and note.head_id for note in past] == [None, notes[1].id, notes[2].id]
    assert await supersession.note_at(circle.db, first, first.created_at - 1) is None


async def test_a_failed_revision_stores_nothing(circle: Circle):
    old = await circle.store("Fridays.")
    revised = await supersession.revise(circle.ada, old.id, NoteDraft("Day", "Mondays."), 0)
    assert (await circle.get(old)).head_id == revised.note.id
    with pytest.raises(AlreadySuperseded):
        await supersession.revise(circle.ada, old.id, NoteDraft("Day", "Tuesdays."), 0)
    with pytest.raises(NotFound):
        await supersession.revise(circle.ada, str(uuid.uuid4()), NoteDraft("Day", "Never."), 0)
    rows = await circle.db.fetch("SELECT body FROM notes ORDER BY number")
    assert [row["body"] for row in rows] == ["Fridays.", "Mondays."]


async def test_two_concurrent_calls_cannot_create_a_cycle(circle: Circle):
    for _ in range(10):
        one, other = await circle.store("One."), await circle.store("Other.")
        results = await asyncio.gather(
            circle.supersede(one, other), circle.supersede(other, one), return_exceptions=True
        )
        assert sorted(isinstance(result, SupersedeCycle) for result in results) == [False, True]


async def test_a_thousand_concurrent_calls_leave_trees_with_live_heads(circle: Circle):
    rng = random.Random(1)
    notes = [(await circle.store(f"Note {n}.")).id for n in range(NOTES)]
    links: dict[str, str] = {}

    async def attempt(old: str, new: str) -> None:
        try:
            await circle.supersede(old, new)
        except Conflict:
            return
        # A note keeps its successor: a link that was confirmed is never replaced.
        assert links.setdefault(old, new) == new or (await circle.get(old)).head_id is not None

    pairs = [(rng.choice(notes), rng.choice(notes)) for _ in range(CALLS)]
    for start in range(0, CALLS, CONCURRENT_CALLS):
        await asyncio.gather(*(attempt(old, new) for old, new in pairs[start : start + CONCURRENT_CALLS]))
        if start % 200 == 0:
            await check_trees(circle)
    await check_trees(circle)
    rows = await circle.db.fetch("SELECT id, successor_id FROM notes")
    assert all(row["successor_id"] is not None for row in rows if row["id"] in links)


async def check_trees(circle: Circle) -> None:
    """There is no cycle, and the head of each note is the live end of its chain."""
    rows = await circle.db.fetch("SELECT id, successor_id, head_id FROM notes")
    successor = {row["id"]: row["successor_id"] for row in rows}
    for row in rows:
        end, steps = row["id"], 0
        while successor[end] is not None:
            end, steps = successor[end], steps + 1
            assert steps <= len(rows), "a cycle"
        assert row["head_id"] == (None if end == row["id"] else end)
    live = {
        row["owner_id"]: row["collection"] for row in await circle.db.fetch("SELECT owner_id, collection FROM sources")
    }
    assert {id for id, next_id in successor.items() if next_id is not None} == {
        id for id, collection in live.items() if collection.endswith(":superseded")
    }
