"""The database rows that the embedded index reads: changed sources, their passages, and the list of index files."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from almanac.core.database import Database, Row, Transaction
from almanac.search.filters import metadata_index
from almanac.search.index.embedded.segment_builder import SegmentRows
from almanac.search.index.protocol import SearchScope

_STATE = """
SELECT coalesce((SELECT max(sequence) FROM changes), 0), coalesce((SELECT max(id) FROM segments), 0),
    coalesce((SELECT max(sequence) FROM segments), 0)
"""
# One statement, so that changes, files and rows are from the same moment. `g` has a row even if nothing has changed.
_CHANGES = """
SELECT g.newest, g.segment, g.pruned, c.source_id AS changed_id, s.id AS source_id, s.collection, p.id AS passage_id,
    p.words, v.model, v.vector
FROM (SELECT coalesce((SELECT max(sequence) FROM changes), 0) newest,
        coalesce((SELECT max(id) FROM segments), 0) segment,
        coalesce((SELECT max(sequence) FROM segments), 0) pruned) g
    LEFT JOIN (SELECT DISTINCT source_id FROM changes WHERE sequence > $1 AND sequence <= $2) c ON 1 = 1
    LEFT JOIN sources s ON s.id = c.source_id AND s.is_live = 1
    LEFT JOIN passages p ON p.source_id = s.id
    LEFT JOIN vectors v ON v.passage_id = p.id
"""
_ROWS = """
SELECT s.id AS source_id, s.collection, p.id AS passage_id, p.words, v.model, v.vector
FROM json_each($1) e CROSS JOIN sources s ON s.id = e.value CROSS JOIN passages p ON p.source_id = s.id
    LEFT JOIN vectors v ON v.passage_id = p.id
WHERE s.is_live = 1
"""
_VECTORS = """
SELECT v.passage_id, v.vector FROM json_each($2) e CROSS JOIN vectors v ON v.passage_id = e.value AND v.model = $1
"""
_PENDING = """
SELECT count(*), (SELECT count(*) FROM passages p JOIN sources s ON s.id = p.source_id
    WHERE s.is_live = 1 AND s.id IN (SELECT source_id FROM changes))
