"""Segments: the immutable arrays that an embedded search reads, in memory or mapped from a file.

Each passage of a segment has a row. The rows of a collection are contiguous, and within it the rows of a source, in the
order of passage ids. A search of one collection therefore reads one range of rows, and no other collection adds to its
cost. The collections and the sources are numbered in the order of their rows.

A file contains a header, the arrays, and a directory of the arrays. It appears under its final name only when complete,
and never changes.
"""

import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import DTypeLike, NDArray

from almanac.core.errors import Unavailable

NOT_ANALYSED = 2**32 - 1  # the length of a passage that has not been analysed yet

_MAGIC = b"almanac1"
_HEADER = struct.Struct("<8sQQQQ")  # the magic, the position and length of the directory, two checksums
_ALIGNMENT = 64  # bytes; the header takes the first 64, and each array begins at a multiple
_WORDS_AT_ONCE = 2**21  # words of 8 bytes for one step of a checksum: they fit into a cache

Allocate = Callable[[str, DTypeLike, tuple[int, ...]], NDArray[Any]]
Key = tuple[str, int]  # a model and the dimension of its vectors


class SegmentUnreadable(Exception):
    """The file is missing, or its content differs from the content that was written."""


@dataclass(frozen=True, eq=False)
class QuantisedVectors:
    """The vectors of one model in a compact form (see `quantisation.py`)."""

    rows: NDArray[np.uint32]  # ascending
    values: NDArray[np.int8]
    scales: NDArray[np.float32]  # the factor that turns a product with the values into the cosine
    centre: NDArray[np.float32]
    sketches: NDArray[np.uint8]  # none if the vectors are few


