"""Passages: the pieces of text that are searched, of whatever kind of thing they come from."""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from almanac.core.database import Reader, Transaction
from almanac.search import analysis, index_rows, sources
from almanac.search.passage import Passage, passage_of
from almanac.search.sources import Source

_COLUMNS = (
    "source_id", "ordinal", "parent", "form", "text", "span_start", "span_end", "headings", "page", "boxes", "words",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prepared:
    """Passages whose words have been counted, which takes too long to be done within a transaction."""

    title: str
    passages: Sequence[Passage]
    words: Sequence[bytes]
    context: str = ""


def prepare(title: str, passages: Sequence[Passage], context: str = "") -> Prepared:
    """Count the words of passages under a title, after what was said before them elsewhere."""
    return Prepared(title, passages, analysis.count(title, passages, context), context)


async def replace(tx: Transaction, source: Source, prepared: Prepared) -> int:
    """Put these in the place of whatever passages the source had; the number search has for the source."""
    if (prepared.title, prepared.context) != (source.title, source.context):  # it has been renamed meanwhile
        prepared = prepare(source.title, prepared.passages, source.context)
    source_id = await sources.put(tx, source)
    await tx.execute("DELETE FROM passages WHERE source_id = $1", source_id)
    rows = [
        (source_id, ordinal, each.parent, each.kind, each.text, each.start, each.end,
         orjson.dumps(each.headings).decode(), each.page, orjson.dumps(each.boxes).decode(), words)
        for ordinal, (each, words) in enumerate(zip(prepared.passages, prepared.words, strict=True))
    ]  # fmt: skip
    await tx.insert_many("passages", _COLUMNS, rows)
    await index_rows.added(tx, source_id, source.collection)
    await sources.touch(tx, [source_id])
    if rows:
        await sources.ask_for_vectors(tx, source_id, source.collection)
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
    return [passage_of(row) for row in rows]
