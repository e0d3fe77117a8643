"""Matrices: the vectors leg of an embedded search, by cosine over parts of segments.

Every vector in the scope is compared, in 8 bits a number; where a filter leaves few, only these. Where they are very
many, their sketches are compared first, and then only the nearest by these. How far the best of them differ in their
sketches tells whether any are likely to be among those left out; then more are compared, or all.

What takes long is done block by block, by several threads where there are several cores.
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
from almanac.search.index.embedded.segment_view import SegmentSlice
from almanac.search.index.embedded.segments import Key, QuantisedVectors
from almanac.search.index.protocol import Hits
from almanac.search.index.vector_tools import round_question, sketch_of

R = TypeVar("R")

MOST_EXACT = 50_000  # vectors that are compared without a look at their sketches
MIN_EXACT_VECTORS = 4_000  # that are compared after it, or one in a hundred
MAX_EXACT_SHARE = 0.25  # share of all that is compared one by one; to compare all is cheaper then
RECALL_CHECK_VECTORS = 20  # by which it is judged whether enough were compared
_DEVIATIONS = 2.33  # of a hundred like the best, one may be left out
_SPARE = 2  # times as many as asked for are compared with the question's own numbers
_BLOCK = 131_072  # vectors compared in one call: after each, a thread waits for its turn in Python
_GATHERED = 16_384  # vectors copied together at once
_SAMPLE = 65_536  # distances, by which it is judged how many are within another
_HANDS = min(cpu_count(), 4)  # threads that work on one search
_FAR = 16  # times what the look at a sketch costs, the look at a vector does that stands apart from others

_helpers = ThreadPoolExecutor(_HANDS, "vectors")

Chosen = NDArray[np.int64] | None  # which vectors of a block; None for all


@dataclass(frozen=True)
class _Block:
    """Vectors that stand together, and which of them may be found."""

    part: SegmentSlice
    matrix: QuantisedVectors
    start: int
    stop: int
    allowed: NDArray[np.bool_] | None

    def __len__(self) -> int:
        return self.stop - self.start


def search(parts: Sequence[SegmentSlice], key: Key, vector: NDArray[np.float32], limit: int) -> Hits:
    """The passages nearest to a vector of length one."""
    blocks = list(_blocks(parts, key))
    asked = round_question(vector)
    chosen = _few(blocks)
    if chosen is None and sum(map(len, blocks)) > MOST_EXACT:
        chosen, reached = _preselect(blocks, asked, vector, _SPARE * limit)
    else:
        chosen = chosen or [None] * len(blocks)
        reached = _compare(blocks, asked, chosen)
    ids, scores, sources = _rescore(blocks, chosen, reached, vector, limit)
    order = np.lexsort((ids, -scores))[: max(limit, 0)]
    return Hits(ids[order], scores[order], sources[order])


def count(part: SegmentSlice, model: str) -> int:
    """How many passages in the collections of a part have a vector of a model."""
    number = 0
    for (name, _), matrix in part.view.segment.matrices.items():
        if name == model:
            edges = matrix.rows.searchsorted(part.ranges)
            number += int(edges[1::2].sum() - edges[::2].sum())
            number -= int(np.count_nonzero(np.isin(part.dead_rows, matrix.rows[edges[0] : edges[-1]])))
    return number


def _blocks(parts: Sequence[SegmentSlice], key: Key) -> Iterator[_Block]:
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


def _few(blocks: Sequence[_Block]) -> list[Chosen] | None:
    """The vectors that may be found, if they are few enough to be compared one by one."""
    allowed = [each.allowed for each in blocks if each.allowed is not None]
    if not allowed or len(allowed) < len(blocks):
        return None
    most = min(MOST_EXACT, MAX_EXACT_SHARE * sum(map(len, blocks)))
    return [np.flatnonzero(each) for each in allowed] if sum(map(np.count_nonzero, allowed)) <= most else None


def _preselect(
    blocks: Sequence[_Block], asked: NDArray[np.int8], vector: NDArray[np.float32], least: int
) -> tuple[Sequence[Chosen], list[NDArray[np.float32]]]:
    """Vectors (all, if need be) among which the nearest are by all likelihood, and how near they are."""
    barred = len(vector) + 1  # further away than any
    total = sum(map(len, blocks))
    distances = _each(partial(_hamming, vector=vector, barred=barred), [(block,) for block in blocks], total)
    every = 1 + total // _SAMPLE
    sample = np.concatenate([each[::every] for each in distances])
    within = every * np.cumsum(np.bincount(sample, minlength=barred)[:barred])
    edge = int(within.searchsorted(max(MIN_EXACT_VECTORS, total // 100)))
    while edge < barred and within[edge] <= MAX_EXACT_SHARE * total:
        chosen = [np.flatnonzero(each <= edge) for each in distances]
        reached = _compare(blocks, asked, chosen)
        near = np.concatenate([each[inside] for each, inside in zip(distances, chosen, strict=True)])
        needed = _needed(near, np.concatenate(reached), len(vector))
        if edge < needed:
            edge = needed
        elif len(near) >= least:
            return chosen, reached
        else:  # what was sampled is not like the rest
            break
    everything = [None] * len(blocks)
    return everything, _compare(blocks, asked, everything)


def _hamming(block: _Block, vector: NDArray[np.float32], barred: int) -> NDArray[np.uint16]:
    """In how many bits of its sketch each vector of a block differs: none where it has no sketch, to be compared in any
    case; `barred` where it may not be found."""
    if len(block.matrix.sketches):
        rows = block.matrix.sketches[block.start : block.stop]
        asked, kind = sketch_of(vector, block.matrix.centre)[None], "uint16"
        found: Any = simsimd.cdist(asked, rows, metric="hamming", dtype="bin8", out_dtype=kind)  # pyright: ignore[reportArgumentType]
        distances: NDArray[np.uint16] = np.asarray(found)[0]
    else:
        distances = np.zeros(len(block), np.uint16)
    return distances if block.allowed is None else np.where(block.allowed, distances, np.uint16(barred))


def _needed(distances: NDArray[np.uint16], products: NDArray[np.float32], size: int) -> int:
    """Up to which distance to compare, so that hardly any like the best are left out."""
    sketched = distances > 0
    distances, products = distances[sketched], products[sketched]
    if not len(distances):
        return 0
    best = distances[np.argpartition(products, -min(RECALL_CHECK_VECTORS, len(products)))[-RECALL_CHECK_VECTORS:]]
    mean = float(best.mean())
    return math.ceil(mean + _DEVIATIONS * math.sqrt(mean * max(1 - mean / size, 0)))


def _compare(blocks: Sequence[_Block], asked: NDArray[np.int8], chosen: Sequence[Chosen]) -> list[NDArray[np.float32]]:
    """How near vectors are, nearly; the lowest number for one that may not be found."""
    work = sum(
        len(block) if inside is None else _FAR * len(inside) for block, inside in zip(blocks, chosen, strict=True)
    )
    return _each(partial(_products, asked=asked), list(zip(blocks, chosen, strict=True)), work)


def _products(block: _Block, inside: Chosen, asked: NDArray[np.int8]) -> NDArray[np.float32]:
    """How near the vectors of a block are."""
    if inside is not None:
        places = block.start + inside
        parts = [places[start : start + _GATHERED] for start in range(0, len(places), _GATHERED)]
        # By `take`, which copies whole rows a third faster than an index does.
        found = [_dot(block.matrix.values.take(part, 0), block.matrix.scales[part], asked) for part in parts]
        return np.concatenate([np.zeros(0, np.float32), *found])
    rows = slice(block.start, block.stop)
    products = _dot(block.matrix.values[rows], block.matrix.scales[rows], asked)
    if block.allowed is not None:
        products[~block.allowed] = -np.inf
    return products


def _dot(values: NDArray[np.int8], scales: NDArray[np.float32], asked: NDArray[np.int8]) -> NDArray[np.float32]:
    products: NDArray[np.float32] = np.asarray(simsimd.cdist(asked[None], values, metric="dot", out_dtype="f32"))[0]
    return products * scales


def _rescore(
    blocks: Sequence[_Block],
    chosen: Sequence[Chosen],
    reached: Sequence[NDArray[np.float32]],
    vector: NDArray[np.float32],
    limit: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """The best of what was reached, compared with the question's own numbers: ids, scores and sources."""
    every = np.concatenate([np.zeros(0, np.float32), *reached])
    beyond = len(every) - _SPARE * max(limit, 1)
    edge = np.partition(every, beyond)[beyond] if beyond > 0 else -np.inf
    ids, scores, sources = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)], [np.zeros(0, np.int64)]
    for block, inside, near in zip(blocks, chosen, reached, strict=True):
        found = np.flatnonzero((near >= edge) & (near > -np.inf))
        for start in range(0, len(found), _GATHERED):
            part = found[start : start + _GATHERED]
            places = block.start + (part if inside is None else inside[part])
            # Not by a product of matrices, in which a vector's sum depends on how many there are.
            products: NDArray[np.float32] = np.einsum("ij,j->i", block.matrix.values[places].astype(np.float32), vector)
            scores.append(products * block.matrix.scales[places])
            rows, segment = block.matrix.rows[places], block.part.view.segment
            ids.append(segment.passages[rows])
            sources.append(segment.sources_of(rows))
    return np.concatenate(ids), np.concatenate(scores), np.concatenate(sources)


def _each(work: Callable[..., R], items: Sequence[tuple[Any, ...]], amount: int) -> list[R]:
    """What comes of each item: worked on here and, where it is worth their while, by helpers as long as there is
    something left to begin. The amount of work is in sketches."""
    left = deque(range(len(items)))
    done: dict[int, R] = {}

    def take() -> int | None:
        try:
            return left.popleft()
        except IndexError:
            return None

    def go() -> None:
        try:
            while (number := take()) is not None:
                done[number] = work(*items[number])
        finally:
            left.clear()  # where one fails, nobody need begin another

    helpers = [_helpers.submit(go) for _ in range(1, min(_HANDS, len(items), -(-amount // _BLOCK)))]
    try:
        go()
    finally:
        for helper in helpers:
            if not helper.cancel():
                helper.result()
    return [done[number] for number in range(len(items))]
