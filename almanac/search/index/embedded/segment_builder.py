"""Batches: passages as the database has them, on their way into a segment."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from almanac.core.database import Row
from almanac.search.index.embedded.segments import NOT_ANALYSED, Key, Segment
from almanac.search.index.vector_tools import quantise

_PLACES = np.uint64(24)  # bits for the place of a posting while postings are sorted
_SIGN = np.uint64(2**63)


@dataclass
class SegmentRows:
    """Columns, filled row by row. A passage with several vectors comes in as many rows, one after the other."""

    collections: list[str] = field(default_factory=list[str])
    sources: list[int] = field(default_factory=list[int])
    passages: list[int] = field(default_factory=list[int])
    words: list[bytes | None] = field(default_factory=list[bytes | None])
    vectors: dict[Key, tuple[list[int], list[bytes]]] = field(default_factory=dict[Key, tuple[list[int], list[bytes]]])

    def add(self, rows: Iterable[Row]) -> None:
        """Rows with source_id, collection, passage_id, words, model and vector."""
        last = self.passages[-1] if self.passages else None
        for row in rows:
            if (passage := row["passage_id"]) != last:
                self.collections.append(row["collection"])
                self.sources.append(row["source_id"])
                self.passages.append(passage)
                self.words.append(row["words"])
                last = passage
            if (vector := row["vector"]) is not None:
                places, stored = self.vectors.setdefault((row["model"], len(vector) // 2), ([], []))
                places.append(len(self.passages) - 1)
                stored.append(vector)


def build_segment(batch: SegmentRows) -> Segment:
    """The segment that holds what a batch holds."""
    names, kinds = np.unique(np.array(batch.collections, object).astype(str), return_inverse=True)
    sources, passages = np.array(batch.sources, np.int64), np.array(batch.passages, np.int64)
    order = np.lexsort((passages, sources, kinds))
    kinds, sources = kinds[order], sources[order]
    begins = np.flatnonzero(np.diff(sources, prepend=-1))
    ids = sources[begins]
    by_id = np.argsort(ids)
    places: list[int] = order.tolist()
    lengths, terms, offsets, rows, counts = _invert([batch.words[place] for place in places])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return Segment(
        collections=tuple(names.tolist()),
        firsts=np.searchsorted(kinds[begins], np.arange(len(names) + 1)).astype(np.int64),
        sources=ids[by_id],
        places=by_id.astype(np.uint32),
        runs=np.append(begins, len(order)).astype(np.uint32),
        owners=np.repeat(np.arange(len(ids), dtype=np.uint32), np.diff(begins, append=len(order))),
        passages=passages[order],
        lengths=lengths,
        terms=terms,
        offsets=offsets,
        rows=rows,
        counts=counts,
        matrices={
            key: quantise(rank[np.array(places)], stored, key) for key, (places, stored) in batch.vectors.items()
        },
    )


def _invert(
    words: Sequence[bytes | None],
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint8]]:
    """Lengths by row; then terms, and their postings."""
    sizes = [len(each) // 9 if each else 0 for each in words]
    pairs = [(each, size) for each, size in zip(words, sizes, strict=True) if each]
    hashes = np.frombuffer(b"".join([each[: 8 * size] for each, size in pairs]), np.int64)  # see `analysis.unpack`
    counts = np.frombuffer(b"".join([each[8 * size : 9 * size] for each, size in pairs]), np.uint8)
    rows = np.repeat(np.arange(len(words), dtype=np.uint32), sizes)
    lengths = np.diff(np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))[np.cumsum([0, *sizes])]).astype(
        np.uint32
    )
    lengths[[place for place, each in enumerate(words) if each is None]] = NOT_ANALYSED
    order = _order(hashes)
    hashes = hashes[order]
    begins = np.flatnonzero(np.concatenate(([True] * bool(len(hashes)), hashes[1:] != hashes[:-1])))
    return lengths, hashes[begins], np.append(begins, len(hashes)).astype(np.int64), rows[order], counts[order]


def _order(hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """How to sort hashes, equal ones by their place."""
    if len(hashes) < 2 ** int(_PLACES):
        # Sorting plain numbers is several times as fast as sorting places by them, so that most bits of each hash are
        # sorted together with its place. Two hashes that differ in the other bits only are rare, and seen at once.
        mask = np.uint64((1 << int(_PLACES)) - 1)
        keys = ((hashes.view(np.uint64) ^ _SIGN) & ~mask) | np.arange(len(hashes), dtype=np.uint64)
        keys.sort()
        order = (keys & mask).astype(np.int64)
        ordered = hashes[order]
        if np.all(ordered[1:] >= ordered[:-1]):
            return order
    return np.argsort(hashes, kind="stable")
