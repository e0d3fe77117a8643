"""Stores the passages of sources."""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from almanac.core.database import Database, Row, Transaction, Value
from almanac.core.fair_slots import compute_for
from almanac.db.sql import placeholders
from almanac.search import sources
from almanac.search.analysis import analyser
from almanac.search.filters import metadata_index
from almanac.search.index import tables
from almanac.search.passage import Passage, passage_from_row
from almanac.search.sources import Source

_COLUMNS = (
    "source_id", "ordinal", "parent", "form", "text", "span_start", "span_end", "headings", "page", "boxes", "words",
)  # fmt: skip

_FIND = "SELECT p.* FROM passages p JOIN sources s ON s.id = p.source_id WHERE s.kind = $1 AND s.owner_id = $2"


@dataclass(frozen=True, slots=True)
class AnalysedPassages:
    """Passages with their counted terms. Counting is too slow for a transaction."""

    title: str
    passages: Sequence[Passage]
    words: Sequence[bytes]  # of each passage, as `analyser.encode_terms` returns them
    context: str = ""


def analyse(title: str, passages: Sequence[Passage], context: str = "") -> AnalysedPassages:
    """Count the terms of passages. `context` is text that precedes the first passage in another source."""
    return AnalysedPassages(title, passages, analyser.count(title, passages, context), context)


async def replace(tx: Transaction, source: Source, prepared: AnalysedPassages) -> int:
    """Replace the passages of a source. Returns the id of its row."""
    if (prepared.title, prepared.context) != (source.title, source.context):  # the source was renamed meanwhile
        prepared = analyse(source.title, prepared.passages, source.context)
    source_id = await sources.put(tx, source)
    await tx.execute("DELETE FROM passages WHERE source_id = $1", source_id)
    rows = _rows(source_id, prepared)
    await tx.insert_many("passages", _COLUMNS, rows)
    await tables.index_passages(tx, {source_id: source.collection})
    await sources.mark_changed(tx, [source_id])
    if rows:
        await sources.enqueue_embedding(tx, source_id, source.collection)
    return source_id


async def find(db: Database, kind: str, object_id: str, *, offset: int = 0, limit: int = 1000) -> list[Passage]:
    """The passages of a source, in the order of its text."""
    rows = await db.scan(f"{_FIND} AND p.ordinal >= $3 ORDER BY p.ordinal LIMIT $4", kind, object_id, offset, limit)
    return await compute_for(len(rows), _passages_from, rows)


async def find_in_transaction(tx: Transaction, kind: str, object_id: str) -> list[Passage]:
    """The passages of a short source, as a transaction sees them."""
    return _passages_from(await tx.fetch(f"{_FIND} ORDER BY p.ordinal", kind, object_id))


def _passages_from(rows: Sequence[Row]) -> list[Passage]:
    return [passage_from_row(row) for row in rows]


async def add_many(tx: Transaction, items: Sequence[tuple[Source, AnalysedPassages]]) -> None:
    """Like `replace`, for hundreds of sources that are mostly new: in a few statements."""
    known = await _ids(tx, [source for source, _ in items])
    for source, prepared in items:
        if (source.kind, source.object_id) in known:
            await replace(tx, source, prepared)
    new = {key: (source, prepared) for source, prepared in items
           if (key := (source.kind, source.object_id)) not in known}  # fmt: skip
    await sources.add_many(tx, [source for source, _ in new.values()])
    ids = await _ids(tx, [source for source, _ in new.values()])
    rows = [row for key, (_, prepared) in new.items() for row in _rows(ids[key], prepared)]
    await tx.insert_many("passages", _COLUMNS, rows)
    await tables.index_passages(tx, {ids[key]: source.collection for key, (source, _) in new.items()})
    metadata = [(ids[key], source.collection, source.metadata, source.tags) for key, (source, _) in new.items()]
    await metadata_index.write(tx, metadata)


async def _ids(tx: Transaction, wanted: Sequence[Source]) -> dict[tuple[str, str], int]:
    """The ids of the rows of the sources that exist."""
    found: dict[tuple[str, str], int] = {}
    for kind in {source.kind for source in wanted}:
        object_ids = [source.object_id for source in wanted if source.kind == kind]
        numbers = placeholders(len(object_ids), start=2)
        sql = f"SELECT id, owner_id FROM sources WHERE kind = $1 AND owner_id IN ({numbers})"  # noqa: S608
        found |= {(kind, row["owner_id"]): row["id"] for row in await tx.fetch(sql, kind, *object_ids)}
    return found


def _rows(source_id: int, prepared: AnalysedPassages) -> list[tuple[Value, ...]]:
    return [
        (source_id, ordinal, each.parent, each.kind, each.text, each.start, each.end,
         orjson.dumps(each.headings).decode(), each.page, orjson.dumps(each.boxes).decode(), words)
        for ordinal, (each, words) in enumerate(zip(prepared.passages, prepared.words, strict=True))
    ]  # fmt: skip
