"""Postings: the words leg of an embedded search, BM25 over parts of segments.

Terms are taken rarest first. Once the best found so far cannot be beaten by a passage that has none but the terms still
to come, these are only looked up in what was found; so the commonest words cost next to nothing. The best are then
scored as `bm25.score` says, so that the shortcut cannot be seen in the result. Where a filter leaves few passages,
every term is looked up in these.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from almanac.search.index.embedded.segment_view import SegmentSlice, SegmentView
from almanac.search.index.embedded.segments import Segment
from almanac.search.index.protocol import Hits, KeywordHits
from almanac.search.ranking import bm25

_MARGIN = 1e-4  # what sums in another order may differ by, with room to spare
_SAMPLE = 50_000  # passages by which it is judged how good the best are
_FEW = 16  # one in so many: to look terms up in them is then cheaper than to go through lists


@dataclass(frozen=True)
class _Term:
    """A term of the question, and where its postings are in each segment."""

    weight: float
    lists: tuple[tuple[int, int], ...]


# Which of some rows are in a segment, and which of its rows they are.
Spot = tuple[slice | NDArray[np.int64], Segment, NDArray[np.uint32]]


@dataclass(frozen=True)
class _Space:
    """The rows of all parts, numbered on from one to the next."""

    parts: Sequence[SegmentSlice]
    bases: NDArray[np.int64]  # where each part's rows begin; one more for the end
    average: float

    def gather(self, term: _Term) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The rows that have a term, whether they may be found or not, and what it adds to their scores."""
        found = [
            each
            for part, base, (start, stop) in zip(self.parts, self.bases.tolist(), term.lists, strict=False)
            if start < stop
            for each in _gather(part, base, start, stop)
        ]
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        rows, counts, lengths = found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))
        return rows, np.float32(term.weight) * bm25.saturate(counts, bm25.damp(lengths, self.average))

    def locate(self, rows: NDArray[np.int64]) -> list[Spot]:
        """Where rows are, given in ascending order."""
        edges = np.searchsorted(rows, self.bases).tolist()
        return [
            (slice(first, last), part.view.segment, part.rows_at(rows[first:last] - base))
            for part, base, first, last in zip(self.parts, self.bases.tolist(), edges, edges[1:], strict=False)
        ]

    def few(self) -> NDArray[np.int64] | None:
        """The rows that may be found, if they are few."""
        allowed = [(base, part.allowed) for part, base in zip(self.parts, self.bases.tolist(), strict=False)]
        if not allowed or any(each is None for _, each in allowed):
            return None
        rows = np.concatenate([base + np.flatnonzero(each) for base, each in allowed if each is not None])
        return rows if _FEW * len(rows) <= int(self.bases[-1]) else None

    def zeros(self) -> NDArray[np.float32]:
        """A score for each row: 0, or less than any for one that may not be found."""
        scores = np.zeros(int(self.bases[-1]), np.float32)
        for part, base in zip(self.parts, self.bases.tolist(), strict=False):
            if part.allowed is not None:
                scores[base : base + part.size][~part.allowed] = -np.inf
        return scores


def _gather(
    part: SegmentSlice, base: int, start: int, stop: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint32]]]:
    segment = part.view.segment
    listed = segment.rows[start:stop]
    edges = listed.searchsorted(part.spans).tolist()
    for span, (first, last) in enumerate(zip(edges[::2], edges[1::2], strict=True)):
        if first < last:
            rows = listed[first:last]
            shift = np.int64(base + int(part.begins[span]) - int(part.spans[2 * span]))
            yield rows + shift, segment.counts[start + first : start + last], segment.lengths[rows]


def _look_up(term: _Term, spots: Sequence[Spot], number: int) -> NDArray[np.uint8]:
    """How often a term stands in rows."""
    counts = np.zeros(number, np.uint8)
    for (place, segment, rows), (start, stop) in zip(spots, term.lists, strict=True):
        if start < stop and len(rows):
            listed = segment.rows[start:stop]
            at = np.minimum(listed.searchsorted(rows), stop - start - 1)
            counts[place] = np.where(listed[at] == rows, segment.counts[start:stop][at], 0)
    return counts


def _lengths(spots: Sequence[Spot], number: int) -> NDArray[np.uint32]:
    lengths = np.zeros(number, np.uint32)
    for place, segment, rows in spots:
        lengths[place] = segment.lengths[rows]
    return lengths


def search(parts: Sequence[SegmentSlice], terms: Sequence[int], limit: int) -> KeywordHits:
    """The passages that match best, and what is known of the words."""
    passages = sum(int(part.view.read[part.collections].sum()) for part in parts)
    length = sum(int(part.view.lengths[part.collections].sum()) for part in parts)
    average = length / passages if passages else 0.0
    asked = dict.fromkeys(terms)
    lists = _find([part.view.segment for part in parts], list(asked))
    frequencies = {term: _frequency(parts, lists[place]) for place, term in enumerate(asked)}
    known = {
        term: _Term(bm25.idf(passages, frequencies[term]), lists[place])
        for place, term in enumerate(asked)
        if frequencies[term]
    }
    space = _Space(parts, np.cumsum([0, *(part.size for part in parts)]), average)
    rows = _best_rows(space, _weighed(known, terms), limit)
    spots = space.locate(rows)
    ids = np.concatenate([np.zeros(0, np.int64), *(segment.passages[inside] for _, segment, inside in spots)])
    sources = np.concatenate([np.zeros(0, np.int64), *(segment.sources_of(inside) for _, segment, inside in spots)])
    scores = _score([known[term] for term in terms if term in known], spots, len(rows), average)
    best = bm25.best(ids, scores, limit)
    of_terms = tuple(frequencies[term] for term in terms)
    return KeywordHits(ids[best], scores[best], sources[best], passages, average, of_terms)


