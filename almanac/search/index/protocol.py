"""The interface between search and its two indexes, `embedded/embedded_index.py` and `postgres/postgres_index.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from almanac.core.database import Value


@dataclass(frozen=True, slots=True)
class SearchScope:
    """The collections and the filter of a search. `where` is a condition on the sources `s`, with parameters from $1;
    empty means no filter."""

    collections: tuple[str, ...]
    where: str = ""
    args: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Hits:
    """Passages with raw scores, best first. Passages with equal scores are in the order of their ids."""

    ids: NDArray[np.int64]
    scores: NDArray[np.float32]
    sources: NDArray[np.int64]  # the source id of each passage


@dataclass(frozen=True, slots=True)
class KeywordHits(Hits):
    """The hits of the keyword retriever, with the statistics that their scores rest on. The statistics cover the
    collections of the scope without its filter, so a filter selects passages but does not change their scores."""

    passages: int  # analysed passages in the collections
    average: float  # average passage length in terms
    frequencies: tuple[int, ...]  # number of passages that contain each query term


@dataclass(frozen=True, slots=True)
class PassageVectors:
    """Stored vectors, scaled to length one."""

    ids: NDArray[np.int64]
    rows: NDArray[np.float32]

    @staticmethod
    def of(ids: NDArray[np.int64], numbers: NDArray[Any]) -> "PassageVectors":
        """Normalise one row for each id. Numbers that are not finite become 0; a zero vector stays zero."""
        rows: NDArray[np.float32] = numbers.astype(np.float32)
        squares: NDArray[np.float32] = np.einsum("ij,ij->i", rows, rows)
        if not np.isfinite(squares).all():
            rows = np.nan_to_num(rows, copy=False, posinf=0.0, neginf=0.0)
            squares = np.einsum("ij,ij->i", rows, rows)
        rows /= np.maximum(np.sqrt(squares), np.float32(1e-9))[:, None]
        return PassageVectors(ids, rows)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The number of passages in some collections, and the number of those with a vector."""

    passages: int
    embedded: int


class SearchIndex(Protocol):
    """One of the two indexes. Results reflect every transaction committed before the call."""

    holds_interpreter_lock: bool  # True if a keyword search blocks the other threads of this process

    async def keyword_hits(self, scope: SearchScope, terms: Sequence[int], limit: int) -> KeywordHits:
        """Return the best passages by BM25 over the terms, given as `analyser.term_hash` values."""
        ...

    async def vector_hits(
        self, scope: SearchScope, model: str, vector: NDArray[np.float32], limit: int, ef_search: int | None = None
    ) -> Hits:
        """Return the passages nearest to a vector of length one, by cosine. `ef_search` is the number of neighbours
        that a graph search keeps; an exact scan ignores it."""
        ...

    async def keyword_scores(self, hits: Hits, terms: Sequence[int], statistics: KeywordHits) -> NDArray[np.float32]:
        """Score other passages by BM25 over the terms, with the statistics of an earlier keyword search."""
        ...

    async def passage_vectors(self, model: str, size: int, ids: Sequence[int]) -> PassageVectors:
        """Return the stored vectors of passages, in any order. Passages without a vector of this model and size are
        left out."""
        ...

    async def coverage(self, collections: Sequence[str], model: str) -> Coverage: ...

    async def close(self) -> None: ...