FROM changes
"""
_FILED = """
SELECT (SELECT coalesce(sum(passages), 0) FROM segments) AS stored, count(*) AS live
FROM passages p JOIN sources s ON s.id = p.source_id
WHERE s.is_live = 1 AND s.id NOT IN (SELECT source_id FROM changes)
"""


@dataclass(frozen=True)
class IndexState:
    """The newest change, and the versions of the index files."""

    newest: int  # sequence of the newest change
    files: tuple[int, int]  # id of the newest file; sequence of the last change that the files contain


@dataclass(frozen=True)
class SourceChanges:
    """Changed sources, and their present rows."""

    state: IndexState
    source_ids: NDArray[np.int64]
    rows: SegmentRows


@dataclass(frozen=True)
class IndexFile:
    id: int
    name: str
    sequence: int
    masked: NDArray[np.int64]  # ids of the sources that have changed since the file was written


async def read_state(db: Database) -> IndexState:
    """Read the state in one statement that is as cheap as a read can be."""
    row = await db.fetch_one(_STATE)
    assert row is not None
    return IndexState(row[0], (row[1], row[2]))


async def read_changes(db: Database, after: int, until: int) -> SourceChanges:
    """Read the sources that changed in a part of the sequence, as they are now."""
    found = await db.scan(_CHANGES, after, until)
    rows = SegmentRows()
    rows.add([row for row in found if row["passage_id"] is not None])
    ids = np.unique(np.array([row["changed_id"] for row in found if row["changed_id"] is not None], np.int64))
    newest, segment, pruned = (found[0][column] for column in range(3))
    return SourceChanges(IndexState(newest, (segment, pruned)), ids, rows)


async def read_sources(db: Database, source_ids: Sequence[int], rows: SegmentRows) -> None:
    """Add the present rows of sources to `rows`."""
    rows.add(await db.scan(_ROWS, orjson.dumps(source_ids).decode()))


async def count_pending(db: Database) -> tuple[int, int]:
    """Count the changes that no file contains, and the passages of the changed sources."""
    (row,) = await db.scan(_PENDING)
    return row[0], row[1]


async def count_filed(db: Database) -> tuple[int, int]:
    """Count the passages in the files, and those among them that are still live."""
    (row,) = await db.scan(_FILED)
    return row["stored"], row["live"]


async def changed_ids(db: Database, until: int) -> NDArray[np.int64]:
    """Return the sources that changed since the files were written."""
    sql = "SELECT coalesce(group_concat(DISTINCT source_id), '') FROM changes WHERE sequence <= $1"
    return _numbers(await db.scan(sql, until))


async def source_ids(db: Database) -> NDArray[np.int64]:
    """Return all live sources, ordered by collection."""
    order = "SELECT id FROM sources WHERE is_live = 1 ORDER BY collection, id"
    return _numbers(await db.scan(f"SELECT coalesce(group_concat(id), '') FROM ({order})"))  # noqa: S608 - no values


async def matching_ids(db: Database, scope: SearchScope) -> NDArray[np.int64]:
    """Return the sources that match the filter of a scope. If the metadata index decides the filter alone, the sources
    are not read, and the result may include sources of other collections."""
    if (select := metadata_index.as_select(scope.where)) is not None:
        return _numbers(await db.scan(f"SELECT coalesce(group_concat(source_id), '') FROM ({select})", *scope.args))  # noqa: S608
    place = len(scope.args) + 1
    sql = (
        f"SELECT coalesce(group_concat(s.id), '') FROM sources s"  # noqa: S608 - the filter has parameters of its own
        f" WHERE s.collection IN (SELECT value FROM json_each(${place})) AND ({scope.where})"
    )
    return _numbers(await db.scan(sql, *scope.args, orjson.dumps(scope.collections).decode()))


async def read_vectors(db: Database, model: str, passages: Sequence[int]) -> dict[int, bytes]:
    """Return the stored vectors of passages."""
    rows = await db.fetch(_VECTORS, model, orjson.dumps(passages).decode())
    return {row["passage_id"]: row["vector"] for row in rows}


async def passage_ids(db: Database, collection: str) -> dict[str, NDArray[np.int64]]:
    """Return the live passages of a collection in ascending order: all, those with words, and those with vectors of
    each model."""
    sql = (
        "SELECT {part} AS part, group_concat(p.id) AS ids FROM passages p JOIN sources s ON s.id = p.source_id {more}"
        " WHERE s.is_live = 1 AND s.collection = $1 GROUP BY 1"
    )
    parts = (
        sql.format(part="'passages'", more=""),
        sql.format(part="'words'", more="AND p.words IS NOT NULL"),
        sql.format(part="'vectors of ' || v.model", more="JOIN vectors v ON v.passage_id = p.id"),
    )
    rows = await db.scan(" UNION ALL ".join(parts), collection)
    return {row["part"]: np.sort(np.fromstring(row["ids"], np.int64, sep=",")) for row in rows}


async def files(db: Database) -> list[IndexFile]:
    """Return the files that the index consists of."""
    rows = await db.scan("SELECT id, file, sequence, masked FROM segments ORDER BY id")
    return [IndexFile(row["id"], row["file"], row["sequence"], np.frombuffer(row["masked"], np.int64)) for row in rows]


async def replace_files(
    tx: Transaction, until: int, removed: Iterable[int], masks: Iterable[tuple[int, bytes]], new: tuple[str, int] | None
) -> None:
    """Remove files, replace the masks of others, add a new file, given by name and number of passages, and delete the
    changes that the files now contain."""
    await tx.execute_many("DELETE FROM segments WHERE id = $1", [(id,) for id in removed])
    await tx.execute_many("UPDATE segments SET masked = $2 WHERE id = $1", list(masks))
    await tx.execute("UPDATE segments SET sequence = $1", until)
    if new is not None:
        await tx.execute(
            "INSERT INTO segments (file, passages, sequence, masked) VALUES ($1, $2, $3, $4)", *new, until, b""
        )
    await tx.execute("DELETE FROM changes WHERE sequence <= $1", until)


def _numbers(rows: Sequence[Row]) -> NDArray[np.int64]:
    """Parse a comma-separated list of ids. One such value is read many times faster than one row for each id."""
    text = rows[0][0]
    return np.fromstring(text, np.int64, sep=",") if text else np.zeros(0, np.int64)