def weigh(views: Sequence[SegmentView], hits: Hits, terms: Sequence[int], found: KeywordHits) -> NDArray[np.float32]:
    """What passages would have scored in a search that found so much with these terms."""
    located = [(view.segment, view.locate(hits.ids, hits.sources)) for view in views]
    spots: list[Spot] = [(which, segment, rows) for segment, (which, rows) in located if len(which)]
    lists = _find([segment for _, segment, _ in spots], terms)
    known = zip(found.frequencies, lists, strict=True)
    return _score(
        [_Term(bm25.idf(found.passages, each), at) for each, at in known], spots, len(hits.ids), found.average
    )


def _score(terms: Sequence[_Term], spots: Sequence[Spot], number: int, average: float) -> NDArray[np.float32]:
    """The scores of some rows."""
    counts = np.array([_look_up(term, spots, number) for term in terms]).reshape(len(terms), number)
    return bm25.score(counts, _lengths(spots, number), average, np.array([term.weight for term in terms]))


def _find(segments: Sequence[Segment], terms: Sequence[int]) -> list[tuple[tuple[int, int], ...]]:
    """Where the postings of each term are in each segment."""
    hashes = np.array(terms, np.int64)
    found: list[list[tuple[int, int]]] = []
    for segment in segments:
        at = np.minimum(np.searchsorted(segment.terms, hashes), max(len(segment.terms) - 1, 0))
        here = segment.terms[at] == hashes if len(segment.terms) else np.zeros(len(hashes), np.bool_)
        ends = np.where(here, segment.offsets[at + here], segment.offsets[at])
        found.append(list(zip(segment.offsets[at].tolist(), ends.tolist(), strict=True)))
    return list(zip(*found, strict=True)) if segments else [() for _ in terms]


def _frequency(parts: Sequence[SegmentSlice], lists: Sequence[tuple[int, int]]) -> int:
    """In how many passages of the collections a term is."""
    number = 0
    for part, (start, stop) in zip(parts, lists, strict=True):
        if start < stop:
            listed = part.view.segment.rows[start:stop]
            edges = listed.searchsorted(part.ranges)
            number += int(edges[1::2].sum() - edges[::2].sum())
            number -= _dead_among(part, listed, int(edges[0]), int(edges[-1]))
    return number


def _dead_among(part: SegmentSlice, listed: NDArray[np.uint32], first: int, last: int) -> int:
    """How many postings are of rows that no longer hold."""
    dead = part.dead_rows
    if not len(dead) or first == last:
        return 0
    listed = listed[first:last]
    if len(listed) < 16 * len(dead):  # to look at each posting is then the cheaper way
        listed, dead = dead, listed
    at = np.minimum(np.searchsorted(listed, dead), len(listed) - 1)
    return int(np.count_nonzero(listed[at] == dead))


def _weighed(known: dict[int, _Term], terms: Sequence[int]) -> list[_Term]:
    """The terms, the rarest first; one that was asked for twice counts twice."""
    counted = Counter(terms)
    weighed = [_Term(term.weight * counted[hash], term.lists) for hash, term in known.items()]
    return sorted(weighed, key=lambda term: -term.weight)


def _best_rows(space: _Space, terms: Sequence[_Term], limit: int) -> NDArray[np.int64]:
    """Rows among which the best are, ascending; few others."""
    rest = np.cumsum([0.0, *(term.weight for term in reversed(terms))])[::-1]  # what the terms from each on may add
    few = space.few()
    started = (few, np.zeros(len(few), np.float32), 0.0, 0) if few is not None else _begin(space, terms, rest, limit)
    rows, reached, edge, done = started
    for place in range(done, len(terms)):
        kept = reached >= edge - rest[place]
        rows, reached = rows[kept], reached[kept]
        reached = reached + _added(space, terms[place], rows)
        edge = max(edge, _lowest_of_best(reached, limit) * (1 - _MARGIN))
    return rows[(reached > 0) & (reached >= _lowest_of_best(reached, limit) * (1 - _MARGIN))]


def _begin(
    space: _Space, terms: Sequence[_Term], rest: NDArray[np.float64], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], float, int]:
    """Rows found by the rarest terms, what these add, what the best have at least, and how many terms that took."""
    scores = space.zeros()
    found: list[NDArray[np.int64]] = []
    edge, done = 0.0, 0
    while done < len(terms) and edge <= rest[done]:
        rows, added = space.gather(terms[done])
        before = scores[rows]
        scores[rows] = before + added
        found.append(rows[before == 0])
        done += 1
        if rest[0] - rest[done] > rest[done]:
            edge = _edge(scores, found, limit)
    rows = np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)
    return rows, scores[rows], edge, done


def _added(space: _Space, term: _Term, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    spots, number = space.locate(rows), len(rows)
    damping = bm25.damp(_lengths(spots, number), space.average)
    return np.float32(term.weight) * bm25.saturate(_look_up(term, spots, number), damping)


def _edge(scores: NDArray[np.float32], found: Sequence[NDArray[np.int64]], limit: int) -> float:
    """A score that the best have at least: by the first of what was found, which have the rarest terms."""
    sample, number = list[NDArray[np.int64]](), 0
    for rows in found:
        sample.append(rows[: _SAMPLE - number])
        number += len(sample[-1])
    return _lowest_of_best(scores[np.concatenate(sample)], limit) * (1 - _MARGIN)


def _lowest_of_best(scores: NDArray[np.float32], limit: int) -> float:
    """The lowest of the best scores; 0 where there are not as many."""
    if not 0 < limit <= len(scores):
        return 0.0
    return float(np.partition(scores, len(scores) - limit)[len(scores) - limit])
