"""BM25, the score of a keyword hit, for both indexes.

A score is a sum of float32 values in the order of the terms, so that both indexes return the same score. However often
a term occurs, it adds less than its rarity (`idf`).
"""

import math

import numpy as np
from numpy.typing import NDArray

K1 = 12.0  # the higher, the more repeated occurrences count; counts are in tenths (see `analyser.encode_terms`)
B = 0.75  # the higher, the more a long passage is penalised


def idf(n: int, df: int) -> float:
    """The rarity of a term that occurs in `df` of `n` passages."""
    return math.log(1 + (n - df + 0.5) / (df + 0.5))


def damp(lengths: NDArray[np.integer | np.floating], average: float) -> NDArray[np.float32]:
    """The damping of the counts in passages of these lengths, for `saturate`."""
    slope = np.float32(K1 * B / average) if average else np.float32(0)
    return np.float32(K1 * (1 - B)) + slope * lengths.astype(np.float32)


def saturate(counts: NDArray[np.integer], damping: NDArray[np.float32]) -> NDArray[np.float32]:
    """The saturated counts: 0 for no occurrence, nearly 1 for very many."""
    occurrences = counts.astype(np.float32)
    return np.divide(occurrences, occurrences + damping, dtype=np.float32)


def score(
    counts: NDArray[np.integer], lengths: NDArray[np.integer], average: float, idfs: NDArray[np.floating]
) -> NDArray[np.float32]:
    """The scores of passages. `counts` has a row per term and a column per passage."""
    damping = damp(lengths, average)
    total = np.zeros(len(lengths), np.float32)
    for occurrences, rarity in zip(counts, idfs, strict=True):
        total += np.float32(rarity) * saturate(occurrences, damping)
    return total


def best(ids: NDArray[np.int64], scores: NDArray[np.float32], limit: int) -> NDArray[np.intp]:
    """The places of the highest scores above zero, best first; among equals the lower id first."""
    places = np.flatnonzero(scores > 0)
    if len(places) > limit > 0:
        edge = np.partition(scores[places], len(places) - limit)[len(places) - limit]
        places = places[scores[places] >= edge]
    order = np.lexsort((ids[places], -scores[places]))
    return places[order[:limit]]
