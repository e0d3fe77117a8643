"""Segments: the immutable arrays that an embedded search reads, in memory or mapped from a file.

The passages of a segment are numbered by row: those of a collection stand together, within it those of a source. So
whatever is asked of one collection is asked of one range of rows, and no other collection adds to its cost.

A file is a header, the arrays, and a directory of them. It appears under its name whole and is never changed.
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

NOT_ANALYSED = 2**32 - 1  # the length of a passage whose words are still to be analysed

_MAGIC = b"almanac1"
_HEADER = struct.Struct("<8sQQQQ")  # the magic, where the directory is, how long it is, two checksums
_START = 64  # where the arrays begin; each begins at a multiple of this
_BLOCK = 2**21  # words of 8 bytes that are summed at once: they fit into a cache

Allocate = Callable[[str, DTypeLike, tuple[int, ...]], NDArray[Any]]
Key = tuple[str, int]  # a model, and how many numbers its vectors have


class SegmentUnreadable(Exception):
    """A file that is not there, or is not what was written."""


@dataclass(frozen=True, eq=False)
class QuantisedVectors:
    """Vectors of one model, in few bits (see `quantisation.py`)."""

    rows: NDArray[np.uint32]  # ascending
    values: NDArray[np.int8]
    scales: NDArray[np.float32]  # what to multiply a product with the values by, to have the cosine
    centre: NDArray[np.float32]
    sketches: NDArray[np.uint8]  # none where the vectors are few


@dataclass(frozen=True, eq=False)
class Segment:
    """Passages of some sources as they were at one time."""

    collections: tuple[str, ...]  # ascending
    firsts: NDArray[np.int64]  # by collection: where its sources begin; one more for the end
    sources: NDArray[np.int64]  # ids, ascending
    places: NDArray[np.uint32]  # for each of these ids, which in the order of rows it is
    runs: NDArray[np.uint32]  # by source in the order of rows: where its rows begin; one more for the end
    owners: NDArray[np.uint32]  # by row: its source, in the order of rows
    passages: NDArray[np.int64]  # by row: ids
    lengths: NDArray[np.uint32]  # by row: in words
    terms: NDArray[np.int64]  # ascending
    offsets: NDArray[np.int64]  # by term: where its postings begin; one more for the end
    rows: NDArray[np.uint32]  # by posting: where the term stands
    counts: NDArray[np.uint8]  # by posting: how often
    matrices: Mapping[Key, QuantisedVectors]

    @cached_property
    def named(self) -> dict[str, int]:
        """Which of the collections each one is, by its name."""
        return {name: place for place, name in enumerate(self.collections)}

    @cached_property
    def bounds(self) -> NDArray[np.uint32]:
        """By collection: where its rows begin; one more for the end."""
        return self.runs[self.firsts]

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        """The ids of the sources in the order of rows. Eight bytes a source, from the first search on."""
        ids = np.empty(len(self.sources), np.int64)
        ids[self.places] = self.sources
        return ids

    def find(self, source_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of the sources here these ids are; without those that are not here."""
        if not len(self.sources):
            return np.zeros(0, np.int64)
        at = np.minimum(np.searchsorted(self.sources, source_ids), len(self.sources) - 1)
        return self.places[at[self.sources[at] == source_ids]].astype(np.int64)

    def sources_of(self, rows: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The ids of the sources that rows are of."""
        return self.ids[self.owners[rows]]

    def locate(
        self, passages: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Which of some passages, given with their sources, are here, and their rows."""
        at = np.minimum(self.sources.searchsorted(sources), max(len(self.sources) - 1, 0))
        which = np.flatnonzero(self.sources[at] == sources) if len(self.sources) else np.zeros(0, np.int64)
        wanted, runs = passages[which], self.places[at[which]].astype(np.int64)
        low, high = self.runs[runs].astype(np.int64), self.runs[runs + 1].astype(np.int64) - 1
        while np.any(low < high):  # those of a source ascend
            middle = (low + high) // 2
            is_before = (self.passages[middle] < wanted) & (low < high)  # those that have ended stay where they are
            low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, middle)
        here = self.passages[low] == wanted
        return which[here], low[here].astype(np.uint32)

    def rows_of(self, sources: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of sources, given in the order of rows."""
        return spread(self.runs[sources].astype(np.int64), self.runs[sources + 1].astype(np.int64))


def spread(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every number of some ranges, one range after the other."""
    sizes = stops - starts
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + sizes, sizes)


def in_memory(_name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Room for an array of a segment that is not kept."""
    return np.empty(shape, dtype)


def write(path: Path, fill: Callable[[Allocate], Segment]) -> None:
    """Put a segment into a file; `fill` makes it, asking for the room of each array by its name (see `arrays`)."""
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
    """For `write`: a segment as it is."""

    def fill(allocate: Allocate) -> Segment:
        for name, array in arrays(segment):
            allocate(name, array.dtype, array.shape)[...] = array
        return segment

    return fill


def read(path: Path) -> Segment:
    """Map the segment in a file, after a look at all of it."""
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
    except OSError as error:  # handles or memory are short, which says nothing of the file
        raise Unavailable(f"A file of the index cannot be opened: {error.strerror}.") from error


def arrays(segment: Segment) -> Iterable[tuple[str, NDArray[Any]]]:
    """Every array of a segment with the name it has in a file."""
    for name in _ARRAYS:
        yield name, getattr(segment, name)
    for key, matrix in segment.matrices.items():
        for name in _PARTS:
            yield matrix_name(key, name), getattr(matrix, name)


def matrix_name(key: Key, part: str) -> str:
    """The name of one array of a matrix."""
    return f"{part} {key[1]} {key[0]}"


_ARRAYS = (
    "firsts", "sources", "places", "runs", "owners", "passages", "lengths", "terms", "offsets", "rows", "counts",
)  # fmt: skip
_PARTS = ("rows", "values", "scales", "centre", "sketches")


def _write(file: BinaryIO, fill: Callable[[Allocate], Segment]) -> None:
    listed: dict[str, tuple[str, tuple[int, ...], int]] = {}
    mapped: list[np.memmap[Any, Any]] = []
    end = _START

    def allocate(name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        nonlocal end
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        listed[name] = kind.str, shape, end
        if not size:
            return np.empty(shape, kind)
        _reserve(file, end, size)
        mapped.append(np.memmap(file, kind, "r+", end, shape))
        end += -(-size // _START) * _START
        return np.asarray(mapped[-1])

    segment = fill(allocate)
    for each in mapped:
        each.flush()
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
    """Have the room now: to write to a mapped page that the disk has no room for ends the process."""
    size = -(-size // _START) * _START
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), start, size)
        return
    file.seek(start)
    for written in range(0, size, _BLOCK):
        file.write(bytes(min(_BLOCK, size - written)))
    file.flush()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checksums(file: NDArray[np.uint8]) -> tuple[int, int]:
    """Two sums over all but the header, as fast as memory is: a checksum that is slower makes a start slow."""
    words = file[_START : len(file) // 8 * 8].view(np.uint64)
    total, mixed = len(file), 0
    for start in range(0, len(words), _BLOCK):
        block = words[start : start + _BLOCK]
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
