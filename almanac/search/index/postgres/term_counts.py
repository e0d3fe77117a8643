"""How many passages have a term, in PostgreSQL: known beforehand for the common ones, for counting those takes long.

A collection's common terms are counted in the background (`count`), and again when it has grown or shrunk by a tenth or
when a day has passed. In between, what was counted is taken to have grown with the collection. This decides which
lists a search follows; a term whose list it follows is counted exactly, so only the weights of the commonest terms
are estimates, and theirs are the smallest.
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

MIN_COUNTED_PASSAGES = 200  # passages of a collection that is worth counting
FLOOR = 8  # passages that have a term which is worth remembering
DRIFT = 0.1  # by which a collection changes before it is counted anew
MAX_COUNT_AGE = clock.DAY
TRUSTED = 30.0  # seconds for which a process believes what it has read
DOUBTED = 1.0  # likewise, while most of what it asked about has not been counted yet

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
_KEEP = """
INSERT INTO frequencies (collection, counted_at, passages, terms, counts) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (collection) DO UPDATE SET counted_at = excluded.counted_at, passages = excluded.passages,
    terms = excluded.terms, counts = excluded.counts
"""

Lists = Sequence[tuple[int, int]]  # those of terms: each a level (`index_rows.LEVELS`) and the place of a term


@dataclass(frozen=True, slots=True)
class Frequencies:
    """What is known of the terms of some collections."""

    passages: int  # in those that have been counted
    terms: NDArray[np.int32]  # short, of any level, sorted; all others are rare
    counts: NDArray[np.int64]

    def of(self, terms: NDArray[np.int32], passages: int) -> NDArray[np.int64]:
        """How many of so many passages have each of these terms, supposing that they are like those counted."""
        if not len(self.terms):
            return np.zeros(len(terms), np.int64)
        places = np.minimum(np.searchsorted(self.terms, terms), len(self.terms) - 1)
        counts = np.where(self.terms[places] == terms, self.counts[places], 0)
        return np.minimum(np.rint(counts * (passages / self.passages)).astype(np.int64), passages)


class TermCountCache:
    """The frequencies a process has read lately."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._recent = RefreshingCache[Frequencies]()

    async def of(self, collections: tuple[str, ...], passages: int) -> Frequencies | None:
        """What is known of some collections; None where it says too little about the passages they have now."""
        known = self._recent.get(collections)
        if known is None:
            known = await self._read(collections)
            self._recent.put(collections, known, TRUSTED if 2 * known.passages >= passages else DOUBTED)
        return known if 2 * known.passages >= passages else None

    async def _read(self, collections: tuple[str, ...]) -> Frequencies:
        names: Any = list(collections)
        rows = await self._db.fetch(_READ, names)
        terms = np.frombuffer(b"".join(row["terms"] for row in rows), np.int32)
        counts = np.frombuffer(b"".join(row["counts"] for row in rows), np.int32)
        if len(rows) > 1:
            terms, places = np.unique(terms, return_inverse=True)
            counts = np.bincount(places, counts, len(terms))
        return Frequencies(sum(row["passages"] for row in rows), terms, counts.astype(np.int64))


async def count(db: Database) -> list[str]:
    """Count the common terms of the collections that have changed much; which these were."""
    due = await db.scan(_DUE, MIN_COUNTED_PASSAGES, clock.now() - MAX_COUNT_AGE, DRIFT)
    for row in due:
        await _count(db, row["collection"], row["passages"])
    return [row["collection"] for row in due]


async def _count(db: Database, collection: str, passages: int) -> None:
    rows = await db.scan(_COUNT, collection, FLOOR)
    terms = np.fromiter((row["term"] for row in rows), np.int32, len(rows)) ^ tables.collection_salt(collection)
    counts = np.fromiter((row["passages"] for row in rows), np.int32, len(rows))
    order = np.argsort(terms)
    found = (collection, clock.now(), passages, terms[order].tobytes(), counts[order].tobytes())

    async def keep(tx: Transaction) -> None:
        await tx.execute("DELETE FROM frequencies WHERE collection NOT IN (SELECT collection FROM sources)")
        await tx.execute(_KEEP, *found)

    await db.write(keep)


@dataclass(frozen=True, slots=True)
class PostingChoice:
    """Lists that lead to candidates, each a level and the place of a term."""

    followed: Lists
    sampled: Lists = ()  # too long to follow, and yet needed

    @property
    def whole(self) -> list[int]:
        """The places of the terms whose whole lists are followed."""
        return [place for level, place in self.followed if level == 0]


def choose_postings(lengths: Sequence[NDArray[np.int64]], most: int, least: int) -> PostingChoice:
    """Which lists to follow so that they lead to about `most` passages. `lengths` has the lengths of the lists of every
    term, for each level. The rarest term comes first; of one that is too common, the list of passages in which it
    stands often enough. Where that leads to fewer than `least`, longer lists are followed, up to twice `most`; of the
    first that is longer still, some passages have to do."""
    longest = 2 * most
    chosen: dict[int, int] = {}  # levels by place
    rarest_first: list[int] = np.argsort(lengths[0], kind="stable").tolist()
    for place in rarest_first:
        fitting = [level for level in range(len(lengths)) if lengths[level][place] <= most]
        chosen[place] = fitting[0] if fitting else len(lengths)
        most -= int(lengths[fitting[0]][place]) if fitting else 0
    sampled: Lists = ()
    for place in rarest_first:
        while chosen[place] and not sampled and _total(lengths, chosen) < least:
            if lengths[chosen[place] - 1][place] > longest:
                sampled = ((chosen[place] - 1, place),)
            else:
                chosen[place] -= 1
    return PostingChoice([(level, place) for place, level in chosen.items() if level < len(lengths)], sampled)


def _total(lengths: Sequence[NDArray[np.int64]], chosen: dict[int, int]) -> int:
    return sum(int(lengths[level][place]) for place, level in chosen.items() if level < len(lengths))
