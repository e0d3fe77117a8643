"""The vector retriever of the embedded index: cosine similarity over slices of segments.

Every vector in the scope is compared, with 8 bits per dimension; if a filter leaves few vectors, only these. If the
vectors are very many, their sketches are compared first, and then only the vectors with the nearest sketches. The
sketch distances of the best of these show whether the others are likely to contain better vectors. If they are, more
vectors are compared, or all.

Long comparisons are split into blocks, which several threads process on a machine with several cores.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import simsimd
from numpy.typing import NDArray

from almanac.ai.cpu import cpu_count
from almanac.search.index.embedded.quantisation import quantise_query, sketch
from almanac.search.index.embedded.segment_view import SegmentSlice
from almanac.search.index.embedded.segments import Key, QuantisedVectors
from almanac.search.index.protocol import Hits

R = TypeVar("R")

MAX_EXACT_VECTORS = 50_000  # compared without sketches
MIN_EXACT_VECTORS = 4_000  # compared after the sketches; or one in a hundred, if that is more
MAX_EXACT_SHARE = 0.25  # share of all vectors that are compared one by one; comparing all is cheaper beyond it
RECALL_CHECK_VECTORS = 20  # the best vectors, whose sketch distances decide whether enough vectors were compared
_DEVIATIONS = 2.33  # standard deviations: of a hundred vectors like the best, one may be missed
_RESCORE_FACTOR = 2  # times the limit: vectors that are compared again with the exact vector of the query
VECTORS_PER_BLOCK = 131_072  # compared in one call; between calls, a thread waits for the interpreter lock
VECTORS_PER_COPY = 16_384
SAMPLE_DISTANCES = 65_536  # from which the number of vectors within a distance is estimated
MAX_THREADS = min(cpu_count(), 4)  # for one search
_VECTOR_COST = 16  # reading a single vector costs as much as reading 16 consecutive sketches

_executor = ThreadPoolExecutor(MAX_THREADS, "vectors")

Chosen = NDArray[np.int64] | None  # positions of vectors in a block; None for all


@dataclass(frozen=True)
class _Block:
    """Consecutive vectors of a matrix, and for each of them True if the search may return it."""

    part: SegmentSlice
    matrix: QuantisedVectors
    start: int
    stop: int
    allowed: NDArray[np.bool_] | None

    def __len__(self) -> int:
        return self.stop - self.start


def search(slices: Sequence[SegmentSlice], key: Key, vector: NDArray[np.float32], limit: int) -> Hits:
    """Return the passages nearest to a vector of length one."""
    blocks = list(_blocks(slices, key))
    query = quantise_query(vector)
    chosen = _filtered(blocks)
    if chosen is None and sum(map(len, blocks)) > MAX_EXACT_VECTORS:
        chosen, scores = _compare_nearest_sketches(blocks, query, vector, _RESCORE_FACTOR * limit)
    else:
        chosen = chosen or [None] * len(blocks)
        scores = _compare(blocks, query, chosen)
    ids, exact_scores, sources = _rescore(blocks, chosen, scores, vector, limit)
    order = np.lexsort((ids, -exact_scores))[: max(limit, 0)]
    return Hits(ids[order], exact_scores[order], sources[order])


def count(part: SegmentSlice, model: str) -> int:
    """Count the live passages in the collections of a slice that have a vector of a model."""
    matrices = part.view.segment.matrices
    return sum(part.count_live(matrix.rows) for (name, _), matrix in matrices.items() if name == model)


def _blocks(slices: Sequence[SegmentSlice], key: Key) -> Iterator[_Block]:
    for part in slices:
        matrix = part.view.segment.matrices.get(key)
        if matrix is None:
            continue
        for first, last, shift in part.in_spans(matrix.rows):
            for start in range(first, last, VECTORS_PER_BLOCK):
                stop = min(start + VECTORS_PER_BLOCK, last)
                allowed = None if part.allowed is None else part.allowed[matrix.rows[start:stop] + np.int64(shift)]
                yield _Block(part, matrix, start, stop, allowed)


def _filtered(blocks: Sequence[_Block]) -> list[Chosen] | None:
    """Return the vectors that the filter leaves, if they are few enough to be compared one by one."""
    allowed = [block.allowed for block in blocks if block.allowed is not None]
    if not allowed or len(allowed) < len(blocks):
        return None
    most = min(MAX_EXACT_VECTORS, MAX_EXACT_SHARE * sum(map(len, blocks)))
    return [np.flatnonzero(each) for each in allowed] if sum(map(np.count_nonzero, allowed)) <= most else None


def _compare_nearest_sketches(
    blocks: Sequence[_Block], query: NDArray[np.int8], vector: NDArray[np.float32], least: int
) -> tuple[Sequence[Chosen], list[NDArray[np.float32]]]:
    """Compare the vectors with the nearest sketches, or all if these are not enough. Return them and their scores."""
    excluded = len(vector) + 1  # more than any distance
    total = sum(map(len, blocks))
    distances = _map(partial(_distances, vector=vector, excluded=excluded), [(block,) for block in blocks], total)
    step = 1 + total // SAMPLE_DISTANCES
    sample = np.concatenate([each[::step] for each in distances])
    within = step * np.cumsum(np.bincount(sample, minlength=excluded)[:excluded])
    edge = int(within.searchsorted(max(MIN_EXACT_VECTORS, total // 100)))
    while edge < excluded and within[edge] <= MAX_EXACT_SHARE * total:
        chosen = [np.flatnonzero(each <= edge) for each in distances]
        scores = _compare(blocks, query, chosen)
        near = np.concatenate([each[positions] for each, positions in zip(distances, chosen, strict=True)])
        needed = _needed_distance(near, np.concatenate(scores), len(vector))
        if edge < needed:
            edge = needed
        elif len(near) >= least:
            return chosen, scores
        else:  # the sample does not represent the other vectors
            break
    everything = [None] * len(blocks)
    return everything, _compare(blocks, query, everything)


def _distances(block: _Block, vector: NDArray[np.float32], excluded: int) -> NDArray[np.uint16]:
    """Return the number of different bits for each sketch of a block. The distance is 0 if there are no sketches, so
    that the vector is compared, and `excluded` if the filter excludes the vector."""
    if len(block.matrix.sketches):
        sketches = block.matrix.sketches[block.start : block.stop]
        query = sketch(vector, block.matrix.centre)[None]
        found: Any = simsimd.cdist(query, sketches, metric="hamming", dtype="bin8", out_dtype="uint16")  # pyright: ignore[reportArgumentType]
        distances: NDArray[np.uint16] = np.asarray(found)[0]
    else:
        distances = np.zeros(len(block), np.uint16)
    return distances if block.allowed is None else np.where(block.allowed, distances, np.uint16(excluded))


def _needed_distance(distances: NDArray[np.uint16], scores: NDArray[np.float32], size: int) -> int:
    """Return the distance up to which vectors must be compared so that hardly any vector like the best is missed."""
    is_sketched = distances > 0
    distances, scores = distances[is_sketched], scores[is_sketched]
    if not len(distances):
        return 0
    best = distances[np.argpartition(scores, -min(RECALL_CHECK_VECTORS, len(scores)))[-RECALL_CHECK_VECTORS:]]
    mean = float(best.mean())
    return math.ceil(mean + _DEVIATIONS * math.sqrt(mean * max(1 - mean / size, 0)))


def _compare(blocks: Sequence[_Block], query: NDArray[np.int8], chosen: Sequence[Chosen]) -> list[NDArray[np.float32]]:
    """Return approximate scores, and minus infinity for vectors that the filter excludes."""
    items = list(zip(blocks, chosen, strict=True))
    cost = sum(len(block) if positions is None else _VECTOR_COST * len(positions) for block, positions in items)
    return _map(partial(_scores, query=query), items, cost)


def _scores(block: _Block, positions: Chosen, query: NDArray[np.int8]) -> NDArray[np.float32]:
    if positions is not None:
        indices = block.start + positions
        parts = [indices[start : start + VECTORS_PER_COPY] for start in range(0, len(indices), VECTORS_PER_COPY)]
        # `take` copies whole rows a third faster than indexing does.
        found = [_dot(block.matrix.values.take(part, 0), block.matrix.scales[part], query) for part in parts]
        return np.concatenate([np.zeros(0, np.float32), *found])
    rows = slice(block.start, block.stop)
    scores = _dot(block.matrix.values[rows], block.matrix.scales[rows], query)
    if block.allowed is not None:
        scores[~block.allowed] = -np.inf
    return scores


def _dot(values: NDArray[np.int8], scales: NDArray[np.float32], query: NDArray[np.int8]) -> NDArray[np.float32]:
    products: NDArray[np.float32] = np.asarray(simsimd.cdist(query[None], values, metric="dot", out_dtype="f32"))[0]
    return products * scales


def _rescore(
    blocks: Sequence[_Block],
    chosen: Sequence[Chosen],
    scores: Sequence[NDArray[np.float32]],
    vector: NDArray[np.float32],
    limit: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Compare the best vectors with the exact vector of the query. Return passage ids, scores and source ids."""
    every = np.concatenate([np.zeros(0, np.float32), *scores])
    dropped = len(every) - _RESCORE_FACTOR * max(limit, 1)
    edge = np.partition(every, dropped)[dropped] if dropped > 0 else -np.inf
    ids, exact_scores, sources = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)], [np.zeros(0, np.int64)]
    for block, positions, each in zip(blocks, chosen, scores, strict=True):
        best = np.flatnonzero((each >= edge) & (each > -np.inf))
        for start in range(0, len(best), VECTORS_PER_COPY):
            part = best[start : start + VECTORS_PER_COPY]
            indices = block.start + (part if positions is None else positions[part])
            # Not a matrix product: there, the sum of a vector depends on the number of vectors.
            products: NDArray[np.float32] = np.einsum(
                "ij,j->i", block.matrix.values[indices].astype(np.float32), vector
            )
            exact_scores.append(products * block.matrix.scales[indices])
            rows, segment = block.matrix.rows[indices], block.part.view.segment
            ids.append(segment.passages[rows])
            sources.append(segment.sources_of(rows))
    return np.concatenate(ids), np.concatenate(exact_scores), np.concatenate(sources)


def _map(work: Callable[..., R], items: Sequence[tuple[Any, ...]], cost: int) -> list[R]:
    """Call `work` for each item, in this thread and, if the cost is high enough, in others. The unit of the cost is the
    comparison of one sketch."""
    waiting = deque(range(len(items)))
    results: dict[int, R] = {}

    def take() -> int | None:
        try:
            return waiting.popleft()
        except IndexError:
            return None

    def run() -> None:
        try:
            while (number := take()) is not None:
                results[number] = work(*items[number])
        finally:
            waiting.clear()  # after a failure, no thread starts another item

    others = [_executor.submit(run) for _ in range(1, min(MAX_THREADS, len(items), -(-cost // VECTORS_PER_BLOCK)))]
    try:
        run()
    finally:
        for other in others:
            if not other.cancel():
                other.result()
    return [results[number] for number in range(len(items))]
