"""The number of passages that contain a term, in PostgreSQL. Common terms are counted in advance, because counting them
during a search takes too long.

A background job counts the common terms of a collection (`count`), and counts them again when the collection has grown
or shrunk by a tenth, or after a day. In between, the counts are scaled with the size of the collection. They decide
which posting lists a search reads. A term whose list is read is counted exactly, so only the weights of the most common
terms are estimates, and these weights are the smallest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from almanac.core import clock
from almanac.core.database import Database, Transaction
from almanac.search.index import tables
from almanac.search.index.caching import RefreshingCache

MIN_COUNTED_PASSAGES = 200  # smaller collections are not counted
MIN_TERM_PASSAGES = 8  # counts of rarer terms are not stored
MAX_SIZE_CHANGE = 0.1  # share by which a collection changes before it is counted again
MAX_COUNT_AGE = clock.DAY
CACHE_SECONDS = 30.0
INCOMPLETE_CACHE_SECONDS = 1.0  # while most passages of the collections have not been counted yet

_READ = "SELECT passages, terms, counts FROM frequencies WHERE collection = ANY($1)"
_DUE = """
SELECT s.collection, CAST(sum(s.passages) AS bigint) AS passages
FROM sources s LEFT JOIN frequencies f ON f.collection = s.collection
WHERE s.is_live = 1 GROUP BY s.collection, f.passages, f.counted_at
HAVING sum(s.passages) >= $1
    AND (f.passages IS NULL OR f.counted_at < $2
        OR abs(sum(s.passages) - f.passages) > CAST($3 AS double precision) * f.passages)
ORDER BY s.collection
"""
_COUNT = """
SELECT term, count(*) AS passages FROM sources s JOIN terms t ON t.source_id = s.id CROSS JOIN unnest(t.terms) AS term
WHERE s.collection = $1 AND s.is_live = 1 GROUP BY term HAVING count(*) >= $2
"""
_STORE = """
INSERT INTO frequencies (collection, counted_at, passages, terms, counts) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (collection) DO UPDATE SET counted_at = excluded.counted_at, passages = excluded.passages,
    terms = excluded.terms, counts = excluded.counts
"""

PostingLists = Sequence[tuple[int, int]]  # (level, see `tables.LEVEL_MIN_VALUES`; position of the term in the query)


@dataclass(frozen=True, slots=True)
class TermCounts:
    """The common terms of some collections."""

    passages: int  # in the counted collections
    terms: NDArray[np.int32]  # short hashes with the salts of their levels, ascending; all other terms are rare
    counts: NDArray[np.int64]

    def of(self, terms: NDArray[np.int32], passages: int) -> NDArray[np.int64]:
        """Estimate the number of passages that contain each term, in collections that now have so many passages."""
        if not len(self.terms):
            return np.zeros(len(terms), np.int64)
        positions = np.minimum(np.searchsorted(self.terms, terms), len(self.terms) - 1)
        counts = np.where(self.terms[positions] == terms, self.counts[positions], 0)
        return np.minimum(np.rint(counts * (passages / self.passages)).astype(np.int64), passages)


class TermCountCache:
    """The term counts that a process has read recently."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._recent = RefreshingCache[TermCounts]()

    async def of(self, collections: tuple[str, ...], passages: int) -> TermCounts | None:
        """Return the counts of collections, or None if they cover less than half of the present passages."""
        counts = self._recent.get(collections)
        if counts is None:
            counts = await self._read(collections)
            is_complete = 2 * counts.passages >= passages
            self._recent.put(collections, counts, CACHE_SECONDS if is_complete else INCOMPLETE_CACHE_SECONDS)
        return counts if 2 * counts.passages >= passages else None

    async def _read(self, collections: tuple[str, ...]) -> TermCounts:
        names: Any = list(collections)
        rows = await self._db.fetch(_READ, names)
        terms = np.frombuffer(b"".join(row["terms"] for row in rows), np.int32)
        counts = np.frombuffer(b"".join(row["counts"] for row in rows), np.int32)
        if len(rows) > 1:
            terms, positions = np.unique(terms, return_inverse=True)
            counts = np.bincount(positions, counts, len(terms))
        return TermCounts(sum(row["passages"] for row in rows), terms, counts.astype(np.int64))


async def count(db: Database) -> list[str]:
    """Count the common terms of the collections that have changed, and return these collections."""
    due = await db.scan(_DUE, MIN_COUNTED_PASSAGES, clock.now() - MAX_COUNT_AGE, MAX_SIZE_CHANGE)
    for row in due:
        await _count(db, row["collection"], row["passages"])
    return [row["collection"] for row in due]


async def _count(db: Database, collection: str, passages: int) -> None:
    rows = await db.scan(_COUNT, collection, MIN_TERM_PASSAGES)
    terms = np.fromiter((row["term"] for row in rows), np.int32, len(rows)) ^ tables.collection_salt(collection)
    counts = np.fromiter((row["passages"] for row in rows), np.int32, len(rows))
    order = np.argsort(terms)
    found = (collection, clock.now(), passages, terms[order].tobytes(), counts[order].tobytes())

    async def store(tx: Transaction) -> None:
        await tx.execute("DELETE FROM frequencies WHERE collection NOT IN (SELECT collection FROM sources)")
        await tx.execute(_STORE, *found)

    await db.write(store)


@dataclass(frozen=True, slots=True)
class PostingChoice:
    """The posting lists that a search reads."""

    followed: PostingLists  # read completely
    sampled: PostingLists = ()  # too long to read completely, but needed

    @property
    def whole(self) -> list[int]:
        """The positions of the terms whose list of level 0 is read completely."""
        return [term for level, term in self.followed if level == 0]


def choose_postings(lengths: Sequence[NDArray[np.int64]], most: int, least: int) -> PostingChoice:
    """Choose lists with about `most` passages in total. `lengths` contains the length of the list of each term, by
    level. The rarest term is chosen first, with its longest list that fits. If the lists have fewer than `least`
    passages in total, longer lists are chosen, with up to twice `most` passages each. The first list that is longer
    still is sampled."""
    longest = 2 * most
    levels: dict[int, int] = {}  # by term
    rarest_first: list[int] = np.argsort(lengths[0], kind="stable").tolist()
    for term in rarest_first:
        fitting = [level for level in range(len(lengths)) if lengths[level][term] <= most]
        levels[term] = fitting[0] if fitting else len(lengths)
        most -= int(lengths[fitting[0]][term]) if fitting else 0
    sampled: PostingLists = ()
    for term in rarest_first:
        while levels[term] and not sampled and _total(lengths, levels) < least:
            if lengths[levels[term] - 1][term] > longest:
                sampled = ((levels[term] - 1, term),)
            else:
                levels[term] -= 1
    return PostingChoice([(level, term) for term, level in levels.items() if level < len(lengths)], sampled)


def _total(lengths: Sequence[NDArray[np.int64]], levels: dict[int, int]) -> int:
    return sum(int(lengths[level][term]) for term, level in levels.items() if level < len(lengths))
