"""The index beside SQLite: segments in files, and segments in memory for sources that changed later.

Each search first catches up with the database. Changed sources are masked in every segment that contains them, and
their present rows go into a small segment in memory. Results therefore match the database at the time of the search,
and the files only save time. Any number of processes can read them; `compaction.py` replaces them.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from almanac.core.database import Database
from almanac.core.fair_slots import ORG_ID, compute
from almanac.search.index.caching import SharedTask
from almanac.search.index.embedded import change_log, keyword_scan, segments, vector_scan
from almanac.search.index.embedded.change_log import IndexFile, IndexState, SourceChanges
from almanac.search.index.embedded.segment_builder import SegmentRows, build_segment
from almanac.search.index.embedded.segment_merge import choose, merge
from almanac.search.index.embedded.segment_view import SegmentSlice, SegmentView
from almanac.search.index.embedded.segments import Segment, SegmentUnreadable
from almanac.search.index.protocol import Coverage, Hits, KeywordHits, PassageVectors, SearchScope

P = ParamSpec("P")
T = TypeVar("T")

MAX_ROWS_WITHOUT_THREAD = 20_000  # searched within about a millisecond, so that starting a thread is not worth it
USUAL_TERMS = 8  # of a query; the time grows with their number
CHANGES_AT_ONCE = 1_000
SOURCES_AT_ONCE = 500
PASSAGES_AT_ONCE = 20_000
_MAX_PASSAGES_WITHOUT_THREAD = 100  # built into a segment within about a millisecond

_NO_FILES = (-1, -1)

_log = structlog.stdlib.get_logger("almanac.search")


class EmbeddedIndex:
    """The index of one SQLite database, with its files in one folder."""

    holds_interpreter_lock = True

    def __init__(self, db: Database, folder: Path) -> None:
        self._db = db
        self._folder = folder
        self._version: bytes | None = None
        self._files = _NO_FILES
        self._sequence = 0
        self._opened: dict[str, Segment] = {}
        self._views: tuple[Sequence[SegmentView], Sequence[SegmentView]] = (), ()  # of files, and of segments in memory
        self._catching_up = asyncio.Lock()
        self._next_catch_up: asyncio.Task[None] | None = None  # has not started yet
        self._reading_ahead: asyncio.Task[None] | None = None
        self._shared = SharedTask()
        self._matching: tuple[tuple[bytes | None, SearchScope], asyncio.Task[NDArray[np.int64]]] | None = None

    async def keyword_hits(self, scope: SearchScope, terms: Sequence[int], limit: int) -> KeywordHits:
        slices = await self._slices(scope)
        rows = _row_count(slices) * max(len(terms), USUAL_TERMS) // USUAL_TERMS
        return await _run(rows, keyword_scan.search, slices, terms, limit)

    async def vector_hits(
        self, scope: SearchScope, model: str, vector: NDArray[np.float32], limit: int, ef_search: int | None = None
    ) -> Hits:
        slices = await self._slices(scope)
        return await _run(_row_count(slices), vector_scan.search, slices, (model, len(vector)), vector, limit)

    async def keyword_scores(self, hits: Hits, terms: Sequence[int], statistics: KeywordHits) -> NDArray[np.float32]:
        return keyword_scan.score(await self.views(), hits, terms, statistics)

    async def passage_vectors(self, model: str, size: int, ids: Sequence[int]) -> PassageVectors:
        stored = await change_log.read_vectors(self._db, model, ids)
        found = {id: vector for id, vector in stored.items() if len(vector) == 2 * size}
        rows = np.frombuffer(b"".join(found.values()), np.float16).reshape(-1, size)
        return PassageVectors.of(np.fromiter(found, np.int64, len(found)), rows)

    async def coverage(self, collections: Sequence[str], model: str) -> Coverage:
        slices = await self._slices(SearchScope(tuple(collections)))
        passages = sum(_row_count([each]) - len(each.masked_rows) for each in slices)
        return Coverage(passages, sum(vector_scan.count(each, model) for each in slices))

    async def views(self) -> tuple[SegmentView, ...]:
        """Return all segments with their present state."""
        if self._version is None or self._db.commit_version() != self._version:
            if self._next_catch_up is None:
                self._next_catch_up = asyncio.create_task(self._catch_up_in_turn())
                self._next_catch_up.add_done_callback(_retrieve_exception)
            await asyncio.shield(self._next_catch_up)
        return (*self._views[0], *self._views[1])

    async def close(self) -> None:
        if self._matching is not None:
            self._matching[1].cancel()
        if self._reading_ahead is not None:
            self._reading_ahead.cancel()
        self._version, self._files = None, _NO_FILES
        self._opened, self._views = {}, ((), ())

    async def _slices(self, scope: SearchScope) -> list[SegmentSlice]:
        views = await self.views()
        source_ids = await self._matching_ids(scope) if scope.where else None
        collections = frozenset(scope.collections)
        return [found for view in views if (found := view.slice(collections, source_ids)) is not None]

    async def _matching_ids(self, scope: SearchScope) -> NDArray[np.int64]:
        """Return the sources that match the filter of a scope. Both retrievers need them at the same time, so they
        share one query."""
        key = (self._version, scope)
        known = self._matching
        if known is None or known[0] != key or self._version is None or _has_failed(known[1]):
            task = asyncio.create_task(change_log.matching_ids(self._db, scope))
            task.add_done_callback(_retrieve_exception)
            known = self._matching = key, task
        return await self._shared.wait(known[1])

    async def _catch_up_in_turn(self) -> None:
        """Catch up after the present run, for all searches that begin before this one starts: under many commits, a
        search waits for two runs and not for those of all searches before it."""
        ORG_ID.set("")  # the work is for all organisations, and takes the turn of none
        async with self._catching_up:
            self._next_catch_up = None
            version = self._db.commit_version()  # before the changes are read, so that none is missed
            if version is None or version != self._version:
                await self._catch_up()
                has_read_ahead = self._reading_ahead is not None and self._reading_ahead.done()
                self._version = None if has_read_ahead else version

    async def _catch_up(self) -> None:
        state = await change_log.read_state(self._db)
        if state.files == self._files and state.newest <= self._sequence:
            return
        while True:
            if state.files != self._files:
                await self._follow(state)
            until = self._sequence + CHANGES_AT_ONCE
            changes = await change_log.read_changes(self._db, self._sequence, until)
            state = changes.state
            if state.files[1] <= self._sequence:  # otherwise a compaction has just deleted some of these changes
                is_short = len(changes.rows.passages) <= _MAX_PASSAGES_WITHOUT_THREAD
                rows = 0 if is_short else MAX_ROWS_WITHOUT_THREAD + 1
                self._views = await _run(rows, _apply, *self._views, changes)
                self._sequence = max(self._sequence, min(until, state.newest))
                if state.newest <= until:
                    return

    async def _follow(self, state: IndexState) -> None:
        """Switch to new files, or start to read them ahead while the open files and the changes are still complete."""
        is_needed = self._files == _NO_FILES or self._sequence < state.files[1]
        if is_needed or (self._reading_ahead is not None and self._reading_ahead.done()):
            self._reading_ahead = None
            await self._open()
        elif self._reading_ahead is None:
            self._reading_ahead = asyncio.create_task(self._read_ahead())
            self._reading_ahead.add_done_callback(_retrieve_exception)

    async def _read_ahead(self) -> None:
        """Read new files before they are needed, so that no search waits for them."""
        files = await change_log.files(self._db)
        opened, _ = await asyncio.to_thread(open_files, self._folder, files, self._opened)
        self._opened = self._opened | opened
        self._version = None  # the next search switches to the files

    async def _open(self) -> None:
        """Start again from the files that the database lists."""
        files, opened, unreadable = await self._open_listed()
        views = await asyncio.to_thread(_view_files, files, opened)
        in_memory = await self._read_missing(views) if unreadable else []
        self._opened, self._views = opened, (views, in_memory)
        self._sequence = min((file.sequence for file in files), default=0)
        self._files = max((file.id for file in files), default=0), max((file.sequence for file in files), default=0)

    async def _open_listed(self) -> tuple[list[IndexFile], dict[str, Segment], dict[str, str]]:
        """Return the listed files, the segments in them, and the problems of unreadable files, by name."""
        files = await change_log.files(self._db)
        while True:
            opened, unreadable = await asyncio.to_thread(open_files, self._folder, files, self._opened)
            again = await change_log.files(self._db) if unreadable else files
            if [file.id for file in again] == [file.id for file in files]:
                break
            files = again  # a compaction replaced them
        for name, problem in unreadable.items():
            _log.warning("index_file_unreadable", file=name, problem=problem)
            with suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)  # compaction writes a missing file again
        return files, opened, unreadable

    async def _read_missing(self, views: Sequence[SegmentView]) -> list[SegmentView]:
        """Build segments in memory for the live sources that are in none of the views."""
        missing = await missing_ids(self._db, views)
        found: list[SegmentView] = []
        rows = SegmentRows()
        for start in range(0, len(missing), SOURCES_AT_ONCE):
            await change_log.read_sources(self._db, missing[start : start + SOURCES_AT_ONCE].tolist(), rows)
            if len(rows.passages) >= PASSAGES_AT_ONCE or start + SOURCES_AT_ONCE >= len(missing):
                found = await asyncio.to_thread(_with_new_segment, found, rows)
                rows = SegmentRows()
        return found


def open_files(
    folder: Path, files: Sequence[IndexFile], known: dict[str, Segment]
) -> tuple[dict[str, Segment], dict[str, str]]:
    """Return the segments in files by name, and the problems of unreadable files by name."""
    opened: dict[str, Segment] = {}
    unreadable: dict[str, str] = {}
    for file in files:
        try:
            opened[file.name] = known.get(file.name) or segments.read(folder / file.name)
        except SegmentUnreadable as error:
            unreadable[file.name] = str(error)
    return opened, unreadable


async def missing_ids(db: Database, views: Sequence[SegmentView]) -> NDArray[np.int64]:
    """Return the live sources of the database that are in none of the views."""
    indexed = [np.zeros(0, np.int64), *(view.live_source_ids() for view in views)]
    return np.setdiff1d(await change_log.source_ids(db), np.concatenate(indexed))


def _view_files(files: Sequence[IndexFile], opened: dict[str, Segment]) -> list[SegmentView]:
    return [SegmentView.of(opened[file.name]).mask(file.masked) for file in files if file.name in opened]


def _apply(
    files: Sequence[SegmentView], in_memory: Sequence[SegmentView], changes: SourceChanges
) -> tuple[Sequence[SegmentView], Sequence[SegmentView]]:
    """Mask changed sources everywhere, and add a segment with their present rows."""
    if not len(changes.source_ids):
        return files, in_memory
    files = [view.mask(changes.source_ids) for view in files]
    in_memory = [masked for view in in_memory if (masked := view.mask(changes.source_ids)).size]
    return files, _with_new_segment(in_memory, changes.rows) if changes.rows.passages else in_memory


def _with_new_segment(views: Sequence[SegmentView], rows: SegmentRows) -> list[SegmentView]:
    """Add a segment, and merge segments so that they stay few."""
    views = [*views, SegmentView.of(build_segment(rows))]
    chosen = choose([view.size for view in views])
    if len(chosen) == 1:
        return views
    merged = SegmentView.of(merge([views[number] for number in chosen]))
    return [*(view for number, view in enumerate(views) if number not in chosen), merged]


def _row_count(slices: Sequence[SegmentSlice]) -> int:
    """Count the rows of the collections in slices."""
    return sum(int(np.sum(each.ranges[1::2].astype(np.int64) - each.ranges[::2])) for each in slices)


async def _run(rows: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function whose time grows with the number of rows. Many rows are processed in a thread, so that the event
    loop stays responsive."""
    if rows <= MAX_ROWS_WITHOUT_THREAD:
        return work(*args, **kwargs)
    return await compute(work, *args, **kwargs)


def _has_failed(task: "asyncio.Task[Any]") -> bool:
    return bool(task.cancelling()) or (task.done() and (task.cancelled() or task.exception() is not None))


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Mark the exception as retrieved. The awaiting callers receive it, and asyncio does not log it as well."""
    if not task.cancelled():
        task.exception()
