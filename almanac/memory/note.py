"""One note: the value and the SELECT that reads it."""

from dataclasses import dataclass

import orjson

from almanac.core.call import Call
from almanac.core.database import Row
from almanac.core.errors import Forbidden
from almanac.db.sql import from_row

# Notes `n`, with `is_embedded` from the row that search keeps for the note.
SELECT = """
SELECT n.*, p.name AS author, coalesce(s.is_embedded, 0) AS is_embedded
FROM notes n JOIN principals p ON p.id = n.author_id LEFT JOIN sources s ON s.kind = 'note' AND s.owner_id = n.id
"""


@dataclass(frozen=True, slots=True)
class Note:
    """A fact that an agent has stored."""

    number: int
    id: str
    org_id: str
    author_id: int
    author: str
    source: str
    title: str
    body: str
    tags: tuple[str, ...]
    confidence: int
    created_at: int
    expires_at: int | None = None
    is_expired: bool = False  # set by the expiry job, some seconds after `expires_at`
    successor_id: str | None = None
    head_id: str | None = None  # the live note at the end of its chain of successors; None for a live note
    superseded_at: int | None = None
    is_embedded: bool = False
    tasks: tuple[str, ...] = ()  # set only on a note that is about to be stored or indexed

    @property
    def embedding_status(self) -> str:
        """`pending` or `ready`."""
        return "ready" if self.is_embedded else "pending"


@dataclass(frozen=True, slots=True)
class TaskLink:
    """A link from a note to a task."""

    task_id: str
    kind: str  # references or produced


@dataclass(frozen=True, slots=True)
class NoteDraft:
    """The fields of a new note."""

    title: str
    body: str
    tags: tuple[str, ...] = ()
    confidence: int = 80
    expires_at: int | None = None
    task: TaskLink | None = None
    cites: tuple[str, ...] = ()  # ids of the notes that it is based on
    source: str = "agent"


def require_access(call: Call) -> None:
    """Refuse a token that is limited to some knowledge bases: notes belong to none."""
    if call.actor.bases is not None:
        raise Forbidden(
            "Your token is limited to some knowledge bases, so it cannot use notes.",
            remedy="Use a token without this limit.",
        )


def note_from_row(row: Row) -> Note:
    """The note in a row of `SELECT`."""
    flags = {name: bool(row[name]) for name in ("is_expired", "is_embedded")}
    return from_row(Note, row, tags=tuple(orjson.loads(row["tags"])), tasks=(), **flags)
