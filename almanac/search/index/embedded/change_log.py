"""What the database has for the embedded index: which sources changed, their rows, and which files there are."""

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
# One statement, so that changes, files and rows are all of one moment. `g` has a row even where nothing changed.
_CHANGED = """
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
_WAITING = """
SELECT count(*), (SELECT count(*) FROM passages p JOIN sources s ON s.id = p.source_id
    WHERE s.is_live = 1 AND s.id IN (SELECT source_id FROM changes))
FROM changes
"""
_MASKED = """
SELECT (SELECT coalesce(sum(passages), 0) FROM segments) AS held, count(*) AS standing
FROM passages p JOIN sources s ON s.id = p.source_id
WHERE s.is_live = 1 AND s.id NOT IN (SELECT source_id FROM changes)
"""


@dataclass(frozen=True)
class State:
    """How far the changes go, and which files there are: the newest, and the change up to which all of them go."""

    newest: int
    files: tuple[int, int]


@dataclass(frozen=True)
class Changed:
    """Sources that changed, and what they have now."""

    state: State
    source_ids: NDArray[np.int64]
    batch: SegmentRows


@dataclass(frozen=True)
class File:
    """A file of the index."""

    id: int
    name: str
    sequence: int
    masked: NDArray[np.int64]  # sources that are no longer as it has them


async def state(db: Database) -> State:
    """How things stand; costs as little as a read can."""
    row = await db.fetch_one(_STATE)
    assert row is not None
    return State(row[0], (row[1], row[2]))


async def changed(db: Database, after: int, until: int) -> Changed:
    """What changed in a part of the sequence, as it is now."""
    rows = await db.scan(_CHANGED, after, until)
    batch = SegmentRows()
    batch.add([row for row in rows if row["passage_id"] is not None])
    ids = np.unique(np.array([row["changed_id"] for row in rows if row["changed_id"] is not None], np.int64))
    return Changed(State(rows[0][0], (rows[0][1], rows[0][2])), ids, batch)


async def read(db: Database, source_ids: Sequence[int], batch: SegmentRows) -> None:
    """Add what sources have now to a batch."""
    rows = await db.scan(_ROWS, orjson.dumps(source_ids).decode())
    batch.add(rows)


async def waiting(db: Database) -> tuple[int, int]:
    """How many changes no file has, and how many passages the sources that changed have now."""
    (row,) = await db.scan(_WAITING)
    return row[0], row[1]


async def masked(db: Database) -> tuple[int, int]:
    """How many passages the files have, and how many of them still hold."""
    (row,) = await db.scan(_MASKED)
    return row["held"], row["standing"]


async def changed_ids(db: Database, until: int) -> NDArray[np.int64]:
    """The sources that changed since the files were written."""
    sql = "SELECT coalesce(group_concat(DISTINCT source_id), '') FROM changes WHERE sequence <= $1"
    return _numbers(await db.scan(sql, until))


async def source_ids(db: Database) -> NDArray[np.int64]:
    """All sources that are live, those of a collection together."""
    order = "SELECT id FROM sources WHERE is_live = 1 ORDER BY collection, id"
    return _numbers(await db.scan(f"SELECT coalesce(group_concat(id), '') FROM ({order})"))  # noqa: S608 - no values


async def kept(db: Database, scope: SearchScope) -> NDArray[np.int64]:
    """The sources that a scope's condition leaves. Where facts tell, sources need not be looked at: which of them are
    in its collections, whoever asks knows."""
    if (select := metadata_index.as_select(scope.where)) is not None:
        return _numbers(await db.scan(f"SELECT coalesce(group_concat(source_id), '') FROM ({select})", *scope.args))  # noqa: S608
    place = len(scope.args) + 1
    sql = (
        f"SELECT coalesce(group_concat(s.id), '') FROM sources s"  # noqa: S608 - the condition has its own parameters
        f" WHERE s.collection IN (SELECT value FROM json_each(${place})) AND ({scope.where})"
    )
    return _numbers(await db.scan(sql, *scope.args, orjson.dumps(scope.collections).decode()))


async def vectors(db: Database, model: str, passages: Sequence[int]) -> dict[int, bytes]:
    """The vectors of some passages, as they are stored."""
    rows = await db.fetch(_VECTORS, model, orjson.dumps(passages).decode())
    return {row["passage_id"]: row["vector"] for row in rows}


async def passage_ids(db: Database, collection: str) -> dict[str, NDArray[np.int64]]:
    """The live passages of a collection, ascending: all, those with words, and those with vectors of each model."""
    sql = (
        "SELECT {what} AS what, group_concat(p.id) AS ids FROM passages p JOIN sources s ON s.id = p.source_id {more}"
        " WHERE s.is_live = 1 AND s.collection = $1 GROUP BY 1"
    )
    parts = (
        sql.format(what="'passages'", more=""),
        sql.format(what="'words'", more="AND p.words IS NOT NULL"),
        sql.format(what="'vectors of ' || v.model", more="JOIN vectors v ON v.passage_id = p.id"),
    )
    rows = await db.scan(" UNION ALL ".join(parts), collection)
    return {row["what"]: np.sort(np.fromstring(row["ids"], np.int64, sep=",")) for row in rows}


async def collections(db: Database) -> list[str]:
    """Every collection there is."""
    return [row["name"] for row in await db.scan("SELECT name FROM collections ORDER BY name")]


async def files(db: Database) -> list[File]:
    """The files there should be."""
    rows = await db.scan("SELECT id, file, sequence, masked FROM segments ORDER BY id")
    return [File(row["id"], row["file"], row["sequence"], np.frombuffer(row["masked"], np.int64)) for row in rows]


async def swap(
    tx: Transaction, until: int, gone: Iterable[int], masks: Iterable[tuple[int, bytes]], new: tuple[str, int] | None
) -> None:
    """Have files go, let others mask more, and add a new one with so many passages: all as of one change."""
    await tx.execute_many("DELETE FROM segments WHERE id = $1", [(id,) for id in gone])
    await tx.execute_many("UPDATE segments SET masked = $2 WHERE id = $1", list(masks))
    await tx.execute("UPDATE segments SET sequence = $1", until)
    if new is not None:
        await tx.execute(
            "INSERT INTO segments (file, passages, sequence, masked) VALUES ($1, $2, $3, $4)", *new, until, b""
        )
    await tx.execute("DELETE FROM changes WHERE sequence <= $1", until)


def _numbers(rows: Sequence[Row]) -> NDArray[np.int64]:
    """The numbers that one value lists. As one value they come many times faster than as a row each."""
    text = rows[0][0]
    return np.fromstring(text, np.int64, sep=",") if text else np.zeros(0, np.int64)
