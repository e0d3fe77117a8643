"""Candidates of the keyword retriever in PostgreSQL, ordered by the highest score that each can have.

Reading the terms of a passage costs more than finding its id on a posting list. A passage that is on few lists, or only
on lists of common terms, cannot score more than these terms allow. If enough passages with higher scores have been
read, it is not among the best and is not read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from almanac.core.database import Row
from almanac.search.analysis import analyser
from almanac.search.index.postgres.term_counts import PostingChoice, PostingLists
from almanac.search.index.protocol import Hits
from almanac.search.index.tables import ASSUMED_AVERAGE_TERMS, LEVEL_MIN_VALUES
from almanac.search.ranking import bm25

_ROUNDING = 1 + 1e-5  # scores are sums of 32-bit numbers


@dataclass(frozen=True, slots=True)
class CandidateLists:
    """The passages on some posting lists."""

    ids: NDArray[np.int64]
    is_on: NDArray[np.bool_]  # by list, by passage

    @staticmethod
    def of(lists: Sequence[bytes]) -> "CandidateLists":
        """Decode lists of passage ids in PostgreSQL's binary format."""
        found = np.concatenate([np.frombuffer(each, ">i8") for each in lists]).astype(np.int64)
        ids, positions = np.unique(found, return_inverse=True)
        is_on = np.zeros((len(lists), len(ids)), np.bool_)
        is_on[np.repeat(np.arange(len(lists)), [len(each) // 8 for each in lists]), positions] = True
        return CandidateLists(ids, is_on)

    def max_scores(self, followed: PostingLists, weights: NDArray[np.float64], average: float) -> NDArray[np.float64]:
        """Return the highest score that each passage can have. The first lists are those that were read completely, at
        most one for each term. A passage that is not on such a list does not reach the level of the list."""
        highest = np.full(len(self.ids), np.delete(weights, [term for _, term in followed]).sum(), np.float64)
        for is_on, (level, term) in zip(self.is_on[: len(followed)], followed, strict=True):
            highest += weights[term] * np.where(is_on, 1.0, _max_value_below(level, average))
        return highest * _ROUNDING


def _max_value_below(level: int, average: float) -> float:
    """Return the highest BM25 value of a term that does not reach a level. Levels are assigned with an assumed average
    length, so the value is converted to the present average."""
    odds = LEVEL_MIN_VALUES[level] / (1 - LEVEL_MIN_VALUES[level]) * max(1.0, average / ASSUMED_AVERAGE_TERMS)
    return odds / (1 + odds)


@dataclass(frozen=True, slots=True)
class CandidateScoring:
    """The terms of a query and the statistics for their BM25 scores."""

    terms: NDArray[np.int64]
    frequencies: NDArray[np.int64]
    weights: NDArray[np.float64]  # by term: the inverse document frequency times its number in the query
    average: float

    def score(self, rows: Sequence[Row], limit: int) -> Hits:
        """Return the best passages. This takes milliseconds, so it runs in a thread."""
        ids, sources = (np.fromiter((row[name] for row in rows), np.int64, len(rows)) for name in ("id", "source_id"))
        counts, lengths = analyser.occurrences([row["words"] for row in rows], self.terms)
        scores = bm25.score(counts, lengths, self.average, self.weights)
        best = bm25.best(ids, scores, limit)
        return Hits(ids[best], scores[best], sources[best])


@dataclass(frozen=True, slots=True)
class ScopeSize:
    passages: int
    average: float  # passage length in terms
    matching: int  # passages that match the filter


@dataclass(frozen=True, slots=True)
class CandidatePlan:
    """The posting lists that a search reads."""

    terms: NDArray[np.int64]
    size: ScopeSize
    frequencies: NDArray[np.int64]  # by term, as far as they are known before the search
    counted: list[int]  # positions of the terms whose whole list is short enough to be counted
    choice: PostingChoice
    sample_size: int  # passages that are read from a list that is too long to read completely

    def scoring(self, query: Mapping[int, int], counts: NDArray[np.int64]) -> CandidateScoring:
        """Return the scoring, given the number of each term in the query, and the counts of the counted terms."""
        frequencies = self.frequencies.copy()
        frequencies[self.counted] = counts
        frequencies = np.minimum(frequencies, self.size.passages)  # the size of a large scope is a few seconds old
        weights = [
            query[term] * bm25.idf(self.size.passages, number)
            for term, number in zip(self.terms.tolist(), frequencies.tolist(), strict=True)
        ]
        return CandidateScoring(self.terms, frequencies, np.array(weights, np.float64), self.size.average)

    def order(
        self, query: Mapping[int, int], lists: Sequence[bytes], counts: NDArray[np.int64] | None
    ) -> tuple[CandidateScoring, NDArray[np.int64], NDArray[np.float64]]:
        """Return the scoring, and the candidates with their highest possible scores, in descending order. `counts` is
        needed if a filter hides some of the passages on the lists. This runs in a thread too."""
        candidates, followed = CandidateLists.of(lists), self.choice.followed
        is_whole = [level == 0 for level, _ in followed]
        found = np.count_nonzero(candidates.is_on[: len(followed)], axis=1)[is_whole]
        scoring = self.scoring(query, found if counts is None else counts)
        highest = candidates.max_scores(followed, scoring.weights, self.size.average)
        order = np.argsort(-highest, kind="stable")
        return scoring, candidates.ids[order], highest[order]
