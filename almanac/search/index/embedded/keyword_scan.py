"""The keyword retriever of the embedded index: BM25 over slices of segments.

Terms are processed from the rarest to the most common. Once a passage that contains only the remaining terms can no
longer be among the best, these terms are only looked up in the passages found so far; the most common words then cost
almost nothing. The best passages are scored again by `bm25.score`, so this shortcut does not change the result. If a
filter leaves few passages, every term is looked up in them.
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

_SCORE_SUM_TOLERANCE = 1e-4  # more than the same sum can differ if its terms are added in another order
_SAMPLE_PASSAGES = 50_000  # from which a lower bound for the best scores is computed
MIN_FILTERED_RATIO = 16  # with fewer than one passage in 16, looking terms up in them is cheaper than reading postings

Postings = tuple[int, int]  # the first posting of a term in a segment, and the end
Located = tuple[slice | NDArray[np.int64], Segment, NDArray[np.uint32]]  # positions of rows, their segment, its rows


@dataclass(frozen=True)
class _Term:
    weight: float
    postings: tuple[Postings, ...]  # by segment


@dataclass(frozen=True)
class _ScanRows:
    """The rows to scan in all slices, numbered consecutively."""

    slices: Sequence[SegmentSlice]
    bases: NDArray[np.int64]  # by slice: the number of its first row; one more for the end
    average: float

    def gather(self, term: _Term) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the rows that contain a term, including those that the filter excludes, and the score it adds."""
        found = [
            each
            for part, base, (start, stop) in zip(self.slices, self.bases.tolist(), term.postings, strict=False)
            if start < stop
            for each in _gather(part, base, start, stop)
        ]
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        rows, counts, lengths = found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))
        return rows, np.float32(term.weight) * bm25.saturate(counts, bm25.damp(lengths, self.average))

    def locate(self, rows: NDArray[np.int64]) -> list[Located]:
        """Find the segments of rows, which are in ascending order."""
        edges = np.searchsorted(rows, self.bases).tolist()
        return [
            (slice(first, last), part.view.segment, part.rows_at(rows[first:last] - base))
            for part, base, first, last in zip(self.slices, self.bases.tolist(), edges, edges[1:], strict=False)
        ]

    def filtered(self) -> NDArray[np.int64] | None:
        """Return the rows that the filter leaves, if they are few."""
        allowed = [(base, part.allowed) for part, base in zip(self.slices, self.bases.tolist(), strict=False)]
        if not allowed or any(each is None for _, each in allowed):
            return None
        rows = np.concatenate([base + np.flatnonzero(each) for base, each in allowed if each is not None])
        return rows if MIN_FILTERED_RATIO * len(rows) <= int(self.bases[-1]) else None

    def initial_scores(self) -> NDArray[np.float32]:
        """Return 0 for each row that the filter leaves, and minus infinity for the others."""
        scores = np.zeros(int(self.bases[-1]), np.float32)
        for part, base in zip(self.slices, self.bases.tolist(), strict=False):
            if part.allowed is not None:
                scores[base : base + part.size][~part.allowed] = -np.inf
        return scores

    def added(self, term: _Term, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the score that a term adds to rows."""
        located, number = self.locate(rows), len(rows)
        damping = bm25.damp(_lengths(located, number), self.average)
        return np.float32(term.weight) * bm25.saturate(_occurrences(term, located, number), damping)


def search(slices: Sequence[SegmentSlice], terms: Sequence[int], limit: int) -> KeywordHits:
    """Return the best passages, and the statistics of the terms."""
    passages = sum(int(each.view.analysed[each.collections].sum()) for each in slices)
    length = sum(int(each.view.lengths[each.collections].sum()) for each in slices)
    average = length / passages if passages else 0.0
    distinct = list(dict.fromkeys(terms))
    postings = dict(zip(distinct, _find([each.view.segment for each in slices], distinct), strict=True))
    frequencies = {term: _frequency(slices, postings[term]) for term in distinct}
    found = {
        term: _Term(bm25.idf(passages, frequencies[term]), postings[term]) for term in distinct if frequencies[term]
    }
    scan_rows = _ScanRows(slices, np.cumsum([0, *(each.size for each in slices)]), average)
    rows = _best_rows(scan_rows, _rarest_first(found, terms), limit)
    located = scan_rows.locate(rows)
    ids = np.concatenate([np.zeros(0, np.int64), *(segment.passages[inside] for _, segment, inside in located)])
    sources = np.concatenate([np.zeros(0, np.int64), *(segment.sources_of(inside) for _, segment, inside in located)])
    scores = _score([found[term] for term in terms if term in found], located, len(rows), average)
    best = bm25.best(ids, scores, limit)
    by_term = tuple(frequencies[term] for term in terms)
    return KeywordHits(ids[best], scores[best], sources[best], passages, average, by_term)


def score(
    views: Sequence[SegmentView], hits: Hits, terms: Sequence[int], statistics: KeywordHits
) -> NDArray[np.float32]:
    """Score passages with the statistics of an earlier search for these terms."""
    found = [(view.segment, view.locate(hits.ids, hits.sources)) for view in views]
    located: list[Located] = [(which, segment, rows) for segment, (which, rows) in found if len(which)]
    postings = _find([segment for _, segment, _ in located], terms)
    weights = [bm25.idf(statistics.passages, frequency) for frequency in statistics.frequencies]
    weighted = [_Term(*each) for each in zip(weights, postings, strict=True)]
    return _score(weighted, located, len(hits.ids), statistics.average)


def _gather(
    part: SegmentSlice, base: int, start: int, stop: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint32]]]:
    segment = part.view.segment
    posting_rows = segment.rows[start:stop]
    for first, last, shift in part.in_spans(posting_rows):
        rows = posting_rows[first:last]
        yield rows + np.int64(base + shift), segment.counts[start + first : start + last], segment.lengths[rows]


def _occurrences(term: _Term, located: Sequence[Located], number: int) -> NDArray[np.uint8]:
    counts = np.zeros(number, np.uint8)
    for (positions, segment, rows), (start, stop) in zip(located, term.postings, strict=True):
        if start < stop and len(rows):
            posting_rows = segment.rows[start:stop]
            at = np.minimum(posting_rows.searchsorted(rows), stop - start - 1)
            counts[positions] = np.where(posting_rows[at] == rows, segment.counts[start:stop][at], 0)
    return counts


def _lengths(located: Sequence[Located], number: int) -> NDArray[np.uint32]:
    lengths = np.zeros(number, np.uint32)
    for positions, segment, rows in located:
        lengths[positions] = segment.lengths[rows]
    return lengths


def _score(terms: Sequence[_Term], located: Sequence[Located], number: int, average: float) -> NDArray[np.float32]:
    counts = np.array([_occurrences(term, located, number) for term in terms]).reshape(len(terms), number)
    return bm25.score(counts, _lengths(located, number), average, np.array([term.weight for term in terms]))


def _find(segments: Sequence[Segment], terms: Sequence[int]) -> list[tuple[Postings, ...]]:
    """Find the postings of each term in each segment."""
    hashes = np.array(terms, np.int64)
    found: list[list[Postings]] = []
    for segment in segments:
        at = np.minimum(np.searchsorted(segment.terms, hashes), max(len(segment.terms) - 1, 0))
        is_here = segment.terms[at] == hashes if len(segment.terms) else np.zeros(len(hashes), np.bool_)
        ends = np.where(is_here, segment.offsets[at + is_here], segment.offsets[at])
        found.append(list(zip(segment.offsets[at].tolist(), ends.tolist(), strict=True)))
    return list(zip(*found, strict=True)) if segments else [() for _ in terms]


def _frequency(slices: Sequence[SegmentSlice], postings: Sequence[Postings]) -> int:
    """Count the live passages of the collections that contain a term."""
    return sum(
        part.count_live(part.view.segment.rows[start:stop])
        for part, (start, stop) in zip(slices, postings, strict=True)
        if start < stop
    )


def _rarest_first(found: dict[int, _Term], terms: Sequence[int]) -> list[_Term]:
    """Sort the terms by weight. A term that is twice in the query has twice the weight."""
    counted = Counter(terms)
    weighted = [_Term(term.weight * counted[hash], term.postings) for hash, term in found.items()]
    return sorted(weighted, key=lambda term: -term.weight)


def _best_rows(scan_rows: _ScanRows, terms: Sequence[_Term], limit: int) -> NDArray[np.int64]:
    """Return the best rows and few others, in ascending order."""
    rest = np.cumsum([0.0, *(term.weight for term in reversed(terms))])[::-1]  # the most that the terms from i on add
    rows, bound, done = scan_rows.filtered(), 0.0, 0
    if rows is None:
        rows, scores, bound, done = _gather_rarest(scan_rows, terms, rest, limit)
    else:
        scores = np.zeros(len(rows), np.float32)
    for number in range(done, len(terms)):
        can_be_best = scores >= bound - rest[number]
        rows, scores = rows[can_be_best], scores[can_be_best]
        scores = scores + scan_rows.added(terms[number], rows)
        bound = max(bound, _lowest_of_best(scores, limit))
    return rows[(scores > 0) & (scores >= _lowest_of_best(scores, limit))]


def _gather_rarest(
    scan_rows: _ScanRows, terms: Sequence[_Term], rest: NDArray[np.float64], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], float, int]:
    """Return the rows that contain the rarest terms, their scores by these terms, a lower bound for the best scores,
    and the number of terms processed."""
    scores = scan_rows.initial_scores()
    found: list[NDArray[np.int64]] = []
    bound, done = 0.0, 0
    while done < len(terms) and bound <= rest[done]:
        rows, added = scan_rows.gather(terms[done])
        before = scores[rows]
        scores[rows] = before + added
        found.append(rows[before == 0])
        done += 1
        if rest[0] - rest[done] > rest[done]:
            bound = _lowest_of_sample(scores, found, limit)
    rows = np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)
    return rows, scores[rows], bound, done


def _lowest_of_sample(scores: NDArray[np.float32], found: Sequence[NDArray[np.int64]], limit: int) -> float:
    """Return a lower bound for the best scores, from the rows that were found first: they contain the rarest terms."""
    sample, number = list[NDArray[np.int64]](), 0
    for rows in found:
        sample.append(rows[: _SAMPLE_PASSAGES - number])
        number += len(sample[-1])
    return _lowest_of_best(scores[np.concatenate(sample)], limit)


def _lowest_of_best(scores: NDArray[np.float32], limit: int) -> float:
    """Return the lowest of the `limit` best scores, less the tolerance; 0 if there are fewer scores."""
    if not 0 < limit <= len(scores):
        return 0.0
    return float(np.partition(scores, len(scores) - limit)[len(scores) - limit]) * (1 - _SCORE_SUM_TOLERANCE)
