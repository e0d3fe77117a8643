"""Quantisation: compact forms of vectors, from which a search finds candidates.

Values have 8 bits per dimension, with one scale for each vector. Sketches have one bit per dimension: the side of the
centre of all vectors on which the vector lies. Without the centre, sketches would distinguish little for models whose
vectors all point in a similar direction.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from almanac.search.index.embedded.segments import Allocate, Key, QuantisedVectors, in_memory, matrix_name

MIN_SKETCHED_VECTORS = 20_000  # in one segment; an exact scan of fewer takes almost no time
_VECTORS_AT_ONCE = 2**11  # they fit into a processor cache


def quantise(rows: NDArray[np.int64], stored: Sequence[bytes], key: Key) -> QuantisedVectors:
    """Quantise vectors from the database, given with their rows."""
    order = np.argsort(rows)
    halves = np.frombuffer(b"".join(stored), np.float16).reshape(-1, key[1])
    values = np.empty((len(rows), key[1]), np.int8)
    scales = np.empty(len(rows), np.float32)
    for start in range(0, len(order), _VECTORS_AT_ONCE):
        part = slice(start, start + _VECTORS_AT_ONCE)
        values[part], scales[part] = _round(halves[order[part]].astype(np.float32))
    return QuantisedVectors(rows[order].astype(np.uint32), values, scales, *sketch_all(values, scales, key))


def quantise_query(vector: NDArray[np.float32]) -> NDArray[np.int8]:
    """Quantise the vector of a query. Its scale is dropped because it does not change the order of the hits."""
    largest = float(np.abs(vector).max(initial=0.0)) or 1.0
    return np.rint(vector * (127 / largest)).astype(np.int8)


def sketch_all(
    values: NDArray[np.int8], scales: NDArray[np.float32], key: Key, allocate: Allocate = in_memory
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return the centre of vectors and their sketches. There are no sketches if the vectors are few."""
    number = len(values) if len(values) >= MIN_SKETCHED_VECTORS else 0
    centre = allocate(matrix_name(key, "centre"), np.float32, (key[1],))
    sketches = allocate(matrix_name(key, "sketches"), np.uint8, (number, -(-key[1] // 8)))
    parts = [slice(start, min(start + _VECTORS_AT_ONCE, number)) for start in range(0, number, _VECTORS_AT_ONCE)]
    total = np.zeros(key[1])
    for part in parts:
        total += scales[part] @ values[part].astype(np.float32)
    centre[:] = total / max(number, 1)
    for part in parts:
        sketches[part] = sketch(values[part] * scales[part, None], centre)
    return centre, sketches


def sketch(vectors: NDArray[np.float32], centre: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the sketches of vectors, or of one vector."""
    return np.packbits(vectors > centre, axis=-1)


def _round(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    if not np.isfinite(norms).all():
        np.nan_to_num(vectors, copy=False, posinf=0.0, neginf=0.0)
        norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    largest = np.maximum(vectors.max(axis=1, initial=0.0), -vectors.min(axis=1, initial=0.0))
    vectors *= (127 / np.where(largest > 0, largest, 1))[:, None]
    scales = largest / 127 / np.where(norms > 0, norms, 1)
    return np.rint(vectors, out=vectors).astype(np.int8), scales.astype(np.float32)
