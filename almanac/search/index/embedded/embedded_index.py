"""The index beside SQLite: files of segments, and in memory what changed since they were written.

Before it answers, it catches up: sources that changed are masked in every segment that has them, and what they have now
goes into a small segment in memory. So an answer is of the database as it is; files are only ever a shortcut to it. Any
number of processes read them, and `compaction.py` replaces them.
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
from almanac.search.index.caching import SharedTask
from almanac.search.index.embedded import change_log, keyword_scan, segments, vector_scan
from almanac.search.index.embedded.change_log import Changed, File, State
from almanac.search.index.embedded.segment_builder import SegmentRows, build_segment
from almanac.search.index.embedded.segment_merge import choose, merge
from almanac.search.index.embedded.segment_view import SegmentSlice, SegmentView
from almanac.search.index.embedded.segments import Segment, SegmentUnreadable
from almanac.search.index.protocol import Coverage, Hits, KeywordHits, PassageVectors, SearchScope

P = ParamSpec("P")
T = TypeVar("T")

SHORT = 20_000  # rows that are searched within about a millisecond: no thread is worth its while
CHANGES_AT_ONCE = 1_000
SOURCES_AT_ONCE = 500
PASSAGES_AT_ONCE = 20_000
_FEW = 100  # passages that are taken in within about a millisecond

_NONE = (-1, -1)  # what no files are known by

_log = structlog.stdlib.get_logger("almanac.search")


class EmbeddedIndex:
    """The index of one SQLite database, with its files in one folder."""

    holds_interpreter_lock = True

    def __init__(self, db: Database, folder: Path) -> None:
        self._db = db
        self._folder = folder
        self._version: bytes | None = None
        self._files = _NONE
        self._sequence = 0
        self._opened: dict[str, Segment] = {}
        self._present: tuple[Sequence[SegmentView], Sequence[SegmentView]] = (), ()  # of files, and in memory
        self._catching_up = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._shared = SharedTask()
        self._condition: tuple[tuple[bytes | None, SearchScope], asyncio.Task[NDArray[np.int64]]] | None = None

    async def keyword_hits(self, scope: SearchScope, terms: Sequence[int], limit: int) -> KeywordHits:
        parts = await self._parts(scope)
        return await _run(_rows(parts), keyword_scan.search, parts, terms, limit)

    async def vector_hits(
        self, scope: SearchScope, model: str, vector: NDArray[np.float32], limit: int, reach: int | None = None
    ) -> Hits:
        parts = await self._parts(scope)
        return await _run(_rows(parts), vector_scan.search, parts, (model, len(vector)), vector, limit)

    async def keyword_scores(self, hits: Hits, terms: Sequence[int], found: KeywordHits) -> NDArray[np.float32]:
        return keyword_scan.weigh(await self.views(), hits, terms, found)

    async def passage_vectors(self, model: str, size: int, ids: Sequence[int]) -> PassageVectors:
        found = await change_log.vectors(self._db, model, ids)
        kept = {id: each for id, each in found.items() if len(each) == 2 * size}
        rows = np.frombuffer(b"".join(kept.values()), np.float16).reshape(-1, size)
        return PassageVectors.of(np.fromiter(kept, np.int64, len(kept)), rows)

    async def coverage(self, collections: Sequence[str], model: str) -> Coverage:
        parts = await self._parts(SearchScope(tuple(collections)))
        passages = sum(_rows([part]) - len(part.dead_rows) for part in parts)
        return Coverage(passages, sum(vector_scan.count(part, model) for part in parts))

    async def views(self) -> tuple[SegmentView, ...]:
        """All there is to be searched, as it is now."""
        if self._version is None or self._db.commit_version() != self._version:
            async with self._catching_up:
                version = (
                    self._db.commit_version()
                )  # before the look at what changed, so that no change is taken for seen
                if version is None or version != self._version:
                    await self._catch_up()
                    is_ahead = self._reading is not None and self._reading.done()
                    self._version = None if is_ahead else version
        return (*self._present[0], *self._present[1])

    async def close(self) -> None:
        """Let go of the files."""
        if self._condition is not None:
            self._condition[1].cancel()
        if self._reading is not None:
            self._reading.cancel()
        self._version, self._files = None, _NONE
        self._opened, self._present = {}, ((), ())

    async def _parts(self, scope: SearchScope) -> list[SegmentSlice]:
        views = await self.views()
        only = await self._kept(scope) if scope.where else None
        collections = frozenset(scope.collections)
        return [part for view in views if (part := view.part(collections, only)) is not None]

    async def _kept(self, scope: SearchScope) -> NDArray[np.int64]:
        """The sources that the condition of a scope leaves. Both legs ask for it at once, and it is read once."""
        key = (self._version, scope)
        if self._condition is None or self._condition[0] != key or self._version is None or _failed(self._condition[1]):
            task = asyncio.create_task(change_log.kept(self._db, scope))
            task.add_done_callback(_hear)
            self._condition = key, task
        return await self._shared.wait(self._condition[1])

    async def _catch_up(self) -> None:
        state = await change_log.state(self._db)
        if state.files == self._files and state.newest <= self._sequence:
            return
        while True:
            if state.files != self._files:
                await self._follow(state)
            until = self._sequence + CHANGES_AT_ONCE
            found = await change_log.changed(self._db, self._sequence, until)
            state = found.state
            if state.files[1] <= self._sequence:  # otherwise some changes to be known have just been pruned
                rows = 0 if len(found.batch.passages) <= _FEW else SHORT + 1
                self._present = await _run(rows, _take, *self._present, found)
                self._sequence = max(self._sequence, min(until, state.newest))
                if state.newest <= until:
                    return

    async def _follow(self, state: State) -> None:
        """Go over to other files: in good time, where those at hand with what changed since still tell everything."""
        is_needed = self._files == _NONE or self._sequence < state.files[1]
        if is_needed or (self._reading is not None and self._reading.done()):
            self._reading = None
            await self._open()
        elif self._reading is None:
            self._reading = asyncio.create_task(self._read_ahead())
            self._reading.add_done_callback(_hear)

    async def _read_ahead(self) -> None:
        """Read files before they are needed, so that no search has to wait for that."""
        files = await change_log.files(self._db)
        opened, _ = await asyncio.to_thread(read_all, self._folder, files, self._opened)
        self._opened = self._opened | opened
        self._version = None  # so that the next search goes over to them

    async def _open(self) -> None:
        """Begin anew with the files there are."""
        files, opened, lost = await self._open_files()
        views = await asyncio.to_thread(_view_all, files, opened)
        recent = await self._read_lost(views) if lost else []
        self._opened, self._present = opened, (views, recent)
        self._sequence = min((file.sequence for file in files), default=0)
        self._files = (
            max((file.id for file in files), default=0),
            max((file.sequence for file in files), default=0),
        )

    async def _open_files(self) -> tuple[list[File], dict[str, Segment], dict[str, str]]:
        """The files there should be, those that could be read, and what is wrong with the others."""
        files = await change_log.files(self._db)
        while True:
            opened, lost = await asyncio.to_thread(read_all, self._folder, files, self._opened)
            again = await change_log.files(self._db) if lost else files
            if [file.id for file in again] == [file.id for file in files]:
                break
            files = again  # they were replaced in between
        for name, problem in lost.items():
            _log.warning("a file of the index is read from the database instead", file=name, problem=problem)
            with suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)  # that it is gone tells compaction to write it anew
        return files, opened, lost

    async def _read_lost(self, views: Sequence[SegmentView]) -> list[SegmentView]:
        """What the database has that none of the views holds."""
        held = [view.segment.ids[view.live] for view in views]
        lacking = np.setdiff1d(await change_log.source_ids(self._db), np.concatenate([*held, np.zeros(0, np.int64)]))
        found: list[SegmentView] = []
        batch = SegmentRows()
        for start in range(0, len(lacking), SOURCES_AT_ONCE):
            await change_log.read(self._db, lacking[start : start + SOURCES_AT_ONCE].tolist(), batch)
            if len(batch.passages) >= PASSAGES_AT_ONCE or start + SOURCES_AT_ONCE >= len(lacking):
                found = await asyncio.to_thread(
                    _settle, [*found, SegmentView.of(await asyncio.to_thread(build_segment, batch))]
                )
                batch = SegmentRows()
        return found


def _failed(task: "asyncio.Task[Any]") -> bool:
    return bool(task.cancelling()) or (task.done() and (task.cancelled() or task.exception() is not None))


def read_all(
    folder: Path, files: Sequence[File], known: dict[str, Segment]
) -> tuple[dict[str, Segment], dict[str, str]]:
    """The segments in files by name, and what is wrong with those that cannot be read."""
    opened: dict[str, Segment] = {}
    lost: dict[str, str] = {}
    for file in files:
        try:
            opened[file.name] = known.get(file.name) or segments.read(folder / file.name)
        except SegmentUnreadable as error:
            lost[file.name] = str(error)
    return opened, lost


def _view_all(files: Sequence[File], opened: dict[str, Segment]) -> list[SegmentView]:
    return [SegmentView.of(opened[file.name]).mask(file.masked) for file in files if file.name in opened]


def _take(
    filed: Sequence[SegmentView], recent: Sequence[SegmentView], found: Changed
) -> tuple[Sequence[SegmentView], Sequence[SegmentView]]:
    """Put what sources have now in the place of what they had."""
    if not len(found.source_ids):
        return filed, recent
    filed = [view.mask(found.source_ids) for view in filed]
    recent = [each for view in recent if (each := view.mask(found.source_ids)).size]
    return filed, _settle([*recent, SegmentView.of(build_segment(found.batch))]) if found.batch.passages else recent


def _settle(views: list[SegmentView]) -> list[SegmentView]:
    """Keep the segments in memory few; the last one is new."""
    chosen = choose([view.size for view in views])
    if len(chosen) == 1:
        return views
    merged = SegmentView.of(merge([views[place] for place in chosen]))
    return [*(view for place, view in enumerate(views) if place not in chosen), merged]


def _rows(parts: Sequence[SegmentSlice]) -> int:
    """How many rows the collections of parts have."""
    return sum(int(np.sum(part.ranges[1::2].astype(np.int64) - part.ranges[::2])) for part in parts)


async def _run(rows: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do something that takes time by the number of rows: here, or in a thread, while the loop goes on."""
    if rows <= SHORT:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


def _hear(task: asyncio.Task[Any]) -> None:
    """Whoever waits for it hears of its failure, and nobody else need."""
    if not task.cancelled():
        task.exception()
