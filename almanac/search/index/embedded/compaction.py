"""Compaction: what changed goes from memory into files, and files are merged so that they stay few.

A new file is written whole before the database names it, and an old one is removed after the database has forgotten it:
whenever this is cut short, what the database names is there. Files that it does not name are removed the next time.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from almanac.core.database import Database, Transaction
from almanac.search.index.embedded import change_log, segments
from almanac.search.index.embedded.change_log import File
from almanac.search.index.embedded.embedded_index import SOURCES_AT_ONCE, EmbeddedIndex, read_all
from almanac.search.index.embedded.segment_builder import SegmentRows, build_segment
from almanac.search.index.embedded.segment_merge import choose, merge
from almanac.search.index.embedded.segment_view import SegmentView
from almanac.search.index.embedded.segments import NOT_ANALYSED

MIN_CHANGES = 5_000  # changes, or passages of what changed, that are worth a new file
MAX_MASKED_SHARE = 0.2  # share of the passages in files that no longer hold, worth to be rid of
PASSAGES_AT_ONCE = 5_000  # held in memory while a file is written
_ATTEMPTS = 3


@dataclass(frozen=True)
class Compaction:
    """What was done."""

    passages: int  # in the file that was written; 0 for none
    replaced: int  # files whose place it took


@dataclass(frozen=True)
class Difference:
    """Passages of a collection that index and store do not agree on."""

    collection: str
    what: str  # passages, words or vectors of a model
    lacking: int  # that the index should have
    surplus: int  # that it should not have


async def compact(
    db: Database, folder: Path, *, least: int = MIN_CHANGES, masked: float = MAX_MASKED_SHARE
) -> Compaction | None:
    """Write files for what changed, if it is worth it; None if it is not. One process does so at a time."""
    async with db.lock("index"):
        files = await change_log.files(db)
        _sweep(folder, files)
        if not await is_due(db, folder, least=least, masked=masked):
            return None
        until = (await change_log.state(db)).newest or max((file.sequence for file in files), default=0)
        changed = await change_log.changed_ids(db, until)
        opened, lost = await asyncio.to_thread(read_all, folder, files, {})
        views = {
            file.id: SegmentView.of(opened[file.name]).mask(np.union1d(file.masked, changed))
            for file in files
            if file.name in opened
        }
        if lost:
            held = [view.segment.ids[view.live] for view in views.values()]
            everything = await change_log.source_ids(db)
            changed = np.setdiff1d(everything, np.concatenate([*held, np.zeros(0, np.int64)]))
        return await _replace(db, folder, files, views, changed, until, masked)


async def rebuild(db: Database, folder: Path) -> Compaction:
    """Write all files anew from the rows. Until that is done, the old ones are searched."""
    async with db.lock("index"):
        files = await change_log.files(db)
        _sweep(folder, files)
        until = (await change_log.state(db)).newest or max((file.sequence for file in files), default=0)
        return await _replace(db, folder, files, {}, await change_log.source_ids(db), until, 0)


async def compare(db: Database, folder: Path) -> list[Difference]:
    """Where the index and the store differ. There should be nothing, whatever is being written meanwhile."""
    index = EmbeddedIndex(db, folder)
    found: list[Difference] = []
    try:
        known = {name for view in await index.views() for name in view.segment.collections}
        for collection in sorted(known | set(await change_log.collections(db))):
            found += await _compare(db, index, collection)
    finally:
        await index.close()
    return found


async def lost(db: Database, folder: Path) -> list[str]:
    """The files that are not there, or no more: one that was found damaged has been removed."""
    missing = {file.name for file in await change_log.files(db) if not (folder / file.name).is_file()}
    # What was replaced since the rows were read has gone with its row.
    return [file.name for file in await change_log.files(db) if file.name in missing]


async def is_due(db: Database, folder: Path, *, least: int = MIN_CHANGES, masked: float = MAX_MASKED_SHARE) -> bool:
    """Whether there is enough for new files, or one of them is gone."""
    if await lost(db, folder):
        return True
    changes, passages = await change_log.waiting(db)
    if max(changes, passages) >= least:
        return True
    held, standing = await change_log.masked(db)
    return held - standing > masked * held and held - standing >= least


async def _replace(
    db: Database,
    folder: Path,
    files: Sequence[File],
    views: dict[int, SegmentView],
    source_ids: NDArray[np.int64],
    until: int,
    masked: float,
) -> Compaction:
    """Write what sources have now and as many of the files as is due into one new file."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    fresh = await _read(db, folder, source_ids)
    merged = _choose(views, fresh, masked)
    kept = {id: view for id, view in views.items() if id not in merged and view.size}
    sources = [*(views[id] for id in merged if views[id].size), *fresh]
    name, passages = None, sum(view.size for view in sources)
    if passages or not kept:  # something must tell how far the changes were pruned, if only an empty file
        name = f"{until}-{secrets.token_hex(6)}.segment"
        whole = sources or [SegmentView.of(build_segment(SegmentRows()))]
        await asyncio.to_thread(segments.write, folder / name, lambda allocate: merge(whole, allocate))

    async def body(tx: Transaction) -> None:
        gone = [file.id for file in files if file.id not in kept]
        masks = [(id, view.masked_source_ids().tobytes()) for id, view in kept.items()]
        await change_log.swap(tx, until, gone, masks, (name, passages) if name else None)

    await db.write(body)
    _sweep(folder, await change_log.files(db))
    return Compaction(passages, len(files) - len(kept))


