"""The seam between a search and what it searches: `index_embedded.py` and `index_postgres.py` implement it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from almanac.core.database import Value


@dataclass(frozen=True, slots=True)
class SearchScope:
    """Where a leg may look. `where` is a condition on the sources `s`, with parameters from $1; empty for all."""

    collections: tuple[str, ...]
    where: str = ""
    args: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Hits:
    """Passages with raw scores, the best first; among equals the lower id first."""

    ids: NDArray[np.int64]
    scores: NDArray[np.float32]
    sources: NDArray[np.int64]  # of each, the one it is of


@dataclass(frozen=True, slots=True)
class KeywordHits(Hits):
    """What the words leg found, and what it knows of the words. Statistics are those of the scope's collections,
    whatever `where` leaves of them, so that a filter changes what is found and not how it is judged."""

    passages: int  # how many there are in the collections
    average: float  # length of one, in terms
    frequencies: tuple[int, ...]  # for each term asked for, in how many of them it is


@dataclass(frozen=True, slots=True)
class PassageVectors:
    """Vectors as the database has them, brought to length one."""

    ids: NDArray[np.int64]
    rows: NDArray[np.float32]

    @staticmethod
    def of(ids: NDArray[np.int64], numbers: NDArray[Any]) -> "PassageVectors":
        """Those of `ids`, a row each. One of zeros, or of what is no number, is like nothing."""
        rows: NDArray[np.float32] = numbers.astype(np.float32)
        squares: NDArray[np.float32] = np.einsum("ij,ij->i", rows, rows)
        if not np.isfinite(squares).all():
            rows = np.nan_to_num(rows, copy=False, posinf=0.0, neginf=0.0)
            squares = np.einsum("ij,ij->i", rows, rows)
        rows /= np.maximum(np.sqrt(squares), np.float32(1e-9))[:, None]
        return PassageVectors(ids, rows)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many passages of some collections there are, and how many of them have vectors."""

    passages: int
    embedded: int


class SearchIndex(Protocol):
    """One of the two backends. Every answer holds for the database as it is when asked: nothing waits to be indexed."""

    holds_interpreter_lock: bool  # whether nothing else in this process gets on while words are looked for

    async def keyword_hits(self, scope: SearchScope, terms: Sequence[int], limit: int) -> KeywordHits:
        """The passages that match best by BM25 over these terms (see `analysis.hash_of`)."""
        ...

    async def vector_hits(
        self, scope: SearchScope, model: str, vector: NDArray[np.float32], limit: int, reach: int | None = None
    ) -> Hits:
        """The passages nearest to a vector of length one, by cosine. `reach` is how many neighbours a graph keeps in
        sight, where one is searched; an exact scan needs none."""
        ...

    async def keyword_scores(self, hits: Hits, terms: Sequence[int], found: KeywordHits) -> NDArray[np.float32]:
        """What the words leg, which found so much with these terms, would have given other passages."""
        ...

    async def passage_vectors(self, model: str, size: int, ids: Sequence[int]) -> PassageVectors:
        """The vectors of some passages, in any order; those without one of the model and of that size are left out."""
        ...

    async def coverage(self, collections: Sequence[str], model: str) -> Coverage: ...

    async def close(self) -> None: ...
