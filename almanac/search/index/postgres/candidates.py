"""Candidates of the words leg in PostgreSQL: which lists each is on, and so what it can be worth at most.

To read what a passage has of a question costs more than to find that it has something. A passage that is on few lists,
or only on those of common terms, is worth no more than these terms are; where others that have been read are worth more
than that, it cannot be among the best and is not read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from almanac.core.database import Row
from almanac.search.analysis import analyser
from almanac.search.index.postgres.term_counts import Lists, PostingChoice
from almanac.search.index.protocol import Hits
from almanac.search.index.tables import LEVELS, USUAL
from almanac.search.ranking import bm25

_ROUNDING = 1 + 1e-5  # scores are sums of 32 bits


@dataclass(frozen=True, slots=True)
class CandidateLists:
    """Passages that are on some lists."""

    ids: NDArray[np.int64]
    is_on: NDArray[np.bool_]  # a row for each list

    @staticmethod
    def of(lists: Sequence[bytes]) -> "CandidateLists":
        """Those on these lists, each of which is their ids as PostgreSQL sends them."""
        found = np.concatenate([np.frombuffer(each, ">i8") for each in lists]).astype(np.int64)
        ids, places = np.unique(found, return_inverse=True)
        is_on = np.zeros((len(lists), len(ids)), np.bool_)
        is_on[np.repeat(np.arange(len(lists)), [len(each) // 8 for each in lists]), places] = True
        return CandidateLists(ids, is_on)

    def most(self, followed: Lists, weights: NDArray[np.float64], average: float) -> NDArray[np.float64]:
        """What each can be worth at most. The first lists are the ones that were followed to their ends, one of a term
        at most; whoever is not on it has none of the term, or not enough for its level."""
        most = np.full(len(self.ids), np.delete(weights, [place for _, place in followed]).sum(), np.float64)
        for is_on, (level, place) in zip(self.is_on[: len(followed)], followed, strict=True):
            most += weights[place] * np.where(is_on, 1.0, _ceiling(level, average))
        return most * _ROUNDING


def _ceiling(level: int, average: float) -> float:
    """What a term counts for at most where it does not reach a level, which is judged by another average length."""
    odds = LEVELS[level] / (1 - LEVELS[level]) * max(1.0, average / USUAL)
    return odds / (1 + odds)


@dataclass(frozen=True, slots=True)
class CandidateScoring:
    """What candidates are judged by."""

    terms: NDArray[np.int64]
    frequencies: NDArray[np.int64]
    weights: NDArray[np.float64]  # of each term: its rarity, as often as it is asked for
    average: float

    def judge(self, rows: Sequence[Row], limit: int) -> Hits:
        """The best of some passages. It takes milliseconds: not on the loop."""
        ids, sources = (np.fromiter((row[name] for row in rows), np.int64, len(rows)) for name in ("id", "source_id"))
        counts, lengths = analyser.occurrences([row["words"] for row in rows], self.terms)
        scores = bm25.score(counts, lengths, self.average, self.weights)
        best = bm25.best(ids, scores, limit)
        return Hits(ids[best], scores[best], sources[best])


@dataclass(frozen=True, slots=True)
class ScopeSize:
    """How much there is in a scope."""

    passages: int
    average: float
    kept: int  # passages that the scope's condition leaves


@dataclass(frozen=True, slots=True)
class Plan:
    """How the passages that have some terms are found."""

    terms: NDArray[np.int64]
    size: ScopeSize
    frequencies: NDArray[np.int64]  # of each term, as far as is known beforehand
    whole: list[int]  # places of the terms whose whole lists are short enough to be counted
    choice: PostingChoice  # of lists, so that the best are among the candidates
    most: int  # passages that are taken from a list too long to follow

    def judging(self, asked: Mapping[int, int], exact: NDArray[np.int64]) -> CandidateScoring:
        """How candidates are judged, given how often each term is asked for and how long the whole lists are."""
        frequencies = self.frequencies.copy()
        frequencies[self.whole] = exact
        frequencies = np.minimum(frequencies, self.size.passages)  # which is a few seconds old where it is large
        weights = [
            asked[term] * bm25.idf(self.size.passages, number)
            for term, number in zip(self.terms.tolist(), frequencies.tolist(), strict=True)
        ]
        return CandidateScoring(self.terms, frequencies, np.array(weights, np.float64), self.size.average)

    def order(
        self, asked: Mapping[int, int], lists: Sequence[bytes], exact: NDArray[np.int64] | None
    ) -> tuple[CandidateScoring, NDArray[np.int64], NDArray[np.float64]]:
        """The candidates, those that can be worth most first, and what each can be worth; and what they are judged by.
        `exact` is how long the whole lists are, if a condition hides some of that. Not on the loop either."""
        listed, followed = CandidateLists.of(lists), self.choice.followed
        is_whole = [level == 0 for level, _ in followed]
        found = np.count_nonzero(listed.is_on[: len(followed)], axis=1)[is_whole]
        judging = self.judging(asked, found if exact is None else exact)
        most = listed.most(followed, judging.weights, self.size.average)
        order = np.argsort(-most, kind="stable")
        return judging, listed.ids[order], most[order]
