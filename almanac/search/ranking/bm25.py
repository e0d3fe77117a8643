"""BM25: how well the words of a passage match. Both indexes judge by this one formula.

Scores are sums of float32 in the order of the terms, so that they are the same everywhere. What one term adds is less
than its rarity (`idf`), however often it stands there.
"""

import math

import numpy as np
from numpy.typing import NDArray

K1 = 12.0  # how soon one more occurrence stops to count; counts are in tenths (`analysis.pack`)
B = 0.75  # how much a long passage has to make up for


def idf(n: int, df: int) -> float:
    """How rare a term is that `df` of `n` passages have."""
    return math.log(1 + (n - df + 0.5) / (df + 0.5))


def damp(lengths: NDArray[np.integer | np.floating], average: float) -> NDArray[np.float32]:
    """What the occurrences in a passage are held against, by its length."""
    slope = np.float32(K1 * B / average) if average else np.float32(0)
    return np.float32(K1 * (1 - B)) + slope * lengths.astype(np.float32)


def saturate(counts: NDArray[np.integer], damping: NDArray[np.float32]) -> NDArray[np.float32]:
    """What occurrences are worth: 0 for none, nearing 1 for very many."""
    occurrences = counts.astype(np.float32)
    return np.divide(occurrences, occurrences + damping, dtype=np.float32)


def score(
    counts: NDArray[np.integer], lengths: NDArray[np.integer], average: float, idfs: NDArray[np.floating]
) -> NDArray[np.float32]:
    """The scores of passages: `counts` has a row for each term, with its occurrences in each passage."""
    damping = damp(lengths, average)
    total = np.zeros(len(lengths), np.float32)
    for occurrences, rarity in zip(counts, idfs, strict=True):
        total += np.float32(rarity) * saturate(occurrences, damping)
    return total


def best(ids: NDArray[np.int64], scores: NDArray[np.float32], limit: int) -> NDArray[np.intp]:
    """Where the highest scores above zero are, the best first; among equals the lower id first."""
    places = np.flatnonzero(scores > 0)
    if len(places) > limit > 0:
        edge = np.partition(scores[places], len(places) - limit)[len(places) - limit]
        places = places[scores[places] >= edge]
    order = np.lexsort((ids[places], -scores[places]))
    return places[order[:limit]]
