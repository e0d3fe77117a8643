"""Merging: one segment out of what still holds of several.

It goes through the postings in portions, into room that it asks for array by array, so that segments far larger than
memory can be merged from file to file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from almanac.search.index.embedded.segment_view import SegmentView
from almanac.search.index.embedded.segments import (
    Allocate,
    Key,
    QuantisedVectors,
    Segment,
    in_memory,
    matrix_name,
    spread,
)
from almanac.search.index.vector_tools import sketch

PORTION = 2**18  # postings, or numbers of vectors times 16, that are held in memory at once
_NOWHERE = 2**32 - 1
_FACTOR = 2


@dataclass(frozen=True)
class _Layout:
    """Where everything comes to stand."""

    collections: tuple[str, ...]
    firsts: NDArray[np.int64]
    ids: NDArray[np.int64]  # sources in the order of rows
    runs: NDArray[np.int64]
    rows: tuple[NDArray[np.uint32], ...]  # by view: for each of its rows the new one, or nowhere


def choose(sizes: Sequence[int]) -> list[int]:
    """Which of some segments, given by size, the last of them new, to merge so that they stay few.

    The new one takes the smaller ones in, as long as each is not much larger than all before it. So they grow at least
    threefold from one to the next, and what is large is rarely written again.
    """
    chosen, total = [len(sizes) - 1], sizes[-1]
    for place in sorted(range(len(sizes) - 1), key=lambda place: sizes[place]):
        if sizes[place] > _FACTOR * total:
            break
        chosen.append(place)
        total += sizes[place]
    return sorted(chosen)


def merge(views: Sequence[SegmentView], allocate: Allocate = in_memory) -> Segment:
    """The segment that holds what these hold; no two of them hold the same source."""
    layout = _lay_out(views)
    rows = int(layout.runs[-1])
    by_id = np.argsort(layout.ids)
    passages, lengths = allocate("passages", np.int64, (rows,)), allocate("lengths", np.uint32, (rows,))
    for view, target in zip(views, layout.rows, strict=True):
        kept = target != _NOWHERE
        passages[target[kept]] = view.segment.passages[kept]
        lengths[target[kept]] = view.segment.lengths[kept]
    owners = np.repeat(np.arange(len(by_id), dtype=np.uint32), np.diff(layout.runs))
    return Segment(
        collections=layout.collections,
        firsts=_put(allocate, "firsts", layout.firsts, np.int64),
        sources=_put(allocate, "sources", layout.ids[by_id], np.int64),
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
    room = allocate(name, dtype, values.shape)
    room[...] = values
    return room


def _lay_out(views: Sequence[SegmentView]) -> _Layout:
    live = [np.flatnonzero(view.live) for view in views]
    names = [np.array(view.segment.collections, object) for view in views]
    kinds = [np.searchsorted(view.segment.firsts[1:], each, "right") for view, each in zip(views, live, strict=True)]
    used = sorted({name for each, kind in zip(names, kinds, strict=True) for name in each[np.unique(kind)]})
    rank = {name: place for place, name in enumerate(used)}
    ranks = [
        np.array([rank.get(name, 0) for name in each], np.int64)[kind] for each, kind in zip(names, kinds, strict=True)
    ]
    ids = np.concatenate([view.segment.ids[each] for view, each in zip(views, live, strict=True)])
    starts = [view.segment.runs[each].astype(np.int64) for view, each in zip(views, live, strict=True)]
    stops = [view.segment.runs[each + 1].astype(np.int64) for view, each in zip(views, live, strict=True)]
    sizes = np.concatenate(stops) - np.concatenate(starts)
    order = np.lexsort((ids, np.concatenate(ranks)))
    runs = np.concatenate(([0], np.cumsum(sizes[order])))
    begins = np.empty(len(order), np.int64)
    begins[order] = runs[:-1]
    targets: list[NDArray[np.uint32]] = []
    done = 0
    for view, start, stop in zip(views, starts, stops, strict=True):
        target = np.full(len(view.segment.passages), _NOWHERE, np.uint32)
        begin = begins[done : done + len(start)]
        target[spread(start, stop)] = spread(begin, begin + stop - start)
        targets.append(target)
        done += len(start)
    firsts = np.searchsorted(np.concatenate(ranks)[order], np.arange(len(used) + 1)).astype(np.int64)
    return _Layout(tuple(used), firsts, ids[order], runs, tuple(targets))


def _merge_postings(views: Sequence[SegmentView], layout: _Layout, allocate: Allocate) -> dict[str, NDArray[Any]]:
    kept = [_count_kept(view, target) for view, target in zip(views, layout.rows, strict=True)]
    union = np.unique(np.concatenate([view.segment.terms[n > 0] for view, n in zip(views, kept, strict=True)]))
    sizes = np.zeros(len(union), np.int64)
    for view, number in zip(views, kept, strict=True):
        sizes[np.searchsorted(union, view.segment.terms[number > 0])] += number[number > 0]
    terms = _put(allocate, "terms", union, np.int64)
    offsets = _put(allocate, "offsets", np.concatenate(([0], np.cumsum(sizes))), np.int64)
    number = int(offsets[-1])
    rows, counts = allocate("rows", np.uint32, (number,)), allocate("counts", np.uint8, (number,))
    for first, last in _portions(offsets):
        keys = np.concatenate(
            [_keys(view, target, union[first:last]) for view, target in zip(views, layout.rows, strict=True)]
        )
        keys.sort(kind="stable")  # of a few ascending parts, which this kind makes use of
        part = slice(offsets[first], offsets[last])
        rows[part], counts[part] = (keys >> np.uint64(8)).astype(np.uint32), keys.astype(np.uint8)
    return {"terms": terms, "offsets": offsets, "rows": rows, "counts": counts}


def _count_kept(view: SegmentView, target: NDArray[np.uint32]) -> NDArray[np.int64]:
    """By term, how many postings still hold."""
    segment = view.segment
    if not view.dead:
        return np.diff(segment.offsets)
    parts = [np.zeros(0, np.int64)]
    for first, last in _portions(segment.offsets):
        begins = segment.offsets[first:last] - segment.offsets[first]
        holds = target[segment.rows[segment.offsets[first] : segment.offsets[last]]] != _NOWHERE
        parts.append(np.add.reduceat(holds, begins, dtype=np.int64))
    return np.concatenate(parts)


def _keys(view: SegmentView, target: NDArray[np.uint32], terms: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The postings of some terms as numbers that are in their order: which of the terms, the new row, the count."""
    segment = view.segment
    first, last = np.searchsorted(segment.terms, (terms[0], terms[-1]), "left")
    last += last < len(segment.terms) and segment.terms[last] == terms[-1]
    start, stop = segment.offsets[first], segment.offsets[last]
    which = np.repeat(np.searchsorted(terms, segment.terms[first:last]), np.diff(segment.offsets[first : last + 1]))
    rows = target[segment.rows[start:stop]]
    keys = (which.astype(np.uint64) << np.uint64(40)) | (rows.astype(np.uint64) << np.uint64(8))
    keys |= segment.counts[start:stop]
    return keys[rows != _NOWHERE] if view.dead else keys


