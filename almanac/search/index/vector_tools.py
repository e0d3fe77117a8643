"""Quantisation: vectors in few bits, from which a search tells the near ones.

Values have 8 bits a number, with one scale for each vector. Sketches have one bit a number: on which side of the centre
of all vectors it is. Without the centre they would tell little of models whose vectors all point much the same way.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from almanac.search.index.embedded.segments import Allocate, Key, QuantisedVectors, in_memory, matrix_name

LEAST_SKETCHED = 20_000  # vectors of one segment; fewer are compared in no time
_PORTION = 2**11  # vectors at once: they fit into a cache


def quantise(rows: NDArray[np.int64], stored: Sequence[bytes], key: Key) -> QuantisedVectors:
    """Vectors as the database has them, each with its row."""
    order = np.argsort(rows)
    halves = np.frombuffer(b"".join(stored), np.float16).reshape(-1, key[1])
    values = np.empty((len(rows), key[1]), np.int8)
    scales = np.empty(len(rows), np.float32)
    for start in range(0, len(order), _PORTION):
        part = slice(start, start + _PORTION)
        values[part], scales[part] = _round(halves[order[part]].astype(np.float32))
    return QuantisedVectors(rows[order].astype(np.uint32), values, scales, *sketch(values, scales, key))


def round_question(vector: NDArray[np.float32]) -> NDArray[np.int8]:
    """The vector of a question; its scale changes no order."""
    largest = float(np.abs(vector).max(initial=0.0)) or 1.0
    return np.rint(vector * (127 / largest)).astype(np.int8)


def sketch(
    values: NDArray[np.int8], scales: NDArray[np.float32], key: Key, allocate: Allocate = in_memory
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """The centre of vectors, and their sketches; none for a few."""
    number = len(values) if len(values) >= LEAST_SKETCHED else 0
    centre = allocate(matrix_name(key, "centre"), np.float32, (key[1],))
    sketches = allocate(matrix_name(key, "sketches"), np.uint8, (number, -(-key[1] // 8)))
    parts = [slice(start, min(start + _PORTION, number)) for start in range(0, number, _PORTION)]
    total = np.zeros(key[1])
    for part in parts:
        total += scales[part] @ values[part].astype(np.float32)
    centre[:] = total / max(number, 1)
    for part in parts:
        sketches[part] = sketch_of(values[part] * scales[part, None], centre)
    return centre, sketches


def sketch_of(vectors: NDArray[np.float32], centre: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Sketches of vectors, or of one."""
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
