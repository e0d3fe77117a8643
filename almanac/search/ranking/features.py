"""Features of the best candidates' texts, which rerank them.

- feedback: words that the first few have in common, which a query often leaves out (pseudo-relevance feedback)
- words of the query in the title and the headings
- words of the query next to each other
- similarity to the first few, by the vectors
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np
import orjson
from numpy.typing import NDArray

from almanac.core.database import Row
from almanac.search.analysis import analyser, highlights
from almanac.search.ranking import bm25
from almanac.search.ranking.candidates import Candidates

RERANK_DEPTH = 50
# Fitted together with KEYWORD_WEIGHT on five data sets, by a coarse grid. The cosine weighs 1.
TITLE_WEIGHT, PROXIMITY_WEIGHT, FEEDBACK_WEIGHT, SIMILARITY_WEIGHT = 0.1, 0.2, 0.4, 0.45
FEEDBACK_PASSAGES = 5
FEEDBACK_TERMS = 30
SIMILARITY_PASSAGES = 3  # the others are compared with these
PROXIMITY_PASSAGES = 10  # each is searched for adjacent words
MAX_WORDS_BETWEEN = 2  # words this close count as adjacent

_SHARPNESS = 10.0  # the higher, the more the first passages weigh against the next ones


def text_scores(
    candidates: Candidates, order: NDArray[np.intp], fused: NDArray[np.float32], rows: Mapping[int, Row]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The weighted feedback, and the weighted sum of title words and adjacent words. Both are 0 beyond the first
    fifty of `order`, the descending order of the fused scores."""
    head = order[:RERANK_DEPTH]
    head_rows = [rows.get(id) for id in candidates.ids[head].tolist()]
    feedback, text = np.zeros(len(order), np.float32), np.zeros(len(order), np.float32)
    if len(head):
        feedback[head] = FEEDBACK_WEIGHT * _feedback(fused[head], head_rows, candidates.average_length)
        text[head] = TITLE_WEIGHT * _title_shares(candidates, head_rows)
        text[head] += PROXIMITY_WEIGHT * _adjacent_shares(candidates, head_rows)
    return feedback, text


def similarity(candidates: Candidates, head: NDArray[np.intp], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The cosine of each candidate with the weighted mean of the first few, by the vectors of its model."""
    first = head[np.argsort(-values[head], kind="stable")[:SIMILARITY_PASSAGES]]
    weights = np.zeros(len(values), np.float32)
    weights[first] = np.exp(_SHARPNESS * (values[first] - values[first[0]]))
    cosines = np.zeros(len(values), np.float32)
    for places, vectors in candidates.vectors:
        mean = weights[places] @ vectors
        cosines[places] = vectors @ mean / max(float(np.linalg.norm(mean)), 1e-9)
    if candidates.has_vector.any():
        cosines[~candidates.has_vector] = cosines[candidates.has_vector].mean()
    return cosines


def _feedback(fused: NDArray[np.float32], rows: list[Row | None], average_length: float) -> NDArray[np.float32]:
    """The share of each passage in the terms that the first few have in common; the highest share is 1."""
    bags = analyser.decode_all([(row["words"] if row else None) or b"" for row in rows])
    learnt = np.sort(bags.hashes[: bags.ends[:FEEDBACK_PASSAGES][-1]])
    if not len(learnt):
        return np.zeros(len(rows), np.float32)
    learnt = learnt[np.append(True, learnt[1:] != learnt[:-1])]  # `np.unique` takes ten times as long
    places = np.minimum(learnt.searchsorted(bags.hashes), len(learnt) - 1)
    matches = np.flatnonzero(learnt[places] == bags.hashes)
    places, owners = places[matches], bags.ends.searchsorted(matches, "right")
    scores = bm25.saturate(bags.counts[matches], bm25.damp(bags.lengths, average_length)[owners])
    frequencies = np.bincount(places, minlength=len(learnt))
    scores *= np.log1p((len(rows) - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)[places]
    passage_weights = np.exp(_SHARPNESS * (fused[:FEEDBACK_PASSAGES] - fused[0]))
    passage_weights /= passage_weights.sum()
    is_first = owners < FEEDBACK_PASSAGES
    term_weights = np.bincount(places[is_first], scores[is_first] * passage_weights[owners[is_first]], len(learnt))
    if len(term_weights) > FEEDBACK_TERMS:
        term_weights[term_weights < np.partition(term_weights, -FEEDBACK_TERMS)[-FEEDBACK_TERMS]] = 0
    sums = np.bincount(owners, scores * term_weights[places], len(rows))
    return (sums / max(float(sums.max(initial=0)), 1e-9)).astype(np.float32)


def _title_shares(candidates: Candidates, rows: list[Row | None]) -> NDArray[np.float32]:
    """The share of the query's words in the title and headings of each passage, weighted by their rarity."""
    words = [(candidates.rarity(word), word) for word in dict.fromkeys(candidates.parsed.words)]
    total = max(sum(rarity for rarity, _ in words), 1e-3)
    shares = np.zeros(len(rows), np.float32)
    for place, row in enumerate(rows):
        if row is None:
            continue
        terms = _title_terms(row["title"], row["headings"])
        if not terms.isdisjoint(candidates.parsed.terms):
            shares[place] = sum(rarity for rarity, word in words if not terms.isdisjoint(word)) / total
    return shares


def _adjacent_shares(candidates: Candidates, rows: list[Row | None]) -> NDArray[np.float32]:
    """The share of the query's pairs of adjacent words that are adjacent in each passage, weighted by their rarity."""
    parsed = candidates.parsed
    pairs = [(first, second) for first, second in pairwise(parsed.words) if first != second]
    rarities = [sum(map(candidates.rarity, pair)) for pair in pairs]
    shares, total = np.zeros(len(rows), np.float32), sum(rarities)
    if not total:
        return shares
    number = {term: place for place, word in enumerate(dict.fromkeys(parsed.words)) for term in word}
    numbered = [(number[first[0]], number[second[0]]) for first, second in pairs]
    for place, row in enumerate(rows[:PROXIMITY_PASSAGES]):
        if row is not None:
            adjacent = _adjacent_words(row["text"], parsed.terms, number)
            shares[place] = sum(each for each, pair in zip(rarities, numbered, strict=True) if pair in adjacent) / total
    return shares


def _adjacent_words(text: str, terms: frozenset[str], number: Mapping[str, int]) -> set[tuple[int, int]]:
    """The pairs of numbered words of a query that are adjacent in a text, in both orders."""
    pairs: set[tuple[int, int]] = set()
    recent: list[tuple[int, int]] = []
    for start, end, term in highlights.everywhere(text, terms):
        recent = [(at, other) for at, other in recent if text.count(" ", at, start) <= MAX_WORDS_BETWEEN]
        for _, other in recent:
            pairs |= {(number[term], other), (other, number[term])}
        recent.append((end, number[term]))
    return pairs


@lru_cache(20_000)
def _title_terms(title: str, headings: str) -> frozenset[str]:
    return frozenset(analyser.terms_of(" ".join((title, *orjson.loads(headings)))))
