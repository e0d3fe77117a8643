"""Notes as lines of JSON: out, in again, elsewhere, and what cannot be taken."""

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest

from almanac.core import clock
from almanac.core.call import Call
from almanac.memory import import_export, notes
from almanac.memory.import_export import Imported
from almanac.memory.note import TaskLink
from almanac.quotas import usage
from tests.memory.circle import Circle


def operator(call: Call) -> Call:
    return replace(call, actor=replace(call.actor, is_operator=True))


async def lines_of(call: Call) -> list[dict[str, Any]]:
    return [line async for line in import_export.export(call)]


async def bring(call: Call, lines: list[Any]) -> Imported:
    told = Imported()
    raw = [(n, line if isinstance(line, bytes) else json.dumps(line).encode()) for n, line in enumerate(lines, 1)]
    await import_export.import_notes(operator(call), raw, told)
    await import_export.link(operator(call), raw, told)
    return told


async def test_what_is_taken_out_is_the_same_when_it_is_taken_in_elsewhere(circle: Circle):
    old = await circle.store("Friday.", title="Day", tags=("ops",), confidence=10)
    mid = await circle.store("Monday.", title="Day", by=circle.bob, cites=(old.id,), task=TaskLink("T-1", "produced"))
    new = await circle.store("Daily.", title="Day", expires_at=clock.now() + clock.DAY)
    await circle.supersede(old, mid)
    await circle.supersede(mid, new)
    before = await lines_of(circle.ada)
    assert [line["supersededBy"] for line in before] == [mid.id, new.id, None]
    assert (before[1]["tasks"], before[1]["cites"]) == ([{"taskId": "T-1", "kind": "produced"}], [old.id])
    # Into the other organisation, under other ids, for an id is one note's everywhere.
    other = {note: str(uuid.uuid4()) for note in (old.id, mid.id, new.id)}
    text = json.dumps(before)
    for id, name in other.items():
        text = text.replace(id, name)
    moved = json.loads(text)
    told = await bring(circle.eve, moved)
    assert (told.stored, told.known, told.linked, told.refused) == (3, 0, 2, [])
    assert [{**line, "author": "eve"} for line in moved] == await lines_of(circle.eve)
    assert await circle.find("daily", by=circle.eve) == ["Daily."]
    assert await circle.find("friday monday", by=circle.eve, include_superseded=True) != []
    again = await bring(circle.eve, moved)
    assert (again.stored, again.known, again.linked, again.refused) == (0, 3, 0, [])
    assert await usage.used(circle.db, circle.town.other.id) == {}


async def test_authors_who_are_known_keep_their_notes(circle: Circle):
    id = str(uuid.uuid4())
    await bring(circle.ada, [{"id": id, "title": "T", "body": "B", "author": "bob"}])
    note = await notes.get(circle.db, circle.ada, id)
    assert (note.author, note.source, note.confidence, note.tags) == ("bob", "import", 80, ())


async def test_a_line_that_cannot_be_taken_is_named_and_the_others_are_taken(circle: Circle):
    good, expired = str(uuid.uuid4()), str(uuid.uuid4())
    theirs = await circle.store("Theirs.", by=circle.eve)
    told = await bring(
        circle.ada,
        [
            b"not json",
            {"id": good, "title": "Good", "body": "Taken."},
            {"id": "7", "title": "T", "body": "B"},
            {"id": str(uuid.uuid4()), "title": "T"},
            {"id": str(uuid.uuid4()), "title": "T", "body": "B", "more": 1},
            {"id": str(uuid.uuid4()), "title": "T", "body": "B", "tags": ["a b!"]},
            {"id": str(uuid.uuid4()), "title": "T", "body": "B", "createdAt": "once"},
            {"id": theirs.id, "title": "T", "body": "B"},
            {"id": good, "title": "Again", "body": "Left alone.", "supersededBy": str(uuid.uuid4())},
            {"id": expired, "title": "T", "body": "Past.", "expiresAt": "2020-01-01", "createdAt": "2019-01-01"},
            ["a list"],
        ],
    )
    assert (told.stored, told.known) == (2, 1)
    assert sorted(number for number, _ in told.refused) == [1, 3, 4, 5, 6, 7, 8, 9, 11]
    assert await circle.find("taken") == ["Taken."]
    assert await circle.find("past") == []
    assert await circle.find("past", include_expired=True) == ["Past."]
    assert (await notes.get(circle.db, circle.eve, theirs.id)).body == "Theirs."


async def test_two_pages_of_notes_are_taken_out_whole(circle: Circle, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(import_export, "BATCH_NOTES", 2)
    for n in range(5):
        await circle.store(f"Note {n}.")
    assert [line["body"] for line in await lines_of(circle.ada)] == [f"Note {n}." for n in range(5)]
