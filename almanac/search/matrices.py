"""Matrices: the vectors leg of an embedded search, by cosine over parts of segments.

Every vector in the scope is compared, in 8 bits a number; where a filter leaves few, only these. Where they are very
many, their sketches are compared first, and then only the nearest by these. How far the best of them differ in their
sketches tells whether any are likely to be among those left out; then more are compared, or all.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simsimd
from numpy.typing import NDArray

from almanac.search.index import Hits
from almanac.search.quantisation import round_question, sketch_of
from almanac.search.segments import Key, Matrix
from almanac.search.views import Part

MOST_EXACT = 50_000  # vectors that are compared without a look at their sketches
LEAST = 4_000  # that are compared after it, or one in a hundred
MOST = 0.25  # share of all that is compared one by one; to compare all is cheaper then
_BEST = 20  # by which it is judged whether enough were compared
_DEVIATIONS = 2.33  # of a hundred like the best, one may be left out
_SPARE = 2  # times as many as asked for are compared with the question's own numbers
_BLOCK = 1_048_576  # vectors compared in one call: after each, a thread waits for its turn in Python
_GATHERED = 65_536  # vectors copied together at once
_SAMPLE = 65_536  # distances, by which it is judged how many are within another
_BARRED = 2**16 - 1


@dataclass(frozen=True)
class _Block:
    """Vectors that stand together, and which of them may be found."""

    part: Part
    matrix: Matrix
    start: int
    stop: int
    allowed: NDArray[np.bool_] | None

    def __len__(self) -> int:
        return self.stop - self.start


def search(parts: Sequence[Part], key: Key, vector: NDArray[np.float32], limit: int) -> Hits:
    """The passages nearest to a vector of length one."""
    blocks = list(_blocks(parts, key))
    asked = round_question(vector)
    if (places := _few(blocks)) is not None:
        reached = _compare(blocks, asked, places)
    elif sum(map(len, blocks)) > MOST_EXACT:
        places, reached = _preselect(blocks, asked, vector, _SPARE * limit)
    else:
        places, reached = None, _compare(blocks, asked, None)
    ids, scores, sources = _rescore(blocks, places, reached, vector, limit)
    order = np.lexsort((ids, -scores))[: max(limit, 0)]
    return Hits(ids[order], scores[order], sources[order])


def count(part: Part, model: str) -> int:
    """How many passages in the collections of a part have a vector of a model."""
    number = 0
    for (name, _), matrix in part.view.segment.matrices.items():
        if name == model:
            edges = matrix.rows.searchsorted(part.ranges)
            number += int(edges[1::2].sum() - edges[::2].sum())
            number -= int(np.count_nonzero(np.isin(part.dead_rows, matrix.rows[edges[0] : edges[-1]])))
    return number


def _blocks(parts: Sequence[Part], key: Key) -> Iterator[_Block]:
    for part in parts:
        matrix = part.view.segment.matrices.get(key)
        if matrix is None:
            continue
        edges = matrix.rows.searchsorted(part.spans).tolist()
        for span, (first, last) in enumerate(zip(edges[::2], edges[1::2], strict=True)):
            shift = int(part.begins[span]) - int(part.spans[2 * span])
            for start in range(first, last, _BLOCK):
                stop = min(start + _BLOCK, last)
                allowed = None if part.allowed is None else part.allowed[matrix.rows[start:stop] + np.int64(shift)]
                yield _Block(part, matrix, start, stop, allowed)


def _few(blocks: Sequence[_Block]) -> NDArray[np.int64] | None:
    """The places of vectors that may be found, if they are few enough to be compared one by one."""
    allowed = [each.allowed for each in blocks if each.allowed is not None]
    if not allowed or len(allowed) < len(blocks):
        return None
    places = np.flatnonzero(np.concatenate(allowed))
    most = min(MOST_EXACT, MOST * sum(map(len, blocks)))
    return places if len(places) <= most else None


def _preselect(
    blocks: Sequence[_Block], asked: NDArray[np.int8], vector: NDArray[np.float32], least: int
) -> tuple[NDArray[np.int64] | None, NDArray[np.float32]]:
    """Places of vectors (None for all) among which the nearest are by all likelihood, and how near they are."""
    distances = np.concatenate([_hamming(block, vector) for block in blocks])
    every = 1 + len(distances) // _SAMPLE
    reached = every * np.cumsum(np.bincount(distances[::every], minlength=_BARRED + 1)[:_BARRED])
    edge = int(reached.searchsorted(max(LEAST, len(distances) // 100)))
    while edge < _BARRED and reached[edge] <= MOST * len(distances):
        places = np.flatnonzero(distances <= edge)
        products = _compare(blocks, asked, places)
        needed = _needed(distances[places], products, len(vector))
        if edge < needed:
            edge = needed
        elif len(places) >= least:
            return places, products
        else:  # what was sampled is not like the rest
            break
    return None, _compare(blocks, asked, None)


def _hamming(block: _Block, vector: NDArray[np.float32]) -> NDArray[np.uint16]:
    """In how many bits of its sketch each vector of a block differs: none where it has no sketch, to be compared in any
    case; the most where it may not be found."""
    if len(block.matrix.sketches):
        rows = block.matrix.sketches[block.start : block.stop]
        asked, kind = sketch_of(vector, block.matrix.centre)[None], "uint16"
        found: Any = simsimd.cdist(asked, rows, metric="hamming", dtype="bin8", out_dtype=kind)  # pyright: ignore[reportArgumentType]
        distances: NDArray[np.uint16] = np.asarray(found)[0]
    else:
        distances = np.zeros(len(block), np.uint16)
    return distances if block.allowed is None else np.where(block.allowed, distances, np.uint16(_BARRED))


def _needed(distances: NDArray[np.uint16], products: NDArray[np.float32], size: int) -> int:
    """Up to which distance to compare, so that hardly any like the best are left out."""
    sketched = distances > 0
    distances, products = distances[sketched], products[sketched]
    if not len(distances):
        return 0
    best = distances[np.argpartition(products, -min(_BEST, len(products)))[-_BEST:]]
    mean = float(best.mean())
    return math.ceil(mean + _DEVIATIONS * math.sqrt(mean * max(1 - mean / size, 0)))


def _share(
    blocks: Sequence[_Block], places: NDArray[np.int64] | None
) -> Iterator[tuple[_Block, slice | NDArray[np.int64]]]:
    """What of each block's matrix is meant by places among all vectors, None for all."""
    base = 0
    for block in blocks:
        if places is None:
            yield block, slice(block.start, block.stop)
        else:
            first, last = places.searchsorted((base, base + len(block))).tolist()
            for start in range(first, last, _GATHERED):
                yield block, places[start : min(start + _GATHERED, last)] - (base - block.start)
        base += len(block)


