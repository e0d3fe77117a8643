"""Passages: the pieces of text that are searched, of whatever kind of thing they come from.

A passage knows whose it is only as `(owner_kind, owner_id)`, and what it is searched with only as its collection.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson

from almanac.core.database import Reader, Row, Transaction

_COLUMNS = (
    "org_id", "collection", "owner_kind", "owner_id", "ordinal", "parent", "form", "text", "span_start", "span_end",
    "headings", "page", "boxes", "is_live",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Passage:
    """One piece of a thing's text."""

    start: int  # in the thing's own text, up to but not including `end`
    end: int
    text: str  # what is searched and shown: the span, after the header of the table it was cut from
    kind: str = "text"  # text, table or code
    headings: tuple[str, ...] = ()  # those it stands under, the highest first
    page: int | None = None  # where it begins
    boxes: tuple[tuple[int, float, float, float, float], ...] = ()  # page, x0, y0, x1, y1; one for each page it is on
    parent: int | None = None  # its place in the list of the passage around it; None for one that stands alone


@dataclass(frozen=True, slots=True)
class Owner:
    """The thing that passages are of."""

    org_id: str
    collection: str
    kind: str
    id: str


async def replace(tx: Transaction, owner: Owner, passages: Sequence[Passage], *, is_live: bool = True) -> None:
    """Put these in the place of whatever passages the owner had."""
    await remove(tx, owner.kind, [owner.id])
    head = (owner.org_id, owner.collection, owner.kind, owner.id)
    rows = [
        (*head, ordinal, each.parent, each.kind, each.text, each.start, each.end,
         orjson.dumps(each.headings).decode(), each.page, orjson.dumps(each.boxes).decode(), int(is_live))
        for ordinal, each in enumerate(passages)
    ]  # fmt: skip
    await tx.insert_many("passages", _COLUMNS, rows)


async def show(tx: Transaction, kind: str, ids: Iterable[str], *, is_live: bool) -> None:
    """Let the passages of some owners be found, or hide them."""
    await tx.execute_many(
        "UPDATE passages SET is_live = $3 WHERE owner_kind = $1 AND owner_id = $2 AND is_live <> $3",
        [(kind, id, int(is_live)) for id in ids],
    )


async def move(tx: Transaction, kind: str, ids: Iterable[str], collection: str) -> None:
    """Put the passages of some owners into another collection."""
    await tx.execute_many(
        "UPDATE passages SET collection = $3 WHERE owner_kind = $1 AND owner_id = $2",
        [(kind, id, collection) for id in ids],
    )


async def remove(tx: Transaction, kind: str, ids: Iterable[str]) -> None:
    """Forget the passages of some owners."""
    await tx.execute_many("DELETE FROM passages WHERE owner_kind = $1 AND owner_id = $2", [(kind, id) for id in ids])


async def find(db: Reader, kind: str, id: str, *, offset: int = 0, limit: int = 1000) -> list[Passage]:
    """An owner's passages, in the order of its text."""
    rows = await db.fetch(
        "SELECT * FROM passages WHERE owner_kind = $1 AND owner_id = $2 AND ordinal >= $3 ORDER BY ordinal LIMIT $4",
        kind,
        id,
        offset,
        limit,
    )
    return [_passage(row) for row in rows]


def _passage(row: Row) -> Passage:
    return Passage(
        start=row["span_start"],
        end=row["span_end"],
        text=row["text"],
        kind=row["form"],
        headings=tuple(orjson.loads(row["headings"])),
        page=row["page"],
        boxes=tuple(tuple(box) for box in orjson.loads(row["boxes"])),
        parent=row["parent"],
    )
