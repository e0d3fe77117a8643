"""Search: from a query to the passages that match it, best first. One module in `stages/` for each step."""

import time

from almanac.search.query import MAX_RESULT_DEPTH, ParsedQuery, SearchQuery, SearchResponse
from almanac.search.ranking.candidates import RankedPassage
from almanac.search.resources import SearchResources, SearchRun
from almanac.search.stages.diversify import diversify
from almanac.search.stages.fuse import fuse
from almanac.search.stages.page import append, limit_per_source, page
from almanac.search.stages.parse import check, parse
from almanac.search.stages.rerank import rerank
from almanac.search.stages.retrieve import retrieve

MIN_HITS_PER_RETRIEVER = 100


class SearchEngine(SearchResources):
    """Searches one index. A process has one engine for all its requests."""

    async def search(self, query: SearchQuery) -> SearchResponse:
        """The best matching passages. The caller must be allowed to read the collections."""
        check(query)
        if not query.collections:
            return SearchResponse(())
        run, parsed = SearchRun(), parse(query)
        # All pages are cut from one ranking, so the number of hits does not depend on the offset.
        ranked, is_cut = await self._rank(run, parsed, query.limit)
        ranked = limit_per_source(ranked, query.max_per_source)
        is_page_full = query.offset + query.limit < len(ranked)
        is_min_score_reached = bool(ranked) and ranked[-1].score < query.min_score
        if is_cut and not is_page_full and not is_min_score_reached:
            more, _ = await self._rank(run, parsed, MAX_RESULT_DEPTH)
            ranked = limit_per_source(append(ranked, more), query.max_per_source)
        return await page(self, run, parsed, ranked)

    async def _rank(self, run: SearchRun, parsed: ParsedQuery, wanted: int) -> tuple[list[RankedPassage], bool]:
        """Rank enough hits for `wanted` results. Also returns whether there may be more hits."""
        begun = time.perf_counter()
        depth = max(MIN_HITS_PER_RETRIEVER, 2 * wanted)
        hits = await retrieve(self, run, parsed, parsed.scope, depth)
        hits = await diversify(self, run, hits, depth, wanted)
        run.record("legs", begun, words=len(hits.keyword.ids), vectors=len(hits.vector.ids))
        return await rerank(self, run, await fuse(self, run, hits)), hits.is_cut