async def _read(db: Database, folder: Path, source_ids: NDArray[np.int64]) -> list[SegmentView]:
    """What sources have now: in memory, or if it is much, in files that are not to stay."""
    building: list[asyncio.Task[SegmentView]] = []
    batch = SegmentRows()
    for start in range(0, len(source_ids), SOURCES_AT_ONCE):
        await change_log.read(db, source_ids[start : start + SOURCES_AT_ONCE].tolist(), batch)
        is_last = start + SOURCES_AT_ONCE >= len(source_ids)
        if len(batch.passages) >= PASSAGES_AT_ONCE or (is_last and batch.passages):
            if building:
                await building[-1]  # one is built while the next is read
            work = asyncio.to_thread(_build, batch, None if is_last and not building else folder)
            building.append(asyncio.create_task(work))
            batch = SegmentRows()
    return [await each for each in building]


def _build(batch: SegmentRows, folder: Path | None) -> SegmentView:
    segment = build_segment(batch)
    if folder is not None:
        path = folder / f"{secrets.token_hex(6)}.segment"
        segments.write(path, segments.copy(segment))
        segment = segments.read(path)
    return SegmentView.of(segment)


def _choose(views: dict[int, SegmentView], fresh: Sequence[SegmentView], masked: float) -> list[int]:
    """The files to write anew: those that are due, and those that the new file should take in."""
    due = [id for id, view in views.items() if view.dead > masked * len(view.segment.passages)]
    rest = [id for id in views if id not in due]
    total = sum(view.size for view in fresh) + sum(views[id].size for id in due)
    if not total:
        return due
    return due + [rest[place] for place in choose([*(views[id].size for id in rest), total])[:-1]]


def _sweep(folder: Path, files: Sequence[File]) -> None:
    """Remove the files that the database does not name. Who has one open keeps it."""
    named = {file.name for file in files}
    for path in [*folder.glob("*.segment"), *folder.glob("*.unfinished")]:
        if path.name not in named:
            path.unlink(missing_ok=True)


async def _compare(db: Database, index: EmbeddedIndex, collection: str) -> list[Difference]:
    found: list[Difference] = []
    for _ in range(_ATTEMPTS):  # what is written between the two looks is no difference
        stored, held = await change_log.passage_ids(db, collection), _held(await index.views(), collection)
        none = np.zeros(0, np.int64)
        pairs = {what: (stored.get(what, none), held.get(what, none)) for what in sorted(stored.keys() | held.keys())}
        found = [
            Difference(collection, what, len(np.setdiff1d(one, other)), len(np.setdiff1d(other, one)))
            for what, (one, other) in pairs.items()
            if not np.array_equal(one, other)
        ]
        if not found:
            break
    return found


def _held(views: Sequence[SegmentView], collection: str) -> dict[str, NDArray[np.int64]]:
    """As `index_changes.passage_ids`, by the index."""
    found: dict[str, list[NDArray[np.int64]]] = {}
    for view in views:
        segment = view.segment
        if (place := segment.named.get(collection)) is None:
            continue
        start, stop = segment.bounds[place : place + 2].tolist()
        holds = np.zeros(len(segment.passages), np.bool_)
        holds[start:stop] = view.live[segment.owners[start:stop]]
        found.setdefault("passages", []).append(segment.passages[holds])
        found.setdefault("words", []).append(segment.passages[holds & (segment.lengths != NOT_ANALYSED)])
        for (model, _), matrix in segment.matrices.items():
            rows = matrix.rows[holds[matrix.rows]]
            found.setdefault(f"vectors of {model}", []).append(segment.passages[rows])
    return {what: ids for what, parts in found.items() if len(ids := np.sort(np.concatenate(parts)))}
