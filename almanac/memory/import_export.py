"""Transfer: notes as lines of JSON, out of one Almanac and into another or the same.

A line has all that is known of a note, and the note that superseded it. Lines that are there already are left alone, so
that an import which broke off is simply begun again. What comes in this way is not counted against a quota.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import orjson
from pydantic import Field, ValidationError

from almanac.core import clock
from almanac.core.arguments import Arguments, describe_problems
from almanac.core.call import Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import AlmanacError, BadRequest
from almanac.identity import principals
from almanac.memory import note_index, note_text, notes, supersession
from almanac.memory.note import SELECT, Note, TaskLink, note_from_row

AT_ONCE = 200
LONGEST_LINE = 1_000_000  # bytes

_PAGE = f"{SELECT} WHERE n.org_id = $1 AND n.number > $2 ORDER BY n.number LIMIT {AT_ONCE}"


class Task(Arguments):
    """What a note has to do with a task."""

    taskId: Annotated[str, Field(min_length=1, max_length=note_text.LONGEST_TASK)]
    kind: Annotated[str, Field(pattern="^(references|produced)$")]


class NoteLine(Arguments):
    """One note, as it is written in a file."""

    id: str
    title: str
    body: str
    tags: Annotated[list[str], Field(max_length=note_text.MOST_TAGS, default_factory=list[str])]
    confidence: Annotated[int, Field(ge=0, le=100)] = 80
    source: Annotated[str, Field(max_length=50)] = "import"
    author: Annotated[str, Field(max_length=200)] = ""
    createdAt: str | None = None
    expiresAt: str | None = None
    tasks: Annotated[list[Task], Field(default_factory=list[Task])]
    cites: Annotated[list[str], Field(default_factory=list[str])]
    supersededBy: str | None = None  # the one that took its place, not the last of the chain
    supersededAt: str | None = None


@dataclass(slots=True)
class Imported:
    """What became of the lines of a file."""

    stored: int = 0
    known: int = 0
    linked: int = 0
    refused: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])  # number of the line, and why


async def export(call: Call) -> AsyncGenerator[dict[str, Any]]:
    """All notes of an organisation, superseded and expired ones too, in the order they were stored."""
    number = 0
    while rows := await call.db.scan(_PAGE, call.actor.org_id, number):
        for row in rows:
            yield await _line(call.db, note_from_row(row))
        number = rows[-1]["number"]


async def import_notes(call: Call, lines: Sequence[tuple[int, bytes]], told: Imported) -> None:
    """Take notes in, of lines with their numbers. Those of authors who are not known here become the caller's."""
    read = [(number, line) for number, raw in lines if (line := _read(number, raw, told)) is not None]
    people = {
        each.name: each.id
        for kind in ("agent", "user")
        for each in await principals.find(call.db, call.actor.org_id, kind)
    }
    for number, line in read:
        try:
            await _bring(call, line, people, told)
        except AlmanacError as error:
            told.refused.append((number, error.text))


async def link(call: Call, lines: Sequence[tuple[int, bytes]], told: Imported) -> None:
    """Make the links that lines tell of, once all notes are there."""
    for number, raw in lines:
        line = _read(number, raw, Imported())
        if line is None or line.supersededBy is None:
            continue
        try:
            old_id, new_id = note_text.id_of("id", line.id), note_text.id_of("supersededBy", line.supersededBy)
            at = None if line.supersededAt is None else note_text.parse_timestamp("supersededAt", line.supersededAt)
            done = await call.db.write(
                lambda tx, old_id=old_id, new_id=new_id, at=at: supersession.supersede(call, tx, old_id, new_id, at)
            )
            told.linked += bool(done.moved)
        except AlmanacError as error:
            told.refused.append((number, error.text))


def _read(number: int, raw: bytes, told: Imported) -> NoteLine | None:
    try:
        if len(raw) > LONGEST_LINE:
            raise BadRequest("It is longer than a note can be.")
        return NoteLine.model_validate(orjson.loads(raw))
    except orjson.JSONDecodeError:
        told.refused.append((number, "It is not JSON."))
    except ValidationError as error:
        told.refused.append((number, describe_problems(error, "is not part of a note")))
    except BadRequest as error:
        told.refused.append((number, error.text))
    return None


async def _bring(call: Call, line: NoteLine, people: dict[str, int], told: Imported) -> None:
    note = _note(call, line, people)
    cites = tuple(note_text.id_of("cites", id) for id in line.cites)
    links = [TaskLink(task.taskId, task.kind) for task in line.tasks]
    prepared = await asyncio.to_thread(note_index.prepare, note.title, note.body, note.tags, "")

    async def body(tx: Transaction) -> bool:
        if await notes.insert(tx, note, links) is None:
            return False
        await notes.cite(tx, note, [id for id in cites if await _is_there(tx, note.org_id, id)])
        await note_index.add(tx, note, prepared)
        return True

    if await call.db.write(body):
        told.stored += 1
    elif await notes.find(call.db, call.actor.org_id, [note.id]):
        told.known += 1
    else:
        raise BadRequest("id: cannot be used here.", remedy="Give the note another UUID.")


def _note(call: Call, line: NoteLine, people: dict[str, int]) -> Note:
    created = clock.now() if line.createdAt is None else note_text.parse_timestamp("createdAt", line.createdAt)
    expires = None if line.expiresAt is None else note_text.parse_timestamp("expiresAt", line.expiresAt)
    author = line.author if line.author in people else call.actor.name
    return Note(
        number=0,
        id=note_text.id_of("id", line.id),
        org_id=call.actor.org_id,
        author_id=people.get(line.author, call.actor.id),
        author=author,
        source=note_text.clean("source", line.source, 50, is_line=True),
        title=note_text.clean("title", line.title, note_text.LONGEST_TITLE),
        body=note_text.clean("body", line.body, note_text.LONGEST_BODY),
        tags=note_text.tags_of(line.tags),
        confidence=line.confidence,
        created_at=min(created, clock.now()),
        expires_at=expires,
        is_expired=expires is not None and expires <= clock.now(),
        tasks=tuple(dict.fromkeys(task.taskId for task in line.tasks)),
    )


async def _is_there(tx: Transaction, org_id: str, id: str) -> bool:
    return await tx.fetch_one("SELECT 1 FROM notes WHERE id = $1 AND org_id = $2", id, org_id) is not None


async def _line(db: Reader, note: Note) -> dict[str, Any]:
    return {
        "id": note.id,
        "title": note.title,
        "body": note.body,
        "tags": list(note.tags),
        "confidence": note.confidence,
        "source": note.source,
        "author": note.author,
        "createdAt": clock.format_timestamp_exact(note.created_at),
        "expiresAt": clock.format_timestamp_exact(note.expires_at),
        "tasks": [{"taskId": link.task_id, "kind": link.kind} for link in await notes.tasks(db, note)],
        "cites": await notes.cited(db, note),
        "supersededBy": note.successor_id,
        "supersededAt": clock.format_timestamp_exact(note.superseded_at),
    }
