"""Views: a segment together with what of it still holds, and the part of it that a search may look at."""

from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from almanac.search.index.embedded.segments import NOT_ANALYSED, Segment, spread

MOST_SPANS = 32  # ranges of rows of one segment that are searched one by one; more are joined, with what is between
GAP = 512  # rows between two ranges that cost less than another range does


@dataclass(frozen=True, eq=False)
class SegmentView:
    """A segment and which of its sources still are as it has them, with what is to be known of each collection."""

    segment: Segment
    live: NDArray[np.bool_]  # by source, in the order of rows
    read: NDArray[np.int64]  # by collection: passages whose words are known
    lengths: NDArray[np.int64]  # by collection: words, in all
    dead: int  # rows that no longer hold

    @property
    def size(self) -> int:
        """How many passages of it still hold."""
        return len(self.segment.passages) - self.dead

    @classmethod
    def of(cls, segment: Segment) -> "SegmentView":
        """All of a segment."""
        everything = np.arange(len(segment.sources))
        return cls(segment, np.ones(len(everything), np.bool_), *_statistics(segment, everything), 0)

    def mask(self, source_ids: NDArray[np.int64]) -> "SegmentView":
        """The view in which these sources no longer hold."""
        found = self.segment.find(source_ids)
        gone = np.unique(found[self.live[found]])
        if not len(gone):
            return self
        live = self.live.copy()
        live[gone] = False
        read, lengths = _statistics(self.segment, gone)
        dead = self.dead + len(self.segment.rows_of(gone))
        return SegmentView(self.segment, live, self.read - read, self.lengths - lengths, dead)

    def locate(
        self, passages: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Which of some passages, given with their sources, still hold here, and their rows."""
        which, rows = self.segment.locate(passages, sources)
        holds = self.live[self.segment.owners[rows]]
        return which[holds], rows[holds]

    def masked_source_ids(self) -> NDArray[np.int64]:
        """The ids of the sources that no longer hold."""
        return np.sort(self.segment.ids[~self.live])

    def part(self, collections: Set[str], source_ids: NDArray[np.int64] | None) -> "SegmentSlice | None":
        """What of it is in some collections, and of these sources only; None where it has none of the collections."""
        named = self.segment.named
        if len(collections) < len(named):
            inside = np.array(sorted(named[name] for name in collections if name in named), np.int64)
        else:
            inside = np.array([place for name, place in named.items() if name in collections], np.int64)
        if not len(inside):
            return None
        apart = np.flatnonzero(np.diff(inside) > 1)
        starts, stops = inside[np.append(0, apart + 1)], inside[np.append(apart, len(inside) - 1)] + 1
        return SegmentSlice(self, inside, self.segment.firsts[starts], self.segment.firsts[stops], source_ids)


@dataclass(frozen=True, eq=False)
class SegmentSlice:
    """What a search may look at in a view: ranges of sources, of which `only` may further restrict what is found."""

    view: SegmentView
    collections: NDArray[np.int64]
    starts: NDArray[np.int64]  # of sources, in the order of rows
    stops: NDArray[np.int64]
    only: NDArray[np.int64] | None  # ids

    @cached_property
    def ranges(self) -> NDArray[np.uint32]:
        """Where the rows of the collections begin and end, in turn."""
        return _rows(self.view.segment, self.starts, self.stops)

    @cached_property
    def dead_sources(self) -> NDArray[np.int64]:
        """The sources in the collections that no longer hold."""
        if not self.view.dead:
            return np.zeros(0, np.int64)
        return np.concatenate([start + np.flatnonzero(~self.view.live[start:stop]) for start, stop in self._pairs()])

    @cached_property
    def dead_rows(self) -> NDArray[np.uint32]:
        """The rows in the collections that no longer hold."""
        return self.view.segment.rows_of(self.dead_sources).astype(np.uint32)

    @cached_property
    def kept(self) -> NDArray[np.bool_] | None:
        """Which of the sources in the ranges may be found; None for all of them."""
        if self.only is None and not len(self.dead_sources):
            return None
        kept = np.concatenate([self.view.live[start:stop] for start, stop in self._pairs()])
        if self.only is not None:
            chosen = np.zeros(len(kept), np.bool_)
            places, inside = self._places(self.view.segment.find(self.only))
            chosen[places[inside]] = True
            kept &= chosen
        return kept

    @cached_property
    def spans(self) -> NDArray[np.uint32]:
        """Where the rows to look at begin and end, in turn: a few ranges, which hold all that may be found."""
        starts, stops = self.starts, self.stops
        if self.kept is not None:
            found = spread(starts, stops)[self.kept]
            apart = np.flatnonzero(np.diff(found) > 1)
            starts, stops = np.append(found[:1], found[apart + 1]), np.append(found[apart], found[-1:]) + 1
        edges = _rows(self.view.segment, starts, stops)
        gaps = edges[2::2] - edges[1:-1:2]
        wide = np.flatnonzero(gaps >= GAP)
        if len(wide) >= MOST_SPANS:
            wide = np.sort(np.argpartition(gaps, -MOST_SPANS + 1)[-MOST_SPANS + 1 :])
        return np.concatenate(
            (edges[:1], np.column_stack((edges[1:-1:2][wide], edges[2::2][wide])).ravel(), edges[-1:])
        )

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """How many rows to look at stand before each span; one more for all."""
        return np.concatenate(([0], np.cumsum(self.spans[1::2] - self.spans[::2], dtype=np.int64)))

    @property
    def size(self) -> int:
        """How many rows there are to look at."""
        return int(self.begins[-1])

    @cached_property
    def allowed(self) -> NDArray[np.bool_] | None:
        """Which of the rows to look at may be found; None for all."""
        if self.kept is None and self.size == int(np.sum(self.ranges[1::2] - self.ranges[::2], dtype=np.int64)):
            return None
        segment, found = self.view.segment, [np.zeros(0, np.bool_)]
        for begin, end in self.spans.reshape(-1, 2).tolist():
            first, last = int(segment.owners[begin]), int(segment.owners[end - 1]) + 1
            places, chosen = self._places(np.arange(first, last))
            if self.kept is not None:
                chosen &= self.kept[np.clip(places, 0, len(self.kept) - 1)]
            barred = first + np.flatnonzero(~chosen)
            if len(barred) > len(chosen) // 16:
                found.append(np.repeat(chosen, np.diff(segment.runs[first : last + 1])))
            else:
                found.append(np.ones(end - begin, np.bool_))
                found[-1][segment.rows_of(barred) - begin] = False
        return np.concatenate(found)

    def rows_at(self, places: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Rows of the segment, given by which of the rows to look at they are."""
        span = np.asarray(self.begins.searchsorted(places, "right"), np.int64) - 1
        return (places - self.begins[span] + self.spans[2 * span]).astype(np.uint32)

    def _pairs(self) -> Iterable[tuple[int, int]]:
        return zip(self.starts.tolist(), self.stops.tolist(), strict=True)

    def _places(self, sources: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where sources stand among those of the ranges, and which of them stand there at all."""
        if len(self.starts) == 1:
            return sources - self.starts[0], (sources >= self.starts[0]) & (sources < self.stops[0])
        ranges = np.searchsorted(self.starts, sources, "right") - 1
        before = np.cumsum(self.stops - self.starts) - self.stops  # less what stands between the ranges
        return sources + before[ranges], (ranges >= 0) & (sources < self.stops[ranges])


def _rows(segment: Segment, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.uint32]:
    return segment.runs[np.column_stack((starts, stops)).ravel()]


def _statistics(segment: Segment, sources: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """By collection, of the passages of some sources: how many have words, and how many words."""
    rows = segment.rows_of(sources)
    rows = rows[segment.lengths[rows] != NOT_ANALYSED]
    collections = np.searchsorted(segment.bounds[1:], rows, "right")
    number = len(segment.collections)
    read = np.bincount(collections, minlength=number)
    return read, np.bincount(collections, segment.lengths[rows], number).astype(np.int64)
