"""Views and slices: the current content of a segment, and the part of it that one search may read."""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from almanac.search.index.embedded.segments import NOT_ANALYSED, Segment, expand_ranges

MAX_SPANS = 32  # row ranges of one segment that are scanned separately; more are joined across their smallest gaps
MIN_GAP_ROWS = 512  # scanning a smaller gap between two ranges costs less than scanning one more range


@dataclass(frozen=True, eq=False)
class SegmentView:
    """A segment with its current state. A source is masked if it has changed since the segment was built."""

    segment: Segment
    live: NDArray[np.bool_]  # by source number: False if it is masked
    analysed: NDArray[np.int64]  # by collection number: live passages that have been analysed
    lengths: NDArray[np.int64]  # by collection number: the terms of these passages
    masked_passages: int

    @property
    def size(self) -> int:
        """The number of live passages."""
        return len(self.segment.passages) - self.masked_passages

    @classmethod
    def of(cls, segment: Segment) -> "SegmentView":
        """Return the view in which every source is live."""
        everything = np.arange(len(segment.sources))
        return cls(segment, np.ones(len(everything), np.bool_), *_statistics(segment, everything), 0)

    def mask(self, source_ids: NDArray[np.int64]) -> "SegmentView":
        """Return the view in which these sources are masked too."""
        found = self.segment.find(source_ids)
        newly_masked = np.unique(found[self.live[found]])
        if not len(newly_masked):
            return self
        live = self.live.copy()
        live[newly_masked] = False
        analysed, lengths = _statistics(self.segment, newly_masked)
        masked_passages = self.masked_passages + len(self.segment.rows_of(newly_masked))
        return SegmentView(self.segment, live, self.analysed - analysed, self.lengths - lengths, masked_passages)

    def locate(
        self, passages: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Find passages, given with their source ids. Return the positions of those that are live, and their rows."""
        which, rows = self.segment.locate(passages, sources)
        is_live = self.live[self.segment.owners[rows]]
        return which[is_live], rows[is_live]

    def live_source_ids(self) -> NDArray[np.int64]:
        return self.segment.source_ids[self.live]

    def masked_source_ids(self) -> NDArray[np.int64]:
        return np.sort(self.segment.source_ids[~self.live])

    def slice(self, collections: Set[str], source_ids: NDArray[np.int64] | None) -> "SegmentSlice | None":
        """Return the part that belongs to some collections and, unless None, to these sources. None is returned if the
        segment contains none of the collections."""
        numbers = self.segment.collection_numbers
        if len(collections) < len(numbers):
            selected = np.array(sorted(numbers[name] for name in collections if name in numbers), np.int64)
        else:
            selected = np.array([number for name, number in numbers.items() if name in collections], np.int64)
        if not len(selected):
            return None
        gaps = np.flatnonzero(np.diff(selected) > 1)
        starts, stops = selected[np.append(0, gaps + 1)], selected[np.append(gaps, len(selected) - 1)] + 1
        return SegmentSlice(self, selected, self.segment.firsts[starts], self.segment.firsts[stops], source_ids)


@dataclass(frozen=True, eq=False)
class SegmentSlice:
    """The part of a view that a search may read: ranges of source numbers, and optionally a filter by source ids."""

    view: SegmentView
    collections: NDArray[np.int64]  # numbers
    starts: NDArray[np.int64]  # source numbers
    stops: NDArray[np.int64]
    source_ids: NDArray[np.int64] | None

    @cached_property
    def ranges(self) -> NDArray[np.uint32]:
        """The first row and the end of each range of sources, alternately."""
        return _row_ranges(self.view.segment, self.starts, self.stops)

    @cached_property
    def masked_rows(self) -> NDArray[np.uint32]:
        """The rows of the masked sources in the collections."""
        return self.view.segment.rows_of(self._masked_sources).astype(np.uint32)

    def count_live(self, rows: NDArray[np.uint32]) -> int:
        """Count the live rows of the collections among rows, which are in ascending order."""
        edges = rows.searchsorted(self.ranges)
        masked = _count_common(self.masked_rows, rows[edges[0] : edges[-1]])
        return int(edges[1::2].sum() - edges[::2].sum()) - masked

    @cached_property
    def spans(self) -> NDArray[np.uint32]:
        """The first row and the end of each range to scan, alternately. These few ranges contain every row that the
        search may return."""
        starts, stops = self.starts, self.stops
        if self._matching_sources is not None:
            found = expand_ranges(starts, stops)[self._matching_sources]
            gaps = np.flatnonzero(np.diff(found) > 1)
            starts, stops = np.append(found[:1], found[gaps + 1]), np.append(found[gaps], found[-1:]) + 1
        edges = _row_ranges(self.view.segment, starts, stops)
        gap_rows = edges[2::2] - edges[1:-1:2]
        wide = np.flatnonzero(gap_rows >= MIN_GAP_ROWS)
        if len(wide) >= MAX_SPANS:
            wide = np.sort(np.argpartition(gap_rows, -MAX_SPANS + 1)[-MAX_SPANS + 1 :])
        return np.concatenate(
            (edges[:1], np.column_stack((edges[1:-1:2][wide], edges[2::2][wide])).ravel(), edges[-1:])
        )

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """By span: the number of rows to scan before it; one more for the total."""
        return np.concatenate(([0], np.cumsum(self.spans[1::2] - self.spans[::2], dtype=np.int64)))

    @property
    def size(self) -> int:
        """The number of rows to scan."""
        return int(self.begins[-1])

    @cached_property
    def allowed(self) -> NDArray[np.bool_] | None:
        """For each row to scan: True if the search may return it. None if it may return all of them."""
        matching = self._matching_sources
        if matching is None and self.size == int(np.sum(self.ranges[1::2] - self.ranges[::2], dtype=np.int64)):
            return None
        segment, found = self.view.segment, [np.zeros(0, np.bool_)]
        for begin, end in self.spans.reshape(-1, 2).tolist():
            first, last = int(segment.owners[begin]), int(segment.owners[end - 1]) + 1
            positions, is_allowed = self._positions(np.arange(first, last))
            if matching is not None:
                is_allowed &= matching[np.clip(positions, 0, len(matching) - 1)]
            excluded = first + np.flatnonzero(~is_allowed)
            if len(excluded) > len(is_allowed) // 16:
                found.append(np.repeat(is_allowed, np.diff(segment.runs[first : last + 1])))
            else:
                found.append(np.ones(end - begin, np.bool_))
                found[-1][segment.rows_of(excluded) - begin] = False
        return np.concatenate(found)

    def in_spans(self, rows: NDArray[np.uint32]) -> Iterator[tuple[int, int, int]]:
        """Find the part of ascending rows that is in each span. Yield its start, its end, and the number that turns a
        row into its position among the rows to scan, by addition."""
        edges = rows.searchsorted(self.spans).tolist()
        for span, (first, last) in enumerate(zip(edges[::2], edges[1::2], strict=True)):
            if first < last:
                yield first, last, int(self.begins[span]) - int(self.spans[2 * span])

    def rows_at(self, positions: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the segment's rows at positions among the rows to scan."""
        span = np.asarray(self.begins.searchsorted(positions, "right"), np.int64) - 1
        return (positions - self.begins[span] + self.spans[2 * span]).astype(np.uint32)

    @cached_property
    def _masked_sources(self) -> NDArray[np.int64]:
        if not self.view.masked_passages:
            return np.zeros(0, np.int64)
        return np.concatenate([start + np.flatnonzero(~self.view.live[start:stop]) for start, stop in self._pairs()])

    @cached_property
    def _matching_sources(self) -> NDArray[np.bool_] | None:
        """For each source in the ranges: True if the search may return it. None if it may return all of them."""
        if self.source_ids is None and not len(self._masked_sources):
            return None
        matching = np.concatenate([self.view.live[start:stop] for start, stop in self._pairs()])
        if self.source_ids is not None:
            selected = np.zeros(len(matching), np.bool_)
            positions, is_inside = self._positions(self.view.segment.find(self.source_ids))
            selected[positions[is_inside]] = True
            matching &= selected
        return matching

    def _pairs(self) -> Iterable[tuple[int, int]]:
        return zip(self.starts.tolist(), self.stops.tolist(), strict=True)

    def _positions(self, sources: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the positions of source numbers among those of the ranges, and for each True if it is in a range."""
        if len(self.starts) == 1:
            return sources - self.starts[0], (sources >= self.starts[0]) & (sources < self.stops[0])
        ranges = np.searchsorted(self.starts, sources, "right") - 1
        before = np.cumsum(self.stops - self.starts) - self.stops  # less the source numbers between the ranges
        return sources + before[ranges], (ranges >= 0) & (sources < self.stops[ranges])


def _count_common(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> int:
    """Count the rows that are in both ascending arrays."""
    if not len(one) or not len(other):
        return 0
    if len(other) < 16 * len(one):  # looking up the rows of the second array is then cheaper
        one, other = other, one
    at = np.minimum(np.searchsorted(other, one), len(other) - 1)
    return int(np.count_nonzero(other[at] == one))


def _row_ranges(segment: Segment, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.uint32]:
    return segment.runs[np.column_stack((starts, stops)).ravel()]


def _statistics(segment: Segment, sources: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the analysed passages of sources, and their terms, by collection number."""
    rows = segment.rows_of(sources)
    rows = rows[segment.lengths[rows] != NOT_ANALYSED]
    collections = np.searchsorted(segment.bounds[1:], rows, "right")
    size = len(segment.collections)
    analysed = np.bincount(collections, minlength=size)
    return analysed, np.bincount(collections, segment.lengths[rows], size).astype(np.int64)
