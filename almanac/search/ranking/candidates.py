"""Candidates: the hits of all retrievers with their scores on one scale."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from almanac.core.database import Row
from almanac.search.analysis import analyser
from almanac.search.query import ParsedQuery

KEYWORD_WEIGHT = 0.6  # the cosine weighs 1; fitted with the weights in features.py


class RankedPassage(NamedTuple):
    """A candidate with its final score."""

    id: int
    source: int
    score: float
    legs: tuple[str, ...]  # the retrievers that found it
    row: Row | None  # if a stage has read it


@dataclass(frozen=True, slots=True)
class Candidates:
    """Arrays and lists with one element per passage."""

    parsed: ParsedQuery
    ids: NDArray[np.int64]
    sources: list[int]
    legs: list[tuple[str, ...]]
    has_title_match: NDArray[np.bool_]  # the title contains the query
    shares: NDArray[np.float32]  # the keyword score, divided by that of a perfect match
    covered_shares: NDArray[np.float32]  # the same, lower if the query has words that no passage contains
    cosines: NDArray[np.float32]
    has_vector: NDArray[np.bool_]
    vectors: list[tuple[list[int], NDArray[np.float32]]]  # per model: places in these lists, and their vectors
    rarities: Mapping[int, float]  # BM25's idf by term hash
    average_length: float  # of a passage, in terms
    rows: Mapping[int, Row]  # by passage id; empty unless the profile scores by rank

    def fused(self) -> NDArray[np.float32]:
        """The weighted sums of both scores."""
        return KEYWORD_WEIGHT * self.shares + self.cosines

    def order(self, values: NDArray[np.float32]) -> NDArray[np.intp]:
        """The places in descending order of values, among equals the lower id first."""
        return np.lexsort((self.ids, -values))

    def rarity(self, word: tuple[str, ...]) -> float:
        """The rarity of a word's rarest term."""
        return max(self.rarities.get(analyser.term_hash(term), 0.0) for term in word)

    def ranked(self, places: Sequence[int], scores: Sequence[float], rows: Mapping[int, Row]) -> list[RankedPassage]:
        """The passages at these places with their final scores."""
        ids, sources, legs = self.ids.tolist(), self.sources, self.legs
        return [
            RankedPassage(ids[place], sources[place], score, legs[place], rows.get(ids[place]))
            for place, score in zip(places, scores, strict=True)
        ]
