"""Measures of retrieval: how good a ranking is against judgements, and how far its scores can be believed.

As trec_eval has them: the gain of a document is the grade it was judged with, and what nobody judged counts nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, log2


def ndcg(ranked: Sequence[str], grades: Mapping[str, float], depth: int) -> float:
    """How much of what could have been gained was, counting less the further down it stands."""
    best = _gained(sorted(grades.values(), reverse=True)[:depth])
    return _gained([grades.get(id, 0.0) for id in ranked[:depth]]) / best if best else 0.0


def recall(ranked: Sequence[str], grades: Mapping[str, float], depth: int) -> float:
    """The share of what is relevant that was found."""
    relevant = {id for id, grade in grades.items() if grade > 0}
    return len(relevant.intersection(ranked[:depth])) / len(relevant) if relevant else 0.0


def calibration_error(judged: Iterable[tuple[float, bool]], bins: int = 10) -> float:
    """How far scores are from how often they were right (expected calibration error, over bins of equal width)."""
    sums = [[0.0, 0.0, 0.0] for _ in range(bins)]  # how many, their scores, how many were right
    for score, is_right in judged:
        place = sums[min(int(score * bins), bins - 1)]
        place[0] += 1
        place[1] += score
        place[2] += is_right
    total = sum(number for number, _, _ in sums)
    return sum(abs(scores - right) for _, scores, right in sums) / total if total else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0


def mean(values: Sequence[float]) -> float:
    """Their mean; 0 of none."""
    return sum(values) / len(values) if values else 0.0


def _gained(gains: Sequence[float]) -> float:
    return sum(gain / log2(place + 2) for place, gain in enumerate(gains))
