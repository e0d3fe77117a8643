"""Reciprocal rank fusion: scores sources by their ranks in the keyword hits and in the vector hits."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from almanac.search.ranking import features
from almanac.search.ranking.candidates import KEYWORD_WEIGHT, Candidates, RankedPassage

RRF_K = 60  # the constant of reciprocal rank fusion
TITLE_MATCH_SCORE = 0.5  # added to the keyword share, of which 1 is a perfect match


def fuse_by_rank(candidates: Candidates) -> list[RankedPassage]:
    """The best passage of each source. A source that is first in both lists scores 1; first in its only list, 0.5.

    Equal scores are ordered by the sum of both retrievers' scores. With `rerank`, the text of the best passages
    changes their ranks.
    """
    keyword, vector = candidates.shares.copy(), candidates.cosines.copy()
    if candidates.parsed.query.rerank and candidates.has_vector.any():  # without vectors, the text adds nothing
        fused = candidates.fused()
        feedback, text = features.text_scores(candidates, candidates.order(fused), fused, candidates.rows)
        keyword, vector = KEYWORD_WEIGHT * keyword + feedback + text, vector + feedback
    keyword += TITLE_MATCH_SCORE * candidates.has_title_match
    scores: dict[int, float] = {}
    best: dict[int, int] = {}
    has_words = (candidates.shares > 0) | candidates.has_title_match
    for values, is_hit in ((keyword, has_words), (vector, candidates.has_vector)):
        for rank, (source, place) in enumerate(_best_per_source(candidates, values, is_hit)):
            scores[source] = scores.get(source, 0.0) + (RRF_K + 1) / (2 * (RRF_K + 1 + rank))
            best.setdefault(source, place)
    order = sorted(scores, key=lambda source: (-scores[source], -float(keyword[best[source]] + vector[best[source]])))
    rounded = [round(min(scores[source], 1.0), 4) for source in order]
    return candidates.ranked([best[source] for source in order], rounded, candidates.rows)


def _best_per_source(
    candidates: Candidates, values: NDArray[np.float32], is_hit: NDArray[np.bool_]
) -> Iterator[tuple[int, int]]:
    """The sources of hits in descending order, each with the place of its best passage."""
    seen: set[int] = set()
    places: list[int] = candidates.order(values).tolist()
    for place in places:
        source = candidates.sources[place]
        if is_hit[place] and source not in seen:
            seen.add(source)
            yield source, place
