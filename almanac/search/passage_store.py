"""Passages: the pieces of text that are searched, of whatever kind of thing they come from."""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from almanac.core.database import Reader, Transaction, Value
from almanac.search import sources
from almanac.search.analysis import analyser
from almanac.search.filters import metadata_index
from almanac.search.index import tables
from almanac.search.passage import Passage, passage_from_row
from almanac.search.sources import Source

_COLUMNS = (
    "source_id", "ordinal", "parent", "form", "text", "span_start", "span_end", "headings", "page", "boxes", "words",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AnalysedPassages:
    """Passages whose words have been counted, which takes too long to be done within a transaction."""

    title: str
    passages: Sequence[Passage]
    words: Sequence[bytes]
    context: str = ""


def analyse(title: str, passages: Sequence[Passage], context: str = "") -> AnalysedPassages:
    """Count the words of passages under a title, after what was said before them elsewhere."""
    return AnalysedPassages(title, passages, analyser.count(title, passages, context), context)


async def replace(tx: Transaction, source: Source, prepared: AnalysedPassages) -> int:
    """Put these in the place of whatever passages the source had; the number search has for the source."""
    if (prepared.title, prepared.context) != (source.title, source.context):  # it has been renamed meanwhile
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


async def find(db: Reader, kind: str, owner_id: str, *, offset: int = 0, limit: int = 1000) -> list[Passage]:
    """A thing's passages, in the order of its text."""
    rows = await db.fetch(
        "SELECT p.* FROM passages p JOIN sources s ON s.id = p.source_id"
        " WHERE s.kind = $1 AND s.owner_id = $2 AND p.ordinal >= $3 ORDER BY p.ordinal LIMIT $4",
        kind,
        owner_id,
        offset,
        limit,
    )
    return [passage_from_row(row) for row in rows]


async def add_many(tx: Transaction, things: Sequence[tuple[Source, AnalysedPassages]]) -> None:
    """As `replace`, for things that search may not know yet, by the hundred: in a few statements."""
    known = await _ids(tx, [source for source, _ in things])
    for source, prepared in things:
        if (source.kind, source.object_id) in known:
            await replace(tx, source, prepared)
    new = {(source.kind, source.object_id): (source, prepared) for source, prepared in things
           if (source.kind, source.object_id) not in known}  # fmt: skip
    await sources.add_many(tx, [source for source, _ in new.values()])
    ids = await _ids(tx, [source for source, _ in new.values()])
    rows = [row for key, (_, prepared) in new.items() for row in _rows(ids[key], prepared)]
    await tx.insert_many("passages", _COLUMNS, rows)
    await tables.index_passages(tx, {ids[key]: source.collection for key, (source, _) in new.items()})
    noted = [(ids[key], source.collection, source.metadata, source.tags) for key, (source, _) in new.items()]
    await metadata_index.write(tx, noted)


async def _ids(tx: Transaction, wanted: Sequence[Source]) -> dict[tuple[str, str], int]:
    """The numbers search has for those of some things that it knows."""
    found: dict[tuple[str, str], int] = {}
    for kind in {source.kind for source in wanted}:
        owners = [source.object_id for source in wanted if source.kind == kind]
        listed = ", ".join(f"${place + 2}" for place in range(len(owners)))
        sql = f"SELECT id, owner_id FROM sources WHERE kind = $1 AND owner_id IN ({listed})"  # noqa: S608 - numbers
        found |= {(kind, row["owner_id"]): row["id"] for row in await tx.fetch(sql, kind, *owners)}
    return found


def _rows(source_id: int, prepared: AnalysedPassages) -> list[tuple[Value, ...]]:
    return [
        (source_id, ordinal, each.parent, each.kind, each.text, each.start, each.end,
         orjson.dumps(each.headings).decode(), each.page, orjson.dumps(each.boxes).decode(), words)
        for ordinal, (each, words) in enumerate(zip(prepared.passages, prepared.words, strict=True))
    ]  # fmt: skip
