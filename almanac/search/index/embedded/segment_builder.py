"""Builds a segment in memory from the rows of the database."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from almanac.core.database import Row
from almanac.search.index.embedded.quantisation import quantise
from almanac.search.index.embedded.segments import NOT_ANALYSED, Key, Segment

POSITION_BITS = np.uint64(24)  # bits for the position of a posting while postings are sorted
_SIGN = np.uint64(2**63)


@dataclass
class SegmentRows:
    """Columns of passages. The database returns a passage with several vectors as several consecutive rows."""

    collections: list[str] = field(default_factory=list[str])
    sources: list[int] = field(default_factory=list[int])
    passages: list[int] = field(default_factory=list[int])
    words: list[bytes | None] = field(default_factory=list[bytes | None])
    vectors: dict[Key, tuple[list[int], list[bytes]]] = field(default_factory=dict[Key, tuple[list[int], list[bytes]]])

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows with source_id, collection, passage_id, words, model and vector."""
        last = self.passages[-1] if self.passages else None
        for row in rows:
            if (passage := row["passage_id"]) != last:
                self.collections.append(row["collection"])
                self.sources.append(row["source_id"])
                self.passages.append(passage)
                self.words.append(row["words"])
                last = passage
            if (vector := row["vector"]) is not None:
                positions, stored = self.vectors.setdefault((row["model"], len(vector) // 2), ([], []))
                positions.append(len(self.passages) - 1)
                stored.append(vector)


def build_segment(rows: SegmentRows) -> Segment:
    names, numbers = np.unique(np.array(rows.collections, object).astype(str), return_inverse=True)
    sources, passages = np.array(rows.sources, np.int64), np.array(rows.passages, np.int64)
    order = np.lexsort((passages, sources, numbers))
    numbers, sources = numbers[order], sources[order]
    begins = np.flatnonzero(np.diff(sources, prepend=-1))
    ids = sources[begins]
    by_id = np.argsort(ids)
    positions: list[int] = order.tolist()
    lengths, terms, offsets, posting_rows, counts = _invert([rows.words[position] for position in positions])
    row_of = np.empty(len(order), np.int64)
    row_of[order] = np.arange(len(order))
    return Segment(
        collections=tuple(names.tolist()),
        firsts=np.searchsorted(numbers[begins], np.arange(len(names) + 1)).astype(np.int64),
        sources=ids[by_id],
        places=by_id.astype(np.uint32),
        runs=np.append(begins, len(order)).astype(np.uint32),
        owners=np.repeat(np.arange(len(ids), dtype=np.uint32), np.diff(begins, append=len(order))),
        passages=passages[order],
        lengths=lengths,
        terms=terms,
        offsets=offsets,
        rows=posting_rows,
        counts=counts,
        matrices={
            key: quantise(row_of[np.array(positions)], stored, key) for key, (positions, stored) in rows.vectors.items()
        },
    )


def _invert(
    words: Sequence[bytes | None],
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint8]]:
    """Return the lengths of the rows; then the terms, their offsets, and the rows and counts of their postings."""
    sizes = [len(each) // 9 if each else 0 for each in words]
    pairs = [(each, size) for each, size in zip(words, sizes, strict=True) if each]
    # The encoding of `analyser.encode_terms`: all hashes of 8 bytes, then all counts of 1 byte.
    hashes = np.frombuffer(b"".join([each[: 8 * size] for each, size in pairs]), np.int64)
    counts = np.frombuffer(b"".join([each[8 * size : 9 * size] for each, size in pairs]), np.uint8)
    rows = np.repeat(np.arange(len(words), dtype=np.uint32), sizes)
    totals = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    lengths = np.diff(totals[np.cumsum([0, *sizes])]).astype(np.uint32)
    lengths[[row for row, each in enumerate(words) if each is None]] = NOT_ANALYSED
    order = _order(hashes)
    hashes = hashes[order]
    begins = np.flatnonzero(np.concatenate(([True] * bool(len(hashes)), hashes[1:] != hashes[:-1])))
    return lengths, hashes[begins], np.append(begins, len(hashes)).astype(np.int64), rows[order], counts[order]


def _order(hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order that sorts hashes, with equal hashes in their present order."""
    if len(hashes) < 2 ** int(POSITION_BITS):
        # Sorting plain numbers is several times as fast as `argsort`, so the upper bits of each hash are sorted with
        # its position. Two hashes that differ only in the other bits are rare, and the check below detects them.
        mask = np.uint64((1 << int(POSITION_BITS)) - 1)
        keys = ((hashes.view(np.uint64) ^ _SIGN) & ~mask) | np.arange(len(hashes), dtype=np.uint64)
        keys.sort()
        order = (keys & mask).astype(np.int64)
        ordered = hashes[order]
        if np.all(ordered[1:] >= ordered[:-1]):
            return order
    return np.argsort(hashes, kind="stable")
