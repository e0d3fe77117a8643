"""Supersession: trees that only grow, every head live, whoever races."""

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

OPERATIONS = 1_000
NOTES = 120
AT_ONCE = 20


async def chain(circle: Circle, length: int) -> list[Note]:
    made = [await circle.store(f"Version {n}.") for n in range(length)]
    for old, new in pairwise(made):
        await circle.supersede(old, new)
    return made


async def heads(circle: Circle, made: list[Note]) -> list[str | None]:
    return [(await circle.get(note)).head_id for note in made]


async def test_every_note_of_a_chain_leads_to_its_end(circle: Circle):
    made = await chain(circle, 4)
    assert await heads(circle, made) == [made[3].id] * 3 + [None]
    assert [(await circle.get(note)).successor_id for note in made] == [made[1].id, made[2].id, made[3].id, None]


async def test_chains_that_merge_lead_to_one_end(circle: Circle):
    first, second = await chain(circle, 3), await chain(circle, 2)
    end = await circle.store("All of it.")
    assert (await circle.supersede(first[2], end)).moved == 3
    done = await circle.supersede(second[1], end)
    assert (done.head_id, done.moved) == (end.id, 2)
    assert await heads(circle, [*first, *second]) == [end.id] * 5


async def test_a_note_may_be_superseded_by_one_that_was_superseded_itself(circle: Circle):
    made = await chain(circle, 3)
    late = await circle.store("Came late.")
    assert (await circle.supersede(late, made[0])).head_id == made[2].id
    assert (await circle.get(late)).successor_id == made[0].id


async def test_what_would_be_a_circle_is_refused(circle: Circle):
    made = await chain(circle, 3)
    for old, new in ((0, 0), (2, 2), (2, 0), (2, 1), (1, 0)):
        with pytest.raises(SupersedeCycle):
            await circle.supersede(made[old], made[new])
    assert await heads(circle, made) == [made[2].id] * 2 + [None]


async def test_again_changes_nothing_and_elsewhere_is_refused_with_the_fix(circle: Circle):
    made = await chain(circle, 3)
    before = await circle.get(made[0])
    assert (await circle.supersede(made[0], made[1])).moved == 0
    assert (await circle.supersede(made[0], made[2])).head_id == made[2].id
    assert await circle.get(made[0]) == before
    other = await circle.store("Another.")
    with pytest.raises(AlreadySuperseded) as refused:
        await circle.supersede(made[0], other)
    assert made[2].id in refused.value.text


async def test_whoever_wrote_neither_of_the_two_may_not_link_them(circle: Circle):
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


async def test_notes_of_others_and_notes_that_never_were_are_alike(circle: Circle):
    ours, theirs = await circle.store("Ours."), await circle.store("Theirs.", by=circle.eve)
    for old, new in ((ours.id, theirs.id), (theirs.id, ours.id), (str(uuid.uuid4()), ours.id)):
        with pytest.raises(NotFound):
            await circle.supersede(old, new)
    assert await heads(circle, [ours]) == [None]


async def test_what_rests_on_a_superseded_note_is_named(circle: Circle):
    base = await circle.store("The limit is 100.")
    on_it = await circle.store("So we batch by 50.", title="Batching", cites=(base.id,))
    by_address = await circle.store(f"As almanac://knowledge/{base.id} says, and drobek://knowledge/{base.id.upper()}.")
    newer = await circle.store("The limit is 200.")
    done = await circle.supersede(base, newer)
    assert {each.id for each in done.cited_by} == {on_it.id, by_address.id}
    newest = await circle.store("The limit is 300.", cites=(newer.id,))
    done = await circle.supersede(newer, newest)
    assert {each.id for each in done.cited_by} == {on_it.id, by_address.id}  # by way of the first, and not itself
    await circle.supersede(on_it, newest)
    again = await circle.store("The limit is 400.")
    assert {each.id for each in (await circle.supersede(newest, again)).cited_by} == {by_address.id}


