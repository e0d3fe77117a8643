"""Merges the live passages of several segments into one segment.

Postings and vectors are processed in portions, into arrays that the caller allocates. Segments far larger than memory
can therefore be merged from file to file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from almanac.search.index.embedded.quantisation import sketch_all
from almanac.search.index.embedded.segment_view import SegmentView
from almanac.search.index.embedded.segments import (
    Allocate,
    Key,
    QuantisedVectors,
    Segment,
    expand_ranges,
    in_memory,
    matrix_name,
)

POSTINGS_AT_ONCE = 2**18  # held in memory; and 16 times as many numbers of vectors
_NO_ROW = 2**32 - 1
_MAX_SIZE_RATIO = 2


@dataclass(frozen=True)
class _Layout:
    """The positions of everything in the merged segment."""

    collections: tuple[str, ...]
    firsts: NDArray[np.int64]
    source_ids: NDArray[np.int64]  # by source number
    runs: NDArray[np.int64]
    rows: tuple[NDArray[np.uint32], ...]  # by view: the new row of each of its rows, or _NO_ROW


def choose(sizes: Sequence[int]) -> list[int]:
    """Choose the segments to merge so that they stay few. The last of these sizes is that of the new segment.

    The new segment absorbs the smaller ones, in ascending order, as long as each is not much larger than all before it.
    Sizes therefore grow at least threefold from one segment to the next, and a large segment is rarely written again.
    """
    chosen, total = [len(sizes) - 1], sizes[-1]
    for number in sorted(range(len(sizes) - 1), key=lambda number: sizes[number]):
        if sizes[number] > _MAX_SIZE_RATIO * total:
            break
        chosen.append(number)
        total += sizes[number]
    return sorted(chosen)


def merge(views: Sequence[SegmentView], allocate: Allocate = in_memory) -> Segment:
    """Build one segment from views. No two of them may contain the same live source."""
    layout = _lay_out(views)
    row_count = int(layout.runs[-1])
    by_id = np.argsort(layout.source_ids)
    passages, lengths = allocate("passages", np.int64, (row_count,)), allocate("lengths", np.uint32, (row_count,))
    for view, new_rows in zip(views, layout.rows, strict=True):
        is_live = new_rows != _NO_ROW
        passages[new_rows[is_live]] = view.segment.passages[is_live]
        lengths[new_rows[is_live]] = view.segment.lengths[is_live]
    owners = np.repeat(np.arange(len(by_id), dtype=np.uint32), np.diff(layout.runs))
    return Segment(
        collections=layout.collections,
        firsts=_put(allocate, "firsts", layout.firsts, np.int64),
        sources=_put(allocate, "sources", layout.source_ids[by_id], np.int64),
        places=_put(allocate, "places", by_id, np.uint32),
        runs=_put(allocate, "runs", layout.runs, np.uint32),
        owners=_put(allocate, "owners", owners, np.uint32),
        passages=passages,
        lengths=lengths,
        **_merge_postings(views, layout, allocate),
        matrices={
            key: _merge_matrices(views, layout, key, allocate)
            for key in sorted({key for view in views for key in view.segment.matrices})
        },
    )


def _put(allocate: Allocate, name: str, values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    array = allocate(name, dtype, values.shape)
    array[...] = values
    return array


def _lay_out(views: Sequence[SegmentView]) -> _Layout:
    live = [np.flatnonzero(view.live) for view in views]
    live_ids = np.concatenate([view.live_source_ids() for view in views])
    starts = [view.segment.runs[each].astype(np.int64) for view, each in zip(views, live, strict=True)]
    stops = [view.segment.runs[each + 1].astype(np.int64) for view, each in zip(views, live, strict=True)]
    sizes = np.concatenate(stops) - np.concatenate(starts)
    collections, numbers = _number_collections(views, live)
    order = np.lexsort((live_ids, numbers))
    runs = np.concatenate(([0], np.cumsum(sizes[order])))
    begins = np.empty(len(order), np.int64)
    begins[order] = runs[:-1]
    rows: list[NDArray[np.uint32]] = []
    done = 0
    for view, start, stop in zip(views, starts, stops, strict=True):
        new_rows = np.full(len(view.segment.passages), _NO_ROW, np.uint32)
        begin = begins[done : done + len(start)]
        new_rows[expand_ranges(start, stop)] = expand_ranges(begin, begin + stop - start)
        rows.append(new_rows)
        done += len(start)
    firsts = np.searchsorted(numbers[order], np.arange(len(collections) + 1)).astype(np.int64)
    return _Layout(collections, firsts, live_ids[order], runs, tuple(rows))


def _number_collections(
    views: Sequence[SegmentView], live: Sequence[NDArray[np.int64]]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the collections that have live sources, and the collection number of each live source."""
    old = [np.searchsorted(view.segment.firsts[1:], each, "right") for view, each in zip(views, live, strict=True)]
    used: set[str] = set()
    for view, each in zip(views, old, strict=True):
        present: list[int] = np.unique(each).tolist()
        used.update(view.segment.collections[number] for number in present)
    numbers = {name: number for number, name in enumerate(sorted(used))}
    new = [np.array([numbers.get(name, 0) for name in view.segment.collections], np.int64) for view in views]
    return tuple(numbers), np.concatenate([each[number] for each, number in zip(new, old, strict=True)])


