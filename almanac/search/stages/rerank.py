"""Rerank: order the candidates, compare the text of the best ones with the query, and calibrate the scores."""

import time
from collections.abc import Mapping

import numpy as np
import structlog
from numpy.typing import NDArray

from almanac.core.database import Row
from almanac.core.fair_slots import compute_for
from almanac.search.ranking import calibration, features
from almanac.search.ranking.candidates import KEYWORD_WEIGHT, Candidates, RankedPassage
from almanac.search.ranking.features import RERANK_DEPTH
from almanac.search.ranking.rank_fusion import fuse_by_rank
from almanac.search.resources import SearchResources, SearchRun

# The weights of the sum that becomes a probability; the cosine weighs 1. The keyword share and the feedback order
# passages better than they measure them, because data sets differ in how much of a query an answer repeats. The
# similarity measures almost as well as it orders.
_CALIBRATED_KEYWORDS, _CALIBRATED_FEEDBACK, _CALIBRATED_SIMILARITY = 0.1, 0.08, 0.4

_log = structlog.get_logger("almanac.search")


async def rerank(resources: SearchResources, run: SearchRun, candidates: Candidates) -> list[RankedPassage]:
    """The candidates with their final scores, best first."""
    begun = time.perf_counter()
    ranked = await _rank(resources, run, candidates)
    run.record("rank", begun)
    return ranked


async def _rank(resources: SearchResources, run: SearchRun, candidates: Candidates) -> list[RankedPassage]:
    query = candidates.parsed.query
    if query.profile.score == "rank":
        return fuse_by_rank(candidates)
    if query.mode == "vector":
        return _calibrated(candidates, "vector", candidates.cosines, candidates.cosines, {})
    if not candidates.vectors:
        return _calibrated(candidates, "keyword", candidates.shares, candidates.covered_shares, {})
    fused, rows = candidates.fused(), dict[int, Row]()
    if query.rerank:
        order = candidates.order(fused)
        rows = await resources.rows(candidates.ids[order[:RERANK_DEPTH]].tolist())
        try:
            terms = len(candidates.parsed.terms)
            return await compute_for(terms, _rerank_by_text, candidates, order, fused, rows)
        except (ArithmeticError, IndexError, ValueError) as error:  # the fused order is better than no answer
            _log.error("rerank_failed", error=type(error).__name__)
            run.notes.append("Reranking failed. The results are in the order before it.")
    covered = KEYWORD_WEIGHT * candidates.covered_shares + candidates.cosines
    return _calibrated(candidates, "fused", fused, covered, rows)


def _rerank_by_text(
    candidates: Candidates, order: NDArray[np.intp], fused: NDArray[np.float32], rows: Mapping[int, Row]
) -> list[RankedPassage]:
    if not len(order):
        return []
    head, rest = order[:RERANK_DEPTH], order[RERANK_DEPTH:]
    feedback, text = features.text_scores(candidates, order, fused, rows)
    values = fused + feedback + text
    similarity = features.similarity(candidates, head, values)
    values += features.SIMILARITY_WEIGHT * similarity
    calibrated: NDArray[np.float32] = (
        _CALIBRATED_KEYWORDS * candidates.covered_shares
        + candidates.cosines
        + _CALIBRATED_FEEDBACK * feedback
        + _CALIBRATED_SIMILARITY * similarity
    ).astype(np.float32)
    without = ~candidates.has_vector
    calibrated[without] = calibration.from_keyword_shares("hybrid", candidates.covered_shares[without])
    # The candidates beyond the first fifty stay behind them.
    values[rest] += np.minimum(0, values[head].min(initial=np.inf) - values[rest].max(initial=-np.inf))
    return _calibrated(candidates, "hybrid", values, calibrated, rows)


def _calibrated(
    candidates: Candidates,
    curve: str,
    values: NDArray[np.float32],
    calibrated: NDArray[np.float32],
    rows: Mapping[int, Row],
) -> list[RankedPassage]:
    """The candidates in descending order of `values`, with the probabilities or grades of `calibrated`."""
    order = candidates.order(values)
    scores = calibration.non_increasing(calibration.probability(curve, calibrated[order]))
    if candidates.parsed.query.profile.score == "grade":
        scores = [calibration.grade(curve, score) for score in scores]
    return candidates.ranked(order.tolist(), scores, rows)