def _compare(
    blocks: Sequence[_Block], asked: NDArray[np.int8], places: NDArray[np.int64] | None
) -> NDArray[np.float32]:
    """How near vectors are, nearly; the lowest number for one that may not be found."""
    reached = [np.zeros(0, np.float32)]
    for block, inside in _share(blocks, places):
        values = block.matrix.values[inside]
        products: NDArray[np.float32] = np.asarray(simsimd.cdist(asked[None], values, metric="dot", out_dtype="f32"))[0]
        reached.append(products * block.matrix.scales[inside])
        if block.allowed is not None and places is None:
            reached[-1][~block.allowed] = -np.inf
    return np.concatenate(reached)


def _rescore(
    blocks: Sequence[_Block],
    places: NDArray[np.int64] | None,
    reached: NDArray[np.float32],
    vector: NDArray[np.float32],
    limit: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """The best of what was reached, compared with the question's own numbers: ids, scores and sources."""
    found = np.flatnonzero(reached > -np.inf)
    if len(found) > (most := _SPARE * max(limit, 1)):
        edge = np.partition(reached[found], len(found) - most)[len(found) - most]
        found = found[reached[found] >= edge]
    ids, scores, sources = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)], [np.zeros(0, np.int64)]
    for block, inside in _share(blocks, found if places is None else places[found]):
        # Not by a product of matrices, in which a vector's sum depends on how many there are.
        products: NDArray[np.float32] = np.einsum("ij,j->i", block.matrix.values[inside].astype(np.float32), vector)
        scores.append(products * block.matrix.scales[inside])
        rows, segment = block.matrix.rows[inside], block.part.view.segment
        ids.append(segment.passages[rows])
        sources.append(segment.sources_of(rows))
    return np.concatenate(ids), np.concatenate(scores), np.concatenate(sources)