async def test_the_history_of_a_note_is_all_that_it_stands_for_and_that_stands_for_it(circle: Circle):
    made = await chain(circle, 3)
    merged = await circle.store("Merged.")
    await circle.supersede(merged, made[2])
    for note in (*made, merged):
        family = await supersession.history(circle.db, await circle.get(note))
        assert [each.id for each in family] == [each.id for each in (*made, merged)]


async def test_a_note_is_seen_as_it_stood_at_a_moment(circle: Circle):
    moments: list[int] = []
    made: list[Note] = []
    for n in range(3):
        made.append(await circle.store(f"Version {n}."))
        if n:
            await circle.supersede(made[n - 1], made[n])
        moments.append(clock.now())
    first = await circle.get(made[0])
    seen = [await supersession.note_at(circle.db, first, at) for at in moments]
    assert [note and note.head_id for note in seen] == [None, made[1].id, made[2].id]
    assert await supersession.note_at(circle.db, first, first.created_at - 1) is None


async def test_a_revision_stores_and_links_or_does_neither(circle: Circle):
    old = await circle.store("Fridays.")
    revised = await supersession.revise(circle.ada, old.id, NoteDraft("Day", "Mondays."), 0)
    assert (await circle.get(old)).head_id == revised.note.id
    with pytest.raises(AlreadySuperseded):
        await supersession.revise(circle.ada, old.id, NoteDraft("Day", "Tuesdays."), 0)
    with pytest.raises(NotFound):
        await supersession.revise(circle.ada, str(uuid.uuid4()), NoteDraft("Day", "Never."), 0)
    rows = await circle.db.fetch("SELECT body FROM notes ORDER BY number")
    assert [row["body"] for row in rows] == ["Fridays.", "Mondays."]


async def test_two_who_would_close_a_circle_between_them_cannot(circle: Circle):
    for _ in range(10):
        one, other = await circle.store("One."), await circle.store("Other.")
        done = await asyncio.gather(circle.supersede(one, other), circle.supersede(other, one), return_exceptions=True)
        assert sorted(isinstance(each, SupersedeCycle) for each in done) == [False, True]


async def test_a_thousand_racing_operations_leave_trees_whose_every_head_is_live(circle: Circle):
    rng = random.Random(1)
    made = [(await circle.store(f"Note {n}.")).id for n in range(NOTES)]
    links: dict[str, str] = {}

    async def attempt(old: str, new: str) -> None:
        try:
            await circle.supersede(old, new)
        except Conflict:
            return
        # Nothing that was linked is ever linked elsewhere: what was said to be done stays done.
        assert links.setdefault(old, new) == new or (await circle.get(old)).head_id is not None

    pairs = [(rng.choice(made), rng.choice(made)) for _ in range(OPERATIONS)]
    for start in range(0, OPERATIONS, AT_ONCE):
        await asyncio.gather(*(attempt(old, new) for old, new in pairs[start : start + AT_ONCE]))
        if start % 200 == 0:
            await check_trees(circle)
    await check_trees(circle)
    rows = await circle.db.fetch("SELECT id, successor_id FROM notes")
    assert all(row["successor_id"] is not None for row in rows if row["id"] in links)


async def check_trees(circle: Circle) -> None:
    """No circle, and every note's head is the end of its chain, and live."""
    rows = await circle.db.fetch("SELECT id, successor_id, head_id FROM notes")
    successor = {row["id"]: row["successor_id"] for row in rows}
    for row in rows:
        end, steps = row["id"], 0
        while successor[end] is not None:
            end, steps = successor[end], steps + 1
            assert steps <= len(rows), "a circle"
        assert row["head_id"] == (None if end == row["id"] else end)
    live = {
        row["owner_id"]: row["collection"] for row in await circle.db.fetch("SELECT owner_id, collection FROM sources")
    }
    assert {id for id, next_id in successor.items() if next_id is not None} == {
        id for id, collection in live.items() if collection.endswith(":superseded")
    }
