"""The rows that each database keeps beside the passages for searching, and the functions that write them.

SQLite keeps only the vectors, as bytes. The index files are derived from the rows; triggers in the schema record the
changes that the files do not contain yet. PostgreSQL also keeps the terms of each passage, in a table with a GIN index,
and the number and length of the passages of each source. A caller has updated the source's row before, in the same
transaction, and therefore holds its lock.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from almanac.core.database import Database, Transaction
from almanac.db.sql import id_list
from almanac.search.analysis import analyser
from almanac.search.ranking import bm25

# A term has one posting list for each level. A passage is on the list of a level if the BM25 value of its occurrences,
# which is below 1, reaches this minimum. The lists of higher levels are shorter ways to the best passages.
LEVEL_MIN_VALUES = (0.0, 0.55, 0.7, 0.82)
ASSUMED_AVERAGE_TERMS = 2_000  # the average passage length with which the value is computed when a passage is stored

_TERM_COLUMNS = ("passage_id", "source_id", "collection", "terms")
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


def short_hashes(terms: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the upper half of each term hash, from which PostgreSQL's posting keys are made."""
    return (terms >> 32).astype(np.int32)


def collection_salt(collection: str) -> np.int32:
    """Return the number that turns a short hash into a key of this collection, by exclusive or."""
    return _short_hash(f"collection {collection}")


def level_salt(level: int) -> np.int32:
    """Return the number that turns a short hash into a key of this level, by exclusive or."""
    return _short_hash(f"level {level}") if level else np.int32(0)


def collection_family(collection: str) -> str:
    """Return the first two parts of a collection's name, as memory:ORG for memory:ORG:superseded. Vectors are stored
    under the family, because a vector that changes its collection must be inserted into the graph again."""
    return ":".join(collection.split(":")[:2])


def posting_keys(collection: str, words: bytes) -> NDArray[np.int32]:
    """Return the keys of the posting lists that contain a passage: one for each term and level that it reaches."""
    hashes, counts = analyser.decode_terms(words)
    keys = short_hashes(hashes) ^ collection_salt(collection)
    values = bm25.saturate(counts, bm25.damp(np.array([counts.sum()]), ASSUMED_AVERAGE_TERMS))
    return np.concatenate([keys[values >= least] ^ level_salt(level) for level, least in enumerate(LEVEL_MIN_VALUES)])


async def index_passages(tx: Transaction, collections: Mapping[int, str]) -> None:
    """Rewrite the terms of the passages of sources, which are given by id with their collections."""
    if tx.dialect != "postgres" or not collections:
        return
    ids = id_list(collections)
    found = await tx.fetch(
        f"SELECT id, source_id, words FROM passages WHERE source_id IN ({ids}) AND words IS NOT NULL ORDER BY id"  # noqa: S608
    )
    rows: list[tuple[Any, ...]] = []
    sizes: dict[int, tuple[int, int]] = dict.fromkeys(collections, (0, 0))
    for row in found:
        collection, (number, length) = collections[row["source_id"]], sizes[row["source_id"]]
        rows.append((row["id"], row["source_id"], collection, posting_keys(collection, row["words"]).tolist()))
        sizes[row["source_id"]] = number + 1, length + int(analyser.decode_terms(row["words"])[1].sum())
    await tx.execute(f"DELETE FROM terms WHERE source_id IN ({ids})")  # noqa: S608 - numbers
    await tx.insert_many("terms", _TERM_COLUMNS, rows)
    await tx.execute_many(_SIZE, [(source_id, *size) for source_id, size in sizes.items()])


async def write_words(tx: Transaction, source_id: int, collection: str, words: Sequence[tuple[int, bytes]]) -> None:
    """Replace the encoded terms of passages, given as (passage id, terms)."""
    await tx.execute_many("UPDATE passages SET words = $2 WHERE id = $1", words)
    await index_passages(tx, {source_id: collection})


async def write_vectors(
    tx: Transaction, model: str, rows: Sequence[tuple[int, int, str]], vectors: NDArray[np.float32]
) -> None:
    """Store the vectors of passages. Each row is (passage id, source id, collection)."""
    keys = ((passage_id, source_id, collection_family(name), model) for passage_id, source_id, name in rows)
    sql = _VECTOR.format(vector=_AS_VECTOR[tx.dialect])
    await tx.execute_many(sql, [(*key, vector) for key, vector in zip(keys, _stored(tx.dialect, vectors), strict=True)])


async def collection_names(db: Database) -> list[str]:
    return [row["name"] for row in await db.scan("SELECT name FROM collections ORDER BY name")]


async def dimension(db: Database, collection: str, model: str) -> int | None:
    """Return the size of a collection's vectors of a model, or None if it has none."""
    row = await db.fetch_one(_DIMENSION.format(size=_SIZE_OF[db.dialect]), collection, model)
    return None if row is None else row["size"]


async def move_source(tx: Transaction, source_id: int, collection: str) -> None:
    """Update the vectors and the terms of a source to its collection."""
    sql = "UPDATE vectors SET collection = $2 WHERE source_id = $1 AND collection <> $2"
    await tx.execute(sql, source_id, collection_family(collection))
    await index_passages(tx, {source_id: collection})


def _stored(dialect: str, vectors: NDArray[np.float32]) -> Iterable[bytes | str]:
    if dialect == "sqlite":
        return (vector.tobytes() for vector in vectors.astype("<f2"))
    # PostgreSQL reads vectors as text, and rounds as numpy does.
    return (orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY).decode() for vector in vectors)


def _short_hash(name: str) -> np.int32:
    return np.int32(analyser.term_hash(name) >> 32)  # no term contains a space, so no term has this hash
