"""Sources: what passages are of, as far as a search has to know it.

A slice tells search of a thing by `put`, as often as it likes; what has changed about it is found out here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from almanac.core.database import Reader, Row, Transaction, Value
from almanac.search.analysis import analyser
from almanac.search.filters import metadata_index
from almanac.search.index import tables
from almanac.search.jobs import embed_queue
from almanac.search.passage import passage_from_row

_PUT = """
INSERT INTO sources (org_id, collection, kind, owner_id, title, folder_id, tags, metadata, created_at, updated_at,
    media, context, is_live, version, is_embedded) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 1, 1)
RETURNING id
"""
_COLUMNS = (
    "org_id", "collection", "kind", "owner_id", "title", "folder_id", "tags", "metadata", "created_at", "updated_at",
    "media", "context", "is_live", "version", "is_embedded",
)  # fmt: skip
_CHANGE = """
UPDATE sources SET org_id = $2, title = $3, folder_id = $4, tags = $5, metadata = $6, created_at = $7, updated_at = $8,
    media = $9, context = $10 WHERE id = $1
"""


@dataclass(frozen=True, slots=True)
class Source:
    """A thing with passages: where it is, what it is called, and what it can be filtered by."""

    org_id: str
    collection: str  # 'base:7'
    kind: str  # 'document'
    object_id: str  # what its slice calls it
    title: str
    created_at: int
    updated_at: int
    folder_id: int = 0
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    media: str = ""  # its media type
    is_live: bool = True
    context: str = ""  # what was said elsewhere before it: it helps to find a thing that is short, and is never shown


async def put(tx: Transaction, source: Source) -> int:
    """Let search know how a thing is now; the number search has for it."""
    await _open(tx, source.collection, source.org_id)
    known = await tx.fetch_one(
        "SELECT id, collection, title, tags, metadata, is_live, is_embedded FROM sources WHERE kind = $1"
        " AND owner_id = $2",
        source.kind,
        source.object_id,
    )
    if known is None:
        head = (source.org_id, source.collection, source.kind, source.object_id)
        row = await tx.fetch_one(_PUT, *head, *_described(source), int(source.is_live))
        assert row is not None
        await metadata_index.write(tx, [(row["id"], source.collection, source.metadata, source.tags)])
        return row["id"]
    await tx.execute(_CHANGE, known["id"], source.org_id, *_described(source))
    await _adjust(tx, known, source)
    return known["id"]


async def add_many(tx: Transaction, new: Sequence[Source]) -> None:
    """Let search know of things it has not heard of, whose passages lack every vector so far."""
    for collection, org_id in {source.collection: source.org_id for source in new}.items():
        await _open(tx, collection, org_id)
        await embed_queue.enqueue(tx, collection)
    rows = [
        (each.org_id, each.collection, each.kind, each.object_id, *_described(each), int(each.is_live), 1, 0)
        for each in new
    ]
    await tx.insert_many("sources", _COLUMNS, rows)


async def show(tx: Transaction, kind: str, owner_ids: Iterable[str], *, is_live: bool) -> None:
    """Let things be found, or hide them."""
    await tx.execute_many(
        "UPDATE sources SET is_live = $3 WHERE kind = $1 AND owner_id = $2 AND is_live <> $3",
        [(kind, owner_id, int(is_live)) for owner_id in owner_ids],
    )


async def move_folder(tx: Transaction, collection: str, folder_id: int, into: int) -> None:
    """All that was in one folder of a collection is in another now."""
    await tx.execute(
        "UPDATE sources SET folder_id = $3 WHERE collection = $1 AND folder_id = $2", collection, folder_id, into
    )


async def remove(tx: Transaction, kind: str, owner_ids: Iterable[str]) -> None:
    """Forget things, and with them their passages."""
    await tx.execute_many(
        "DELETE FROM sources WHERE kind = $1 AND owner_id = $2", [(kind, owner_id) for owner_id in owner_ids]
    )


async def embedded(db: Reader, kind: str, owner_ids: Sequence[str]) -> set[str]:
    """Which of some things have every vector they should have."""
    if not owner_ids:
        return set()
    rows = await db.fetch(
        "SELECT s.owner_id FROM sources s JOIN collections c ON c.name = s.collection WHERE s.kind = $1"  # noqa: S608
        f" AND s.owner_id IN ({', '.join(f'${place + 2}' for place in range(len(owner_ids)))})"
        " AND s.is_embedded = 1 AND c.model <> ''",
        kind,
        *owner_ids,
    )
    return {row["owner_id"] for row in rows}


async def embedding_state(db: Reader, collection: str, folders: Sequence[int]) -> str:
    """Whether the vectors of what is in some folders of a collection, or in all, are "made", "waiting" or "failed"."""
    where = f"AND folder_id IN ({', '.join(f'{folder:d}' for folder in folders)})" if folders else ""
    rows = await db.fetch(
        f"SELECT 1 FROM sources WHERE collection = $1 AND is_embedded = 0 AND is_live = 1 {where} LIMIT 1",  # noqa: S608
        collection,
    )
    if not rows:
        return "made"
    return "failed" if await embed_queue.is_dead(db, collection) else "waiting"


async def mark_changed(tx: Transaction, source_ids: Iterable[int]) -> None:
    """Note that the passages of sources, their words or their vectors have changed."""
    ids = sorted(set(source_ids))  # in one order, so that two writers cannot lock each other out
    await tx.execute_many("UPDATE sources SET version = version + 1 WHERE id = $1", [(id,) for id in ids])


async def enqueue_embedding(tx: Transaction, source_id: int, collection: str) -> None:
    """Have the vectors that a source's passages lack made as soon as a worker can."""
    await tx.execute("UPDATE sources SET is_embedded = 0 WHERE id = $1", source_id)
    await embed_queue.enqueue(tx, collection)


