"""Diversify: search again without the sources that fill the hits, so that other sources get into the results."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from almanac.search.index.protocol import Hits, SearchScope
from almanac.search.resources import SearchResources, SearchRun
from almanac.search.stages.retrieve import RetrievedHits, retrieve

MAX_DIVERSITY_ROUNDS = 5


async def diversify(
    resources: SearchResources, run: SearchRun, hits: RetrievedHits, depth: int, wanted: int
) -> RetrievedHits:
    """Add hits of other sources until the limit per source leaves more than `wanted` results."""
    parsed = replace(hits.parsed, retrievers=hits.parsed.retrievers - {"title"})
    for _ in range(MAX_DIVERSITY_ROUNDS):
        if not (crowding := _crowding_sources(hits, wanted)):
            break
        hits = _joined(hits, await retrieve(resources, run, parsed, _without(parsed.scope, crowding), depth))
    return hits


def _crowding_sources(hits: RetrievedHits, wanted: int) -> list[int]:
    """The sources that have reached the limit per source, if the hits are too few because of it."""
    limit = hits.parsed.query.max_per_source
    if not limit or not hits.is_cut:
        return []
    counts = Counter(hits.sources().values())
    is_enough = sum(min(limit, count) for count in counts.values()) > wanted
    return [] if is_enough else [source for source, count in counts.items() if count >= limit]


def _without(scope: SearchScope, sources: list[int]) -> SearchScope:
    condition = f"s.id NOT IN ({', '.join(map(str, sources))})"
    return replace(scope, where=f"({scope.where}) AND {condition}" if scope.where else condition)


def _joined(hits: RetrievedHits, more: RetrievedHits) -> RetrievedHits:
    return replace(
        hits,
        keyword=replace(hits.keyword, **_appended(hits.keyword, more.keyword)),
        vector=replace(hits.vector, **_appended(hits.vector, more.vector)),
        query_vectors=hits.query_vectors | more.query_vectors,
        is_cut=more.is_cut,
    )


def _appended(hits: Hits, more: Hits) -> dict[str, Any]:
    is_new = ~np.isin(more.ids, hits.ids)
    names = ("ids", "scores", "sources")
    return {name: np.append(getattr(hits, name), getattr(more, name)[is_new]) for name in names}