@dataclass(frozen=True, eq=False)
class Segment:
    """The passages of some sources at one time. A file stores each array under the name of its field."""

    collections: tuple[str, ...]  # names, ascending
    firsts: NDArray[np.int64]  # by collection number: its first source number; one more for the end
    sources: NDArray[np.int64]  # ids, ascending
    places: NDArray[np.uint32]  # the source number of each of these ids
    runs: NDArray[np.uint32]  # by source number: its first row; one more for the end
    owners: NDArray[np.uint32]  # by row: the source number
    passages: NDArray[np.int64]  # by row: the passage id
    lengths: NDArray[np.uint32]  # by row: the length in terms
    terms: NDArray[np.int64]  # hashes, ascending
    offsets: NDArray[np.int64]  # by term: its first posting; one more for the end
    rows: NDArray[np.uint32]  # by posting: the row that contains the term
    counts: NDArray[np.uint8]  # by posting: the number of occurrences
    matrices: Mapping[Key, QuantisedVectors]

    @cached_property
    def collection_numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.collections)}

    @cached_property
    def bounds(self) -> NDArray[np.uint32]:
        """By collection number: its first row; one more for the end."""
        return self.runs[self.firsts]

    @cached_property
    def source_ids(self) -> NDArray[np.int64]:
        """By source number: its id. The array takes 8 bytes for each source from the first search on."""
        ids = np.empty(len(self.sources), np.int64)
        ids[self.places] = self.sources
        return ids

    def find(self, source_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the source numbers of ids. Ids of other sources are left out."""
        if not len(self.sources):
            return np.zeros(0, np.int64)
        at = np.minimum(np.searchsorted(self.sources, source_ids), len(self.sources) - 1)
        return self.places[at[self.sources[at] == source_ids]].astype(np.int64)

    def sources_of(self, rows: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return the source ids of rows."""
        return self.source_ids[self.owners[rows]]

    def locate(
        self, passages: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Find passages, given with their source ids. Return the positions of those in this segment, and their rows."""
        at = np.minimum(self.sources.searchsorted(sources), max(len(self.sources) - 1, 0))
        which = np.flatnonzero(self.sources[at] == sources) if len(self.sources) else np.zeros(0, np.int64)
        wanted, numbers = passages[which], self.places[at[which]].astype(np.int64)
        low, high = self.runs[numbers].astype(np.int64), self.runs[numbers + 1].astype(np.int64) - 1
        while np.any(low < high):  # one binary search in the ascending passage ids of each source
            middle = (low + high) // 2
            is_before = (self.passages[middle] < wanted) & (low < high)  # finished searches keep their position
            low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, middle)
        is_here = self.passages[low] == wanted
        return which[is_here], low[is_here].astype(np.uint32)

    def rows_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of sources, given by their numbers."""
        return expand_ranges(self.runs[numbers].astype(np.int64), self.runs[numbers + 1].astype(np.int64))


def expand_ranges(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of all ranges, one range after the other."""
    sizes = stops - starts
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + sizes, sizes)


def in_memory(_name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Allocate an array of a segment that is not written to a file."""
    return np.empty(shape, dtype)


def write(path: Path, fill: Callable[[Allocate], Segment]) -> None:
    """Write a segment to a file. `fill` builds the segment in arrays that it allocates by name (see `arrays`)."""
    unfinished = path.with_suffix(".unfinished")
    try:
        with open(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "r+b") as file:
            _write(file, fill)
        os.replace(unfinished, path)
        _sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def copy(segment: Segment) -> Callable[[Allocate], Segment]:
    """Return the argument of `write` that copies an existing segment."""

    def fill(allocate: Allocate) -> Segment:
        for name, array in arrays(segment):
            allocate(name, array.dtype, array.shape)[...] = array
        return segment

    return fill


def read(path: Path) -> Segment:
    """Map the segment in a file, after its checksums have been verified."""
    try:
        mapped: NDArray[np.uint8] = np.asarray(np.memmap(path, np.uint8, "r"))
        magic, start, length, *sums = _HEADER.unpack(mapped[: _HEADER.size].tobytes())
        if magic != _MAGIC or start + length > len(mapped) or tuple(sums) != _checksums(mapped):
            raise SegmentUnreadable("it is damaged")
        return _assemble(mapped, orjson.loads(mapped[start : start + length].tobytes()))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SegmentUnreadable("it is missing") from error
    except (ValueError, struct.error) as error:
        raise SegmentUnreadable("it is damaged") from error
    except OSError as error:  # out of file handles or memory: the file itself may be sound
        raise Unavailable(f"An index file cannot be opened: {error.strerror}.") from error


def arrays(segment: Segment) -> Iterable[tuple[str, NDArray[Any]]]:
    """Yield every array of a segment with its name in a file."""
    for name in _ARRAYS:
        yield name, getattr(segment, name)
    for key, matrix in segment.matrices.items():
        for name in _PARTS:
            yield matrix_name(key, name), getattr(matrix, name)


def matrix_name(key: Key, part: str) -> str:
    """Return the name of one array of a matrix in a file."""
    return f"{part} {key[1]} {key[0]}"


_ARRAYS = (
    "firsts", "sources", "places", "runs", "owners", "passages", "lengths", "terms", "offsets", "rows", "counts",
)  # fmt: skip
_PARTS = ("rows", "values", "scales", "centre", "sketches")


def _write(file: BinaryIO, fill: Callable[[Allocate], Segment]) -> None:
    listed: dict[str, tuple[str, tuple[int, ...], int]] = {}
    mapped: list[np.memmap[Any, Any]] = []
    end = _ALIGNMENT

    def allocate(name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        nonlocal end
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        listed[name] = kind.str, shape, end
        if not size:
            return np.empty(shape, kind)
        _reserve(file, end, size)
        mapped.append(np.memmap(file, kind, "r+", end, shape))
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return np.asarray(mapped[-1])

    segment = fill(allocate)
    for array in mapped:
        array.flush()
    directory = orjson.dumps({"arrays": listed, "collections": segment.collections, "matrices": list(segment.matrices)})
    file.seek(end)
    file.write(directory + bytes(-len(directory) % 8))
    file.flush()
    whole: NDArray[np.uint8] = np.asarray(np.memmap(file, np.uint8, "r"))
    file.seek(0)
    file.write(_HEADER.pack(_MAGIC, end, len(directory), *_checksums(whole)))
    file.flush()
    os.fsync(file.fileno())


def _reserve(file: BinaryIO, start: int, size: int) -> None:
    """Reserve disk space. Without it, writing to a mapped page on a full disk kills the process."""
    size = -(-size // _ALIGNMENT) * _ALIGNMENT
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), start, size)
        return
    file.seek(start)
    for written in range(0, size, _WORDS_AT_ONCE):
        file.write(bytes(min(_WORDS_AT_ONCE, size - written)))
    file.flush()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checksums(file: NDArray[np.uint8]) -> tuple[int, int]:
    """Return two checksums of everything after the header. They run at the speed of memory, because a slow checksum
    would make the start of the server slow."""
    words = file[_ALIGNMENT : len(file) // 8 * 8].view(np.uint64)
    total, mixed = len(file), 0
    for start in range(0, len(words), _WORDS_AT_ONCE):
        block = words[start : start + _WORDS_AT_ONCE]
        total = (total + int(np.add.reduce(block))) % 2**64
        mixed ^= int(np.bitwise_xor.reduce(block))
    return total, mixed


def _assemble(mapped: NDArray[np.uint8], directory: Mapping[str, Any]) -> Segment:
    def array(name: str) -> NDArray[Any]:
        kind, shape, start = directory["arrays"][name]
        dtype = np.dtype(kind)
        size = math.prod(shape) * dtype.itemsize
        return mapped[start : start + size].view(dtype).reshape(shape)

    matrices = {
        (model, size): QuantisedVectors(*(array(matrix_name((model, size), part)) for part in _PARTS))
        for model, size in directory["matrices"]
    }
    return Segment(tuple(directory["collections"]), **{name: array(name) for name in _ARRAYS}, matrices=matrices)
