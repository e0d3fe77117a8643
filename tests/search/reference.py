"""The naive reference for both indexes: BM25 and cosine in plain Python, over every row, without caches."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from almanac.core.database import Database
from almanac.search.analysis import analyser
from almanac.search.index.protocol import Coverage, Hits, KeywordHits, SearchScope
from almanac.search.ranking import bm25

_ROWS = """
SELECT p.id, p.source_id, p.words FROM passages p JOIN sources s ON s.id = p.source_id
WHERE s.is_live = 1 AND s.collection = $1 ORDER BY p.id
"""
_VECTORS = """
SELECT v.passage_id, v.vector FROM vectors v JOIN passages p ON p.id = v.passage_id JOIN sources s ON s.id = p.source_id
WHERE s.is_live = 1 AND s.collection = $1 AND v.model = $2
"""


@dataclass(frozen=True)
class Reference:
    """The expected results of an index. A large limit gives the score of every matching passage."""

    db: Database

    async def words(self, scope: SearchScope, terms: Sequence[int], limit: int = 1_000_000) -> KeywordHits:
        """The keyword search. Passages without analysis do not count; a repeated term counts twice."""
        kept = await self._kept(scope)
        counted: dict[int, dict[int, int]] = {}
        source_of: dict[int, int] = {}
        for row in await self._rows(scope):
            if row["words"] is not None:
                hashes, counts = analyser.decode_terms(bytes(row["words"]))
                counted[row["id"]] = dict(zip(hashes.tolist(), counts.tolist(), strict=True))
                source_of[row["id"]] = row["source_id"]
        average = sum(sum(words.values()) for words in counted.values()) / len(counted) if counted else 0.0
        frequencies = tuple(sum(term in words for words in counted.values()) for term in terms)
        scores = {
            id: _bm25(words, terms, frequencies, len(counted), average)
            for id, words in counted.items()
            if source_of[id] in kept
        }
        ids, best = _best({id: score for id, score in scores.items() if score > 0}, limit)
        return KeywordHits(ids, best, _sources(ids, source_of), len(counted), average, frequencies)

    async def vectors(
        self, scope: SearchScope, model: str, vector: NDArray[np.float32], limit: int = 1_000_000
    ) -> Hits:
        kept = await self._kept(scope)
        source_of = {row["id"]: row["source_id"] for row in await self._rows(scope)}
        asked = vector.astype(np.float64)
        scores = {
            id: float(asked @ stored) / (float(np.linalg.norm(stored)) or 1.0)
            for id, stored in (await self._vectors(scope.collections, model)).items()
            if source_of[id] in kept and len(stored) == len(asked)
        }
        ids, best = _best(scores, limit)
        return Hits(ids, best, _sources(ids, source_of))

    async def coverage(self, collections: Sequence[str], model: str) -> Coverage:
        rows = await self._rows(SearchScope(tuple(collections)))
        return Coverage(len(rows), len(await self._vectors(collections, model)))

    async def _rows(self, scope: SearchScope) -> list[Any]:
        return [row for name in sorted(set(scope.collections)) for row in await self.db.fetch(_ROWS, name)]

    async def _kept(self, scope: SearchScope) -> set[int]:
        rows = await self.db.fetch(f"SELECT s.id FROM sources s WHERE {scope.where or '1 = 1'}", *scope.args)
        return {row["id"] for row in rows}

    async def _vectors(self, collections: Iterable[str], model: str) -> dict[int, NDArray[np.float64]]:
        sql = _VECTORS if self.db.dialect == "sqlite" else _VECTORS.replace("v.vector", "CAST(v.vector AS text) vector")
        return {
            row["passage_id"]: _numbers(row["vector"])
            for name in sorted(set(collections))
            for row in await self.db.fetch(sql, name, model)
        }


def assert_agrees(found: Hits, everything: Hits, limit: int, tolerance: float) -> None:
    """Check that these are the best `limit` of all matches, with scores equal within a tolerance."""
    expected: dict[int, float] = dict(zip(everything.ids.tolist(), everything.scores.tolist(), strict=True))
    ids, scores = found.ids.tolist(), found.scores.tolist()
    assert len(ids) == min(limit, len(expected))
    assert len(set(ids)) == len(ids)
    assert set(ids) <= set(expected)
    for id, score in zip(ids, scores, strict=True):
        assert math.isclose(score, expected[id], rel_tol=tolerance, abs_tol=tolerance), (id, score, expected[id])
    assert [(-score, id) for id, score in zip(ids, scores, strict=True)] == sorted(
        (-score, id) for id, score in zip(ids, scores, strict=True)
    )
    sources: dict[int, int] = dict(zip(everything.ids.tolist(), everything.sources.tolist(), strict=True))
    assert found.sources.tolist() == [sources[id] for id in ids]
    missed = max((score for id, score in expected.items() if id not in set(ids)), default=-math.inf)
    assert not scores or missed <= scores[-1] + 2 * tolerance * max(1.0, abs(scores[-1]))


def assert_weighs(weights: NDArray[np.float32], near: Hits, everything: KeywordHits) -> None:
    """Check that passages have the weights of the keyword leg: 0 without a common word."""
    expected: dict[int, float] = dict(zip(everything.ids.tolist(), everything.scores.tolist(), strict=True))
    assert weights.tolist() == [pytest.approx(expected.get(id, 0.0), rel=1e-5, abs=1e-6) for id in near.ids.tolist()]


def _sources(ids: NDArray[np.int64], source_of: Mapping[int, int]) -> NDArray[np.int64]:
    return np.array([source_of[id] for id in ids.tolist()], np.int64)


def _bm25(
    words: Mapping[int, int], terms: Sequence[int], frequencies: Sequence[int], passages: int, average: float
) -> float:
    score, length = 0.0, sum(words.values())
    for term, frequency in zip(terms, frequencies, strict=True):
        if count := words.get(term, 0):
            weight = math.log(1 + (passages - frequency + 0.5) / (frequency + 0.5))
            score += weight * count / (count + bm25.K1 * (1 - bm25.B + bm25.B * length / average))
    return score


def _best(scores: Mapping[int, float], limit: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:limit]
    return np.array([id for id, _ in ranked], np.int64), np.array([score for _, score in ranked], np.float32)


def _numbers(stored: Any) -> NDArray[np.float64]:
    if isinstance(stored, str):
        return np.array(stored.strip("[]").split(","), np.float64)
    return np.frombuffer(bytes(stored), np.float16).astype(np.float64)
