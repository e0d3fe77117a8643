"""What each database keeps beside the passages so that they can be searched, and how it is kept.

SQLite keeps the vectors, as bytes, and nothing else: files derived from the rows catch up by what the triggers of its
schema note down. PostgreSQL also keeps the terms of each passage, in a table with an index of its own, and the size of
each source. Whoever calls these has changed the source's row before, in the same transaction, and so holds its lock.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from almanac.core.database import Database, Transaction
from almanac.search.analysis import analyser
from almanac.search.ranking import bm25

LEVELS = (0.0, 0.55, 0.7, 0.82)  # a term is listed anew where it counts for this much: a shorter way to the best
USUAL = 2_000  # length of a passage by which that is judged when it is listed

_TERM_COLUMNS = ("passage_id", "source_id", "collection", "terms")
_WORDS = "SELECT id, words FROM passages WHERE source_id = $1 AND words IS NOT NULL ORDER BY id"
_SIZE = "UPDATE sources SET passages = $2, length = $3 WHERE id = $1"
_VECTOR = """
INSERT INTO vectors (passage_id, source_id, collection, model, vector) VALUES ($1, $2, $3, $4, {vector})
ON CONFLICT (passage_id, model) DO UPDATE SET vector = excluded.vector, collection = excluded.collection
"""
_DIMENSION = """
SELECT {size} AS size FROM sources s JOIN vectors v ON v.source_id = s.id
WHERE s.collection = $1 AND v.model = $2 LIMIT 1
"""
_SIZE_OF = {"sqlite": "length(v.vector) / 2", "postgres": "vector_dims(v.vector)"}
_AS_VECTOR = {"sqlite": "$5", "postgres": "CAST(CAST($5 AS text) AS halfvec)"}


def short(terms: NDArray[np.int64]) -> NDArray[np.int32]:
    """Terms as PostgreSQL lists them: the upper half of each hash."""
    return (terms >> 32).astype(np.int32)


def collection_salt(collection: str) -> np.int32:
    """What makes (by exclusive or) of a short term the one that is listed for a collection."""
    return _short_hash(f"collection {collection}")


def family(collection: str) -> str:
    """What the vectors of a collection lie under: its name less what has become of the things in it, as in memory:ORG
    for memory:ORG:superseded. To move a vector means to find its place in a graph anew."""
    return ":".join(collection.split(":")[:2])


def level_salt(level: int) -> np.int32:
    """What makes of a short term the one that is listed for a level."""
    return _short_hash(f"level {level}") if level else np.int32(0)


def listed(collection: str, words: bytes) -> NDArray[np.int32]:
    """What a passage is listed under: its terms, and again those that stand in it often, for its length."""
    hashes, counts = analyser.decode_terms(words)
    terms = short(hashes) ^ collection_salt(collection)
    worth = bm25.saturate(counts, bm25.damp(np.array([counts.sum()]), USUAL))
    return np.concatenate([terms[worth >= least] ^ level_salt(level) for level, least in enumerate(LEVELS)])


async def index_passages(tx: Transaction, source_id: int, collection: str) -> None:
    """Passages of a source, with their words, have been added."""
    if tx.dialect == "postgres":
        await _write_terms(tx, source_id, collection)


async def added_many(tx: Transaction, places: Sequence[tuple[int, str]]) -> None:
    """As `added`, for sources that had no passages before: each with its collection."""
    if tx.dialect != "postgres" or not places:
        return
    collections = dict(places)
    ids = ", ".join(str(source_id) for source_id in collections)
    rows = await tx.fetch(
        f"SELECT id, source_id, words FROM passages WHERE source_id IN ({ids}) AND words IS NOT NULL"  # noqa: S608
    )
    places_of = [(row["id"], row["source_id"], collections[row["source_id"]], row["words"]) for row in rows]
    terms = [(*place, listed(place[2], words).tolist()) for *place, words in places_of]
    await tx.insert_many("terms", _TERM_COLUMNS, terms)
    sizes: dict[int, tuple[int, int]] = dict.fromkeys(collections, (0, 0))
    for _, source_id, _, words in places_of:
        number, length = sizes[source_id]
        sizes[source_id] = number + 1, length + int(analyser.decode_terms(words)[1].sum())
    await tx.execute_many(_SIZE, [(source_id, *size) for source_id, size in sizes.items()])


async def write_words(tx: Transaction, source_id: int, collection: str, words: Sequence[tuple[int, bytes]]) -> None:
    """Put counted words (by passage) in the place of what these passages had."""
    await tx.execute_many("UPDATE passages SET words = $2 WHERE id = $1", words)
    if tx.dialect == "postgres":
        await _write_terms(tx, source_id, collection)


async def write_vectors(
    tx: Transaction, model: str, rows: Sequence[tuple[int, int, str]], vectors: NDArray[np.float32]
) -> None:
    """Store the vectors of passages; each row is (passage, source, collection)."""
    places = ((passage_id, source_id, family(collection), model) for passage_id, source_id, collection in rows)
    sql = _VECTOR.format(vector=_AS_VECTOR[tx.dialect])
    each = zip(places, _vectors_for(tx.dialect, vectors), strict=True)
    await tx.execute_many(sql, [(*place, vector) for place, vector in each])


async def dimension(db: Database, collection: str, model: str) -> int | None:
    """How many numbers the vectors have that a collection has of a model, if it has any."""
    row = await db.fetch_one(_DIMENSION.format(size=_SIZE_OF[db.dialect]), collection, model)
    return None if row is None else row["size"]


async def move(tx: Transaction, source_id: int, collection: str) -> None:
    """A source has come into another collection."""
    await move_vectors(tx, source_id, collection)
    if tx.dialect == "postgres":
        await _write_terms(tx, source_id, collection)


async def move_vectors(tx: Transaction, source_id: int, collection: str) -> None:
    """Put the vectors of a source where those of its collection lie, unless they are there."""
    sql = "UPDATE vectors SET collection = $2 WHERE source_id = $1 AND collection <> $2"
    await tx.execute(sql, source_id, family(collection))


def _vectors_for(dialect: str, vectors: NDArray[np.float32]) -> Iterable[bytes | str]:
    if dialect == "sqlite":
        return (vector.tobytes() for vector in vectors.astype("<f2"))
    # PostgreSQL reads them as text, and rounds as numpy does.
    return (orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY).decode() for vector in vectors)


async def _write_terms(tx: Transaction, source_id: int, collection: str) -> None:
    rows: list[tuple[Any, ...]] = []
    length = 0
    for row in await tx.fetch(_WORDS, source_id):
        rows.append((row["id"], source_id, collection, listed(collection, row["words"]).tolist()))
        length += int(analyser.decode_terms(row["words"])[1].sum())
    await tx.execute("DELETE FROM terms WHERE source_id = $1", source_id)
    await tx.insert_many("terms", _TERM_COLUMNS, rows)
    await tx.execute(_SIZE, source_id, len(rows), length)


def _short_hash(name: str) -> np.int32:
    return np.int32(analyser.term_hash(name) >> 32)  # no term has a space in it
