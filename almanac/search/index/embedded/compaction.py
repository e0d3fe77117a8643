"""Compaction: writes changed sources into a new index file, and merges files so that they stay few.

A new file is complete before the database lists it, and an old file is deleted after the database has removed it from
the list. After an interruption at any point, every listed file therefore exists; the next run deletes the others.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from almanac.core.database import Database, Transaction
from almanac.search.index import tables
from almanac.search.index.embedded import change_log, segments
from almanac.search.index.embedded.change_log import IndexFile
from almanac.search.index.embedded.embedded_index import SOURCES_AT_ONCE, EmbeddedIndex, missing_ids, open_files
from almanac.search.index.embedded.segment_builder import SegmentRows, build_segment
from almanac.search.index.embedded.segment_merge import choose, merge
from almanac.search.index.embedded.segment_view import SegmentView
from almanac.search.index.embedded.segments import NOT_ANALYSED

MIN_CHANGES = 5_000  # changes, or passages of changed sources, that justify a new file
MAX_MASKED_SHARE = 0.2  # share of the passages in files that may be masked before the files are written again
PASSAGES_AT_ONCE = 5_000  # held in memory while a file is written
_COMPARISON_ATTEMPTS = 3


@dataclass(frozen=True)
class Difference:
    """Passages of a collection that are different in the index and in the database."""

    collection: str
    part: str  # passages, words or vectors of a model
    missing: int  # not in the index, although they should be
    surplus: int  # in the index, although they should not be


async def compact(
    db: Database, folder: Path, *, least: int = MIN_CHANGES, masked: float = MAX_MASKED_SHARE
) -> int | None:
    """Write the changes to a file and return its number of passages, or None if the changes are too few. A lock ensures
    that one process does so at a time."""
    async with db.lock("index"):
        files = await change_log.files(db)
        _delete_unlisted(folder, files)
        if not await is_due(db, folder, least=least, masked=masked):
            return None
        until = await _newest_change(db, files)
        changed = await change_log.changed_ids(db, until)
        opened, unreadable = await asyncio.to_thread(open_files, folder, files, {})
        views = {
            file.id: SegmentView.of(opened[file.name]).mask(np.union1d(file.masked, changed))
            for file in files
            if file.name in opened
        }
        if unreadable:
            changed = await missing_ids(db, list(views.values()))
        return await _replace(db, folder, files, views, changed, until, masked)


async def rebuild(db: Database, folder: Path) -> int:
    """Write one file with all passages of the database, and return their number. Searches use the old files until the
    new one is complete."""
    async with db.lock("index"):
        files = await change_log.files(db)
        _delete_unlisted(folder, files)
        until = await _newest_change(db, files)
        return await _replace(db, folder, files, {}, await change_log.source_ids(db), until, 0)


async def compare(db: Database, folder: Path) -> list[Difference]:
    """Compare the index with the database. Without a defect there is no difference, even during concurrent writes."""
    index = EmbeddedIndex(db, folder)
    found: list[Difference] = []
    try:
        indexed = {name for view in await index.views() for name in view.segment.collections}
        for collection in sorted(indexed | set(await tables.collection_names(db))):
            found += await _compare(db, index, collection)
    finally:
        await index.close()
    return found


async def missing_files(db: Database, folder: Path) -> list[str]:
    """Return the listed files that do not exist. A search deletes a file that it finds damaged."""
    missing = {file.name for file in await change_log.files(db) if not (folder / file.name).is_file()}
    # A file that was replaced after the first read is no longer listed.
    return [file.name for file in await change_log.files(db) if file.name in missing]


async def is_due(db: Database, folder: Path, *, least: int = MIN_CHANGES, masked: float = MAX_MASKED_SHARE) -> bool:
    """Return True if there are enough changes for a new file, or if a file is missing."""
    if await missing_files(db, folder):
        return True
    if max(await change_log.count_pending(db)) >= least:
        return True
    stored, live = await change_log.count_filed(db)
    return stored - live > masked * stored and stored - live >= least


async def _newest_change(db: Database, files: Sequence[IndexFile]) -> int:
    return (await change_log.read_state(db)).newest or max((file.sequence for file in files), default=0)


async def _replace(
    db: Database,
    folder: Path,
    files: Sequence[IndexFile],
    views: dict[int, SegmentView],
    source_ids: NDArray[np.int64],
    until: int,
    masked: float,
) -> int:
    """Write the present rows of sources, and the live part of the files that are due, into one new file."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    fresh = await _read(db, folder, source_ids)
    merged = _choose(views, fresh, masked)
    kept = {id: view for id, view in views.items() if id not in merged and view.size}
    parts = [*(views[id] for id in merged if views[id].size), *fresh]
    name, passages = None, sum(view.size for view in parts)
    if passages or not kept:  # a file must record the last deleted change, even if the file is empty
        name = f"{until}-{secrets.token_hex(6)}.segment"
        whole = parts or [SegmentView.of(build_segment(SegmentRows()))]
        await asyncio.to_thread(segments.write, folder / name, lambda allocate: merge(whole, allocate))

    async def body(tx: Transaction) -> None:
        removed = [file.id for file in files if file.id not in kept]
        masks = [(id, view.masked_source_ids().tobytes()) for id, view in kept.items()]
        await change_log.replace_files(tx, until, removed, masks, (name, passages) if name else None)

    await db.write(body)
    _delete_unlisted(folder, await change_log.files(db))
    return passages


