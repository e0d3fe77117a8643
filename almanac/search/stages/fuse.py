"""Fuse: give each hit the scores of both retrievers, on one scale.

A keyword score is divided by that of a perfect match, and a vector score is the cosine. A passage that only one
retriever returned gets the score of the other as well.
"""

import time
from collections.abc import Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray

from almanac.core.database import Row
from almanac.search.analysis import analyser
from almanac.search.index import title_index
from almanac.search.index.protocol import Hits, PassageVectors
from almanac.search.ranking import bm25, calibration
from almanac.search.ranking.candidates import KEYWORD_WEIGHT, Candidates
from almanac.search.resources import SearchResources, SearchRun
from almanac.search.stages.retrieve import RetrievedHits

_LEGS = {
    (is_keyword_hit, is_vector_hit): ("words",) * is_keyword_hit + ("vectors",) * is_vector_hit
    for is_keyword_hit, is_vector_hit in product((False, True), repeat=2)
}


async def fuse(resources: SearchResources, run: SearchRun, hits: RetrievedHits) -> Candidates:
    """The candidates of all retrievers."""
    begun = time.perf_counter()
    sources, title_ids, rows = hits.sources(), hits.title_ids, dict[int, Row]()
    if hits.parsed.query.profile.score == "rank":
        rows = await resources.rows(list(dict.fromkeys((*sources, *title_ids))))
        sources = {id: row["source_id"] for id, row in rows.items()}
        title_ids = [*title_ids, *_keyword_hits_with_title_match(hits, rows)]
    stored = {
        model: await resources.index.passage_vectors(model, len(vector), list(sources))
        for model, vector in hits.query_vectors.items()
    }
    keyword_scores = await _keyword_scores(resources, hits, sources)
    candidates = _candidates(hits, sources, title_ids, stored, keyword_scores, rows)
    run.record("read", begun, fused=len(sources))
    return candidates


def _keyword_hits_with_title_match(hits: RetrievedHits, rows: Mapping[int, Row]) -> list[int]:
    text = hits.parsed.query.text
    return [id for id in hits.keyword.ids.tolist() if id in rows and title_index.has(rows[id]["title"], text)]


async def _keyword_scores(
    resources: SearchResources, hits: RetrievedHits, sources: Mapping[int, int]
) -> dict[int, float]:
    """The keyword score of each passage, also of those that are no keyword hits."""
    keyword = hits.keyword
    scores: dict[int, float] = dict(zip(keyword.ids.tolist(), keyword.scores.tolist(), strict=True))
    if keyword.frequencies and (others := {id: source for id, source in sources.items() if id not in scores}):
        ids, source_ids = np.fromiter(others, np.int64), np.fromiter(others.values(), np.int64)
        other_hits = Hits(ids, np.zeros(len(ids), np.float32), source_ids)
        found = await resources.index.keyword_scores(other_hits, hits.parsed.hashes, keyword)
        scores |= zip(others, found.tolist(), strict=True)
    return scores


def _candidates(
    hits: RetrievedHits,
    sources: Mapping[int, int],
    title_ids: list[int],
    stored: Mapping[str, PassageVectors],
    keyword_scores: Mapping[int, float],
    rows: Mapping[int, Row],
) -> Candidates:
    keyword, vector_ids = hits.keyword, set(hits.vector.ids.tolist())
    keyword_ids = {*keyword.ids.tolist(), *title_ids}
    ids = np.array(list(sources), np.int64)
    rarities, perfect_score, coverage = _rarities(hits)
    scores = np.array([keyword_scores.get(id, 0.0) for id in sources], np.float32)
    shares: NDArray[np.float32] = scores / np.float32(max(perfect_score, 1e-3))
    covered_shares: NDArray[np.float32] = shares * coverage
    place_by_id = {id: place for place, id in enumerate(sources)}
    cosines, has_vector = np.zeros(len(ids), np.float32), np.zeros(len(ids), np.bool_)
    vectors: list[tuple[list[int], NDArray[np.float32]]] = []
    for model, of_model in stored.items():
        places = [place_by_id[id] for id in of_model.ids.tolist()]
        cosines[places] = of_model.rows @ hits.query_vectors[model]
        has_vector[places] = True
        vectors.append((places, of_model.rows))
    # A passage without a vector gets the cosine that makes its fused score as probable as its keyword score.
    without = covered_shares[~has_vector]
    cosines[~has_vector] = calibration.from_keyword_shares("fused", without) - KEYWORD_WEIGHT * without
    return Candidates(
        parsed=hits.parsed,
        ids=ids,
        sources=list(sources.values()),
        legs=[_LEGS[id in keyword_ids, id in vector_ids] for id in sources],
        has_title_match=np.isin(ids, title_ids),
        shares=shares,
        covered_shares=covered_shares,
        cosines=cosines,
        has_vector=has_vector,
        vectors=vectors,
        rarities=rarities,
        average_length=keyword.average or 1.0,
        rows=rows,
    )


def _rarities(hits: RetrievedHits) -> tuple[dict[int, float], float, float]:
    """The rarities by term hash, the score of a perfect match, and the share of the query that passages contain.

    A word that no passage contains does not change the order, but lowers the best score that a passage can reach.
    """
    keyword, parsed = hits.keyword, hits.parsed
    frequencies = dict(zip(parsed.hashes, keyword.frequencies, strict=False))
    rarities = {hash: bm25.idf(keyword.passages, frequency) for hash, frequency in frequencies.items()}
    perfect_score = sum(rarities[hash] for hash, frequency in frequencies.items() if frequency)
    words = ([analyser.term_hash(term) for term in word] for word in dict.fromkeys(parsed.words))
    missing = sum(
        rarities[forms[0]] for forms in words if forms and not any(frequencies.get(form, 1) for form in forms)
    )
    return rarities, perfect_score, perfect_score / max(perfect_score + missing, 1e-9)