def _merge_postings(views: Sequence[SegmentView], layout: _Layout, allocate: Allocate) -> dict[str, NDArray[Any]]:
    live = [_count_live(view, new_rows) for view, new_rows in zip(views, layout.rows, strict=True)]
    union = np.unique(np.concatenate([view.segment.terms[n > 0] for view, n in zip(views, live, strict=True)]))
    sizes = np.zeros(len(union), np.int64)
    for view, number in zip(views, live, strict=True):
        sizes[np.searchsorted(union, view.segment.terms[number > 0])] += number[number > 0]
    terms = _put(allocate, "terms", union, np.int64)
    offsets = _put(allocate, "offsets", np.concatenate(([0], np.cumsum(sizes))), np.int64)
    total = int(offsets[-1])
    rows, counts = allocate("rows", np.uint32, (total,)), allocate("counts", np.uint8, (total,))
    for first, last in _portions(offsets):
        keys = np.concatenate(
            [_keys(view, new_rows, union[first:last]) for view, new_rows in zip(views, layout.rows, strict=True)]
        )
        keys.sort(kind="stable")  # this kind is fast for a few ascending parts
        part = slice(offsets[first], offsets[last])
        rows[part], counts[part] = (keys >> np.uint64(8)).astype(np.uint32), keys.astype(np.uint8)
    return {"terms": terms, "offsets": offsets, "rows": rows, "counts": counts}


def _count_live(view: SegmentView, new_rows: NDArray[np.uint32]) -> NDArray[np.int64]:
    """By term: the number of live postings."""
    segment = view.segment
    if not view.masked_passages:
        return np.diff(segment.offsets)
    parts = [np.zeros(0, np.int64)]
    for first, last in _portions(segment.offsets):
        begins = segment.offsets[first:last] - segment.offsets[first]
        is_live = new_rows[segment.rows[segment.offsets[first] : segment.offsets[last]]] != _NO_ROW
        parts.append(np.add.reduceat(is_live, begins, dtype=np.int64))
    return np.concatenate(parts)


def _keys(view: SegmentView, new_rows: NDArray[np.uint32], terms: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the live postings of terms as sortable numbers: the position of the term, the new row, the count."""
    segment = view.segment
    first, last = np.searchsorted(segment.terms, (terms[0], terms[-1]), "left")
    last += last < len(segment.terms) and segment.terms[last] == terms[-1]
    start, stop = segment.offsets[first], segment.offsets[last]
    which = np.repeat(np.searchsorted(terms, segment.terms[first:last]), np.diff(segment.offsets[first : last + 1]))
    rows = new_rows[segment.rows[start:stop]]
    keys = (which.astype(np.uint64) << np.uint64(40)) | (rows.astype(np.uint64) << np.uint64(8))
    keys |= segment.counts[start:stop]
    return keys[rows != _NO_ROW] if view.masked_passages else keys


def _portions(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of terms that have at most POSTINGS_AT_ONCE postings, or a single term."""
    first = 0
    while first < len(offsets) - 1:
        last = max(first + 1, int(np.searchsorted(offsets, int(offsets[first]) + POSTINGS_AT_ONCE, "right")) - 1)
        yield first, last
        first = last


def _merge_matrices(views: Sequence[SegmentView], layout: _Layout, key: Key, allocate: Allocate) -> QuantisedVectors:
    parts = [
        (matrix, new_rows[matrix.rows])
        for view, new_rows in zip(views, layout.rows, strict=True)
        if (matrix := view.segment.matrices.get(key)) is not None
    ]
    rows = np.sort(np.concatenate([new_rows[new_rows != _NO_ROW] for _, new_rows in parts]))
    stored_rows = _put(allocate, matrix_name(key, "rows"), rows, np.uint32)
    values = allocate(matrix_name(key, "values"), np.int8, (len(rows), key[1]))
    scales = allocate(matrix_name(key, "scales"), np.float32, (len(rows),))
    step = max(POSTINGS_AT_ONCE * 16 // max(key[1], 1), 1)
    for matrix, new_rows in parts:
        for start in range(0, len(new_rows), step):
            live = start + np.flatnonzero(new_rows[start : start + step] != _NO_ROW)
            position = np.searchsorted(rows, new_rows[live])
            values[position], scales[position] = matrix.values[live], matrix.scales[live]
    return QuantisedVectors(stored_rows, values, scales, *sketch_all(values, scales, key, allocate))
