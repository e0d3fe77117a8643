"""A note, as a value: what was said, by whom, and what has become of it."""

from dataclasses import dataclass

import orjson

from almanac.core.database import Row

# The columns that a note is made of, of the notes `n`; the search's own row `s` tells whether its vectors are there.
SELECT = """
SELECT n.*, p.name AS author, coalesce(s.is_embedded, 0) AS is_embedded
FROM notes n JOIN principals p ON p.id = n.author_id LEFT JOIN sources s ON s.kind = 'note' AND s.owner_id = n.id
"""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that an agent has learnt."""

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
    is_expired: bool = False  # as search knows it, which may be some seconds late
    successor_id: str | None = None
    head_id: str | None = None  # the live note that stands for it now; None where it stands for itself
    superseded_at: int | None = None
    is_embedded: bool = False
    tasks: tuple[str, ...] = ()  # known while it is being stored

    @property
    def embedding_status(self) -> str:
        """pending or ready."""
        return "ready" if self.is_embedded else "pending"


@dataclass(frozen=True, slots=True)
class TaskLink:
    """What a note has to do with a task."""

    task_id: str
    kind: str  # references or produced


@dataclass(frozen=True, slots=True)
class NoteDraft:
    """A note that is to be stored."""

    title: str
    body: str
    tags: tuple[str, ...] = ()
    confidence: int = 80
    expires_at: int | None = None
    task: TaskLink | None = None
    cites: tuple[str, ...] = ()  # notes it rests on
    source: str = "agent"


def note_from_row(row: Row) -> Note:
    """A note from its row."""
    return Note(
        number=row["number"],
        id=row["id"],
        org_id=row["org_id"],
        author_id=row["author_id"],
        author=row["author"],
        source=row["source"],
        title=row["title"],
        body=row["body"],
        tags=tuple(orjson.loads(row["tags"])),
        confidence=row["confidence"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        is_expired=bool(row["is_expired"]),
        successor_id=row["successor_id"],
        head_id=row["head_id"],
        superseded_at=row["superseded_at"],
        is_embedded=bool(row["is_embedded"]),
    )
