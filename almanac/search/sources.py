"""Sources: search's records of the objects that have passages.

A package calls `put` whenever one of its objects may have changed. `put` compares the object with the stored source
and updates the index where they differ.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from almanac.core.database import Reader, Row, Transaction, Value
from almanac.db.sql import id_list, placeholders
from almanac.search.analysis import analyser
from almanac.search.filters import metadata_index
from almanac.search.index import tables
from almanac.search.jobs import embed_queue
from almanac.search.passage import passage_from_row

_COLUMNS = (
    "org_id", "collection", "kind", "owner_id", "title", "folder_id", "tags", "metadata", "created_at", "updated_at",
    "media", "context", "is_live", "version", "is_embedded",
)  # fmt: skip
_ADD = f"INSERT INTO sources ({', '.join(_COLUMNS)}) VALUES ({placeholders(len(_COLUMNS))}) RETURNING id"  # noqa: S608
_UPDATE = """
UPDATE sources SET org_id = $2, title = $3, folder_id = $4, tags = $5, metadata = $6, created_at = $7, updated_at = $8,
    media = $9, context = $10 WHERE id = $1
"""


@dataclass(frozen=True, slots=True)
class Source:
    """An object that has passages: its collection, its title and the fields that filters use."""

    org_id: str
    collection: str  # 'base:7'
    kind: str  # 'document'
    object_id: str  # the id that its package uses; the column `owner_id`
    title: str
    created_at: int
    updated_at: int
    folder_id: int = 0
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    media: str = ""  # media type
    is_live: bool = True
    context: str = ""  # preceding text of another source, indexed so that a short source can be found; never shown


async def put(tx: Transaction, source: Source) -> int:
    """Add or update a source. Returns the id of its row."""
    await _open(tx, source.collection, source.org_id)
    known = await tx.fetch_one(
        "SELECT id, collection, title, tags, metadata, is_live, is_embedded FROM sources WHERE kind = $1"
        " AND owner_id = $2",
        source.kind,
        source.object_id,
    )
    if known is None:
        row = await tx.fetch_one(_ADD, *_values(source, is_embedded=True))
        assert row is not None
        await metadata_index.write(tx, [(row["id"], source.collection, source.metadata, source.tags)])
        return row["id"]
    await tx.execute(_UPDATE, known["id"], source.org_id, *_described(source))
    await _apply_changes(tx, known, source)
    return known["id"]


async def add_many(tx: Transaction, new: Sequence[Source]) -> None:
    """Add sources that do not exist yet, and queue the embedding of their passages."""
    for collection, org_id in {source.collection: source.org_id for source in new}.items():
        await _open(tx, collection, org_id)
        await embed_queue.enqueue(tx, collection)
    await tx.insert_many("sources", _COLUMNS, [_values(source, is_embedded=False) for source in new])


async def show(tx: Transaction, kind: str, object_ids: Iterable[str], *, is_live: bool) -> None:
    """Show sources in search, or hide them."""
    await tx.execute_many(
        "UPDATE sources SET is_live = $3 WHERE kind = $1 AND owner_id = $2 AND is_live <> $3",
        [(kind, object_id, int(is_live)) for object_id in object_ids],
    )


async def move_folder(tx: Transaction, collection: str, folder_id: int, into: int) -> None:
    """Move the sources of one folder to another folder of the collection."""
    await tx.execute(
        "UPDATE sources SET folder_id = $3 WHERE collection = $1 AND folder_id = $2", collection, folder_id, into
    )


async def remove(tx: Transaction, kind: str, object_ids: Iterable[str]) -> None:
    """Remove sources with their passages."""
    await tx.execute_many(
        "DELETE FROM sources WHERE kind = $1 AND owner_id = $2", [(kind, object_id) for object_id in object_ids]
    )


async def embedded(db: Reader, kind: str, object_ids: Sequence[str]) -> set[str]:
    """The ids of the objects whose passages all have vectors."""
    if not object_ids:
        return set()
    rows = await db.fetch(
        "SELECT s.owner_id FROM sources s JOIN collections c ON c.name = s.collection WHERE s.kind = $1"  # noqa: S608
        f" AND s.owner_id IN ({placeholders(len(object_ids), start=2)})"
        " AND s.is_embedded = 1 AND c.model <> ''",
        kind,
        *object_ids,
    )
    return {row["owner_id"] for row in rows}


async def embedding_state(db: Reader, collection: str, folders: Sequence[int]) -> str:
    """The state of the vectors in these folders of a collection, or in all: "made", "waiting" or "failed"."""
    where = f"AND folder_id IN ({id_list(folders)})" if folders else ""
    rows = await db.fetch(
        f"SELECT 1 FROM sources WHERE collection = $1 AND is_embedded = 0 AND is_live = 1 {where} LIMIT 1",  # noqa: S608
        collection,
    )
    if not rows:
        return "made"
    return "failed" if await embed_queue.is_dead(db, collection) else "waiting"


async def mark_changed(tx: Transaction, source_ids: Iterable[int]) -> None:
    """Tell the index that passages of these sources, or their terms or vectors, have changed."""
    ids = sorted(set(source_ids))  # sorted, so that two writers cannot deadlock
    await tx.execute_many("UPDATE sources SET version = version + 1 WHERE id = $1", [(id,) for id in ids])


async def enqueue_embedding(tx: Transaction, source_id: int, collection: str) -> None:
    """Queue the embedding of a source's passages that have no vectors."""
    await tx.execute("UPDATE sources SET is_embedded = 0 WHERE id = $1", source_id)
    await embed_queue.enqueue(tx, collection)


async def _open(tx: Transaction, collection: str, org_id: str) -> None:
    sql = "INSERT INTO collections (name, org_id, model) VALUES ($1, $2, '') ON CONFLICT (name) DO NOTHING"
    await tx.execute(sql, collection, org_id)


def _values(source: Source, *, is_embedded: bool) -> tuple[Value, ...]:
    """The values of `_COLUMNS`."""
    head = (source.org_id, source.collection, source.kind, source.object_id)
    return (*head, *_described(source), int(source.is_live), 1, int(is_embedded))


def _described(source: Source) -> tuple[Value, ...]:
    tags, metadata = orjson.dumps(source.tags).decode(), orjson.dumps(source.metadata).decode()
    times = (source.created_at, source.updated_at)
    return (source.title, source.folder_id, tags, metadata, *times, source.media, source.context)


async def _apply_changes(tx: Transaction, known: Row, source: Source) -> None:
    """Update the index if the source's visibility, collection, metadata, tags or title have changed."""
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
    """Whether both collections have vectors of the same model."""
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