async def _open(tx: Transaction, collection: str, org_id: str) -> None:
    sql = "INSERT INTO collections (name, org_id, model) VALUES ($1, $2, '') ON CONFLICT (name) DO NOTHING"
    await tx.execute(sql, collection, org_id)


def _described(source: Source) -> tuple[Value, ...]:
    tags, metadata = orjson.dumps(source.tags).decode(), orjson.dumps(source.metadata).decode()
    return (
        source.title,
        source.folder_id,
        tags,
        metadata,
        source.created_at,
        source.updated_at,
        source.media,
        source.context,
    )


async def _adjust(tx: Transaction, known: Row, source: Source) -> None:
    """What follows from a thing's having been shown or hidden, moved, described or called otherwise."""
    if bool(known["is_live"]) != source.is_live:
        await tx.execute("UPDATE sources SET is_live = $2 WHERE id = $1", known["id"], int(source.is_live))
    if known["collection"] != source.collection:
        await tx.execute("UPDATE sources SET collection = $2 WHERE id = $1", known["id"], source.collection)
        await tables.move_source(tx, known["id"], source.collection)
        if not known["is_embedded"] or not await _share_model(tx, known["collection"], source.collection):
            await enqueue_embedding(tx, known["id"], source.collection)
    before = (known["collection"], orjson.loads(known["metadata"]), orjson.loads(known["tags"]))
    if before != (source.collection, source.metadata, list(source.tags)):
        await metadata_index.rewrite(tx, (known["id"], source.collection, source.metadata, source.tags))
    if known["title"] != source.title:
        await _retitle(tx, known["id"], source)


async def _share_model(tx: Transaction, one: str, other: str) -> bool:
    """Whether what has its vectors in one collection has those of the other too."""
    rows = await tx.fetch("SELECT model, next_model FROM collections WHERE name IN ($1, $2)", one, other)
    return bool(rows[0]["model"]) and len({(row["model"], row["next_model"]) for row in rows}) == 1


async def _retitle(tx: Transaction, source_id: int, source: Source) -> None:
    rows = await tx.fetch("SELECT * FROM passages WHERE source_id = $1 ORDER BY ordinal", source_id)
    words = analyser.count(source.title, [passage_from_row(row) for row in rows], source.context)
    counted = list(zip((row["id"] for row in rows), words, strict=True))
    await tables.write_words(tx, source_id, source.collection, counted)
    await tx.execute("DELETE FROM vectors WHERE source_id = $1", source_id)
    await mark_changed(tx, [source_id])
    await enqueue_embedding(tx, source_id, source.collection)