async def _read(db: Database, folder: Path, source_ids: NDArray[np.int64]) -> list[SegmentView]:
    """Read the present rows of sources into memory or, if they are many, into temporary files."""
    building: list[asyncio.Task[SegmentView]] = []
    rows = SegmentRows()
    for start in range(0, len(source_ids), SOURCES_AT_ONCE):
        await change_log.read_sources(db, source_ids[start : start + SOURCES_AT_ONCE].tolist(), rows)
        is_last = start + SOURCES_AT_ONCE >= len(source_ids)
        if len(rows.passages) >= PASSAGES_AT_ONCE or (is_last and rows.passages):
            if building:
                await building[-1]  # one segment is built while the rows of the next are read
            work = asyncio.to_thread(_build, rows, None if is_last and not building else folder)
            building.append(asyncio.create_task(work))
            rows = SegmentRows()
    return [await each for each in building]


def _build(rows: SegmentRows, folder: Path | None) -> SegmentView:
    segment = build_segment(rows)
    if folder is not None:
        path = folder / f"{secrets.token_hex(6)}.segment"
        segments.write(path, segments.copy(segment))
        segment = segments.read(path)
    return SegmentView.of(segment)


def _choose(views: dict[int, SegmentView], fresh: Sequence[SegmentView], masked: float) -> list[int]:
    """Choose the files to write again: those that are due, and those that the new file should absorb."""
    due = [id for id, view in views.items() if view.masked_passages > masked * len(view.segment.passages)]
    rest = [id for id in views if id not in due]
    total = sum(view.size for view in fresh) + sum(views[id].size for id in due)
    if not total:
        return due
    return due + [rest[number] for number in choose([*(views[id].size for id in rest), total])[:-1]]


def _delete_unlisted(folder: Path, files: Sequence[IndexFile]) -> None:
    """Delete the files that the database does not list. A process that has mapped one can still read it."""
    listed = {file.name for file in files}
    for path in [*folder.glob("*.segment"), *folder.glob("*.unfinished")]:
        if path.name not in listed:
            path.unlink(missing_ok=True)


async def _compare(db: Database, index: EmbeddedIndex, collection: str) -> list[Difference]:
    found: list[Difference] = []
    for _ in range(_COMPARISON_ATTEMPTS):  # a write between the two reads looks like a difference
        stored, indexed = await change_log.passage_ids(db, collection), _indexed_ids(await index.views(), collection)
        none = np.zeros(0, np.int64)
        pairs = {part: (stored.get(part, none), indexed.get(part, none)) for part in sorted({*stored, *indexed})}
        found = [
            Difference(collection, part, len(np.setdiff1d(one, other)), len(np.setdiff1d(other, one)))
            for part, (one, other) in pairs.items()
            if not np.array_equal(one, other)
        ]
        if not found:
            break
    return found


def _indexed_ids(views: Sequence[SegmentView], collection: str) -> dict[str, NDArray[np.int64]]:
    """Return from the index the ids that `change_log.passage_ids` returns from the database."""
    found: dict[str, list[NDArray[np.int64]]] = {}
    for view in views:
        segment = view.segment
        if (number := segment.collection_numbers.get(collection)) is None:
            continue
        start, stop = segment.bounds[number : number + 2].tolist()
        is_live = np.zeros(len(segment.passages), np.bool_)
        is_live[start:stop] = view.live[segment.owners[start:stop]]
        found.setdefault("passages", []).append(segment.passages[is_live])
        found.setdefault("words", []).append(segment.passages[is_live & (segment.lengths != NOT_ANALYSED)])
        for (model, _), matrix in segment.matrices.items():
            rows = matrix.rows[is_live[matrix.rows]]
            found.setdefault(f"vectors of {model}", []).append(segment.passages[rows])
    return {part: ids for part, parts in found.items() if len(ids := np.sort(np.concatenate(parts)))}