def _portions(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of terms that have not too many postings together."""
    first = 0
    while first < len(offsets) - 1:
        last = max(first + 1, int(np.searchsorted(offsets, int(offsets[first]) + PORTION, "right")) - 1)
        yield first, last
        first = last


def _merge_matrices(views: Sequence[SegmentView], layout: _Layout, key: Key, allocate: Allocate) -> QuantisedVectors:
    parts = [
        (matrix, target[matrix.rows])
        for view, target in zip(views, layout.rows, strict=True)
        if (matrix := view.segment.matrices.get(key)) is not None
    ]
    rows = np.sort(np.concatenate([target[target != _NOWHERE] for _, target in parts]))
    model_rows = _put(allocate, matrix_name(key, "rows"), rows, np.uint32)
    values = allocate(matrix_name(key, "values"), np.int8, (len(rows), key[1]))
    scales = allocate(matrix_name(key, "scales"), np.float32, (len(rows),))
    step = max(PORTION * 16 // max(key[1], 1), 1)
    for matrix, target in parts:
        for start in range(0, len(target), step):
            kept = start + np.flatnonzero(target[start : start + step] != _NOWHERE)
            place = np.searchsorted(rows, target[kept])
            values[place], scales[place] = matrix.values[kept], matrix.scales[kept]
    return QuantisedVectors(model_rows, values, scales, *sketch(values, scales, key, allocate))
