"""Measures of retrieval: the quality of a ranking against judgements, and the calibration of its scores.

The definitions are those of trec_eval: the gain of a document is its grade, and a document without a judgement gains 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, log2


def ndcg(ranked: Sequence[str], grades: Mapping[str, float], depth: int) -> float:
    """Return the gain of a ranking as a share of the best possible gain. Later positions count less."""
    best = _gained(sorted(grades.values(), reverse=True)[:depth])
    return _gained([grades.get(id, 0.0) for id in ranked[:depth]]) / best if best else 0.0


def recall(ranked: Sequence[str], grades: Mapping[str, float], depth: int) -> float:
    """Return the share of the relevant documents that the ranking contains."""
    relevant = {id for id, grade in grades.items() if grade > 0}
    return len(relevant.intersection(ranked[:depth])) / len(relevant) if relevant else 0.0


def calibration_error(judged: Iterable[tuple[float, bool]], bins: int = 10) -> float:
    """Return the expected calibration error: how far scores are from the share of right results, in equal bins."""
    # Of each bin: the number of results, the sum of their scores, the number of right results.
    sums = [[0.0, 0.0, 0.0] for _ in range(bins)]
    for score, is_right in judged:
        bin_sums = sums[min(int(score * bins), bins - 1)]
        bin_sums[0] += 1
        bin_sums[1] += score
        bin_sums[2] += is_right
    total = sum(number for number, _, _ in sums)
    return sum(abs(scores - right) for _, scores, right in sums) / total if total else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 of no values."""
    return sum(values) / len(values) if values else 0.0


def _gained(gains: Sequence[float]) -> float:
    return sum(gain / log2(position + 2) for position, gain in enumerate(gains))
