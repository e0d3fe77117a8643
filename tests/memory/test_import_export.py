"""Export and import of notes as lines of JSON, with invalid lines."""

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
from almanac.quotas import monthly_quotas
from tests.memory.agent_memory import AgentMemory


def operator(call: Call) -> Call:
    return replace(call, actor=replace(call.actor, is_operator=True))


async def lines_of(call: Call) -> list[dict[str, Any]]:
    return [line async for line in import_export.export(call)]


async def import_lines(call: Call, lines: list[Any]) -> Imported:
    outcome = Imported()
    raw = [(n, line if isinstance(line, bytes) else json.dumps(line).encode()) for n, line in enumerate(lines, 1)]
    await import_export.import_notes(operator(call), raw, outcome)
    await import_export.link(operator(call), raw, outcome)
    return outcome


async def test_an_export_imported_into_another_organisation_gives_equal_notes(memory: AgentMemory):
    old = await memory.store("Friday.", title="Day", tags=("ops",), confidence=10)
    mid = await memory.store("Monday.", title="Day", by=memory.bob, cites=(old.id,), task=TaskLink("T-1", "produced"))
    new = await memory.store("Daily.", title="Day", expires_at=clock.now() + clock.DAY)
    await memory.supersede(old, mid)
    await memory.supersede(mid, new)
    before = await lines_of(memory.ada)
    assert [line["supersededBy"] for line in before] == [mid.id, new.id, None]
    assert (before[1]["tasks"], before[1]["cites"]) == ([{"taskId": "T-1", "kind": "produced"}], [old.id])
    # The other organisation needs other ids, because ids are unique across organisations.
    new_ids = {id: str(uuid.uuid4()) for id in (old.id, mid.id, new.id)}
    text = json.dumps(before)
    for id, new_id in new_ids.items():
        text = text.replace(id, new_id)
    moved = json.loads(text)
    outcome = await import_lines(memory.eve, moved)
    assert (outcome.stored, outcome.known, outcome.linked, outcome.refused) == (3, 0, 2, [])
    assert [{**line, "author": "eve"} for line in moved] == await lines_of(memory.eve)
    assert await memory.find("daily", by=memory.eve) == ["Daily."]
    assert await memory.find("friday monday", by=memory.eve, include_superseded=True) != []
    again = await import_lines(memory.eve, moved)
    assert (again.stored, again.known, again.linked, again.refused) == (0, 3, 0, [])
    assert await monthly_quotas.used(memory.db, memory.town.other.id) == {}


async def test_known_authors_keep_their_notes(memory: AgentMemory):
    id = str(uuid.uuid4())
    await import_lines(memory.ada, [{"id": id, "title": "T", "body": "B", "author": "bob"}])
    note = await notes.get(memory.db, memory.ada, id)
    assert (note.author, note.source, note.confidence, note.tags) == ("bob", "import", 80, ())


async def test_an_invalid_line_is_reported_and_the_others_are_imported(memory: AgentMemory):
    good, expired = str(uuid.uuid4()), str(uuid.uuid4())
    theirs = await memory.store("Theirs.", by=memory.eve)
    outcome = await import_lines(
        memory.ada,
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
    assert (outcome.stored, outcome.known) == (2, 1)
    assert sorted(number for number, _ in outcome.refused) == [1, 3, 4, 5, 6, 7, 8, 9, 11]
    assert await memory.find("taken") == ["Taken."]
    assert await memory.find("past") == []
    assert await memory.find("past", include_expired=True) == ["Past."]
    assert (await notes.get(memory.db, memory.eve, theirs.id)).body == "Theirs."


async def test_an_export_in_several_batches_is_complete(memory: AgentMemory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(import_export, "BATCH_NOTES", 2)
    for n in range(5):
        await memory.store(f"Note {n}.")
    assert [line["body"] for line in await lines_of(memory.ada)] == [f"Note {n}." for n in range(5)]
