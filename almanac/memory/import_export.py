"""Export and import of notes as lines of JSON.

A line contains all fields of a note and the id of its successor. The import skips notes that exist, so an interrupted
import can be repeated. Imported notes do not count against a quota.
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

BATCH_NOTES = 200  # notes in one query; lines in one call of `import_notes`
MAX_LINE_BYTES = 1_000_000

_PAGE = f"{SELECT} WHERE n.org_id = $1 AND n.number > $2 ORDER BY n.number LIMIT "


class TaskEntry(Arguments):
    """A link from a note to a task."""

    taskId: Annotated[str, Field(min_length=1, max_length=note_text.MAX_TASK_ID_CHARS)]
    kind: Annotated[str, Field(pattern="^(references|produced)$")]


class NoteLine(Arguments):
    """One note in a file."""

    id: str
    title: str
    body: str
    tags: Annotated[list[str], Field(max_length=note_text.MAX_TAGS, default_factory=list[str])]
    confidence: Annotated[int, Field(ge=0, le=100)] = 80
    source: Annotated[str, Field(max_length=50)] = "import"
    author: Annotated[str, Field(max_length=200)] = ""
    createdAt: str | None = None
    expiresAt: str | None = None
    tasks: Annotated[list[TaskEntry], Field(default_factory=list[TaskEntry])]
    cites: Annotated[list[str], Field(default_factory=list[str])]
    supersededBy: str | None = None  # the direct successor, not the head
    supersededAt: str | None = None


@dataclass(slots=True)
class Imported:
    """The outcome of an import."""

    stored: int = 0
    known: int = 0  # existed before
    linked: int = 0
    refused: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])  # line number and reason


async def export(call: Call) -> AsyncGenerator[dict[str, Any]]:
    """All notes of an organisation, including superseded and expired ones, in the order they were stored."""
    number = 0
    while rows := await call.db.scan(f"{_PAGE}{BATCH_NOTES}", call.actor.org_id, number):
        for row in rows:
            yield await _line(call.db, note_from_row(row))
        number = rows[-1]["number"]


async def import_notes(call: Call, lines: Sequence[tuple[int, bytes]], outcome: Imported) -> None:
    """Import notes from numbered lines. If the author of a note is unknown here, the actor becomes its author."""
    parsed = [(number, line) for number, raw in lines if (line := _parse(number, raw, outcome)) is not None]
    author_ids = {
        principal.name: principal.id
        for kind in ("agent", "user")
        for principal in await principals.find(call.db, call.actor.org_id, kind)
    }
    for number, line in parsed:
        try:
            await _import_note(call, line, author_ids, outcome)
        except AlmanacError as error:
            outcome.refused.append((number, error.text))


async def link(call: Call, lines: Sequence[tuple[int, bytes]], outcome: Imported) -> None:
    """Link notes to their successors. Call it after all notes have been imported."""
    for number, raw in lines:
        line = _parse(number, raw, Imported())  # `import_notes` has reported invalid lines
        if line is None or line.supersededBy is None:
            continue
        try:
            old_id, new_id = note_text.id_of("id", line.id), note_text.id_of("supersededBy", line.supersededBy)
            at = None if line.supersededAt is None else note_text.parse_timestamp("supersededAt", line.supersededAt)
            result = await call.db.write(
                lambda tx, old_id=old_id, new_id=new_id, at=at: supersession.supersede(call, tx, old_id, new_id, at)
            )
            outcome.linked += bool(result.moved)
        except AlmanacError as error:
            outcome.refused.append((number, error.text))


def _parse(number: int, raw: bytes, outcome: Imported) -> NoteLine | None:
    try:
        if len(raw) > MAX_LINE_BYTES:
            raise BadRequest("It is longer than a note can be.")
        return NoteLine.model_validate(orjson.loads(raw))
    except orjson.JSONDecodeError:
        outcome.refused.append((number, "It is not JSON."))
    except ValidationError as error:
        outcome.refused.append((number, describe_problems(error, "is not a field of a note")))
    except BadRequest as error:
        outcome.refused.append((number, error.text))
    return None


async def _import_note(call: Call, line: NoteLine, author_ids: dict[str, int], outcome: Imported) -> None:
    note = _note_from_line(call, line, author_ids)
    cites = tuple(note_text.id_of("cites", id) for id in line.cites)
    links = [TaskLink(task.taskId, task.kind) for task in line.tasks]
    prepared = await asyncio.to_thread(note_index.prepare, note.title, note.body, note.tags, "")

    async def body(tx: Transaction) -> bool:
        if await notes.insert(tx, note, links) is None:
            return False
        await notes.cite(tx, note, [id for id in cites if await notes.exists(tx, note.org_id, id)])
        await note_index.add(tx, note, prepared)
        return True

    if await call.db.write(body):
        outcome.stored += 1
    elif await notes.find(call.db, call.actor.org_id, [note.id]):
        outcome.known += 1
    else:
        raise BadRequest("id: cannot be used here.", remedy="Give the note another UUID.")


def _note_from_line(call: Call, line: NoteLine, author_ids: dict[str, int]) -> Note:
    created_at = clock.now() if line.createdAt is None else note_text.parse_timestamp("createdAt", line.createdAt)
    expires_at = None if line.expiresAt is None else note_text.parse_timestamp("expiresAt", line.expiresAt)
    author = line.author if line.author in author_ids else call.actor.name
    return Note(
        number=0,
        id=note_text.id_of("id", line.id),
        org_id=call.actor.org_id,
        author_id=author_ids.get(line.author, call.actor.id),
        author=author,
        source=note_text.clean("source", line.source, 50, is_line=True),
        title=note_text.clean("title", line.title, note_text.MAX_TITLE_CHARS),
        body=note_text.clean("body", line.body, note_text.MAX_BODY_CHARS),
        tags=note_text.tags_of(line.tags),
        confidence=line.confidence,
        created_at=min(created_at, clock.now()),
        expires_at=expires_at,
        is_expired=expires_at is not None and expires_at <= clock.now(),
        tasks=tuple(dict.fromkeys(task.taskId for task in line.tasks)),
    )


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
