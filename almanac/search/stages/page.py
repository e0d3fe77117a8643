"""Page: limit the passages per source, drop low scores and cut out the requested page."""

import time
from collections import Counter
from collections.abc import Sequence

from almanac.core.database import Row
from almanac.core.fair_slots import compute_for
from almanac.search import citations
from almanac.search.analysis import highlights
from almanac.search.passage import passage_from_row
from almanac.search.query import MAX_RESULT_DEPTH, ParsedQuery, SearchResponse, SearchResult
from almanac.search.ranking.candidates import RankedPassage
from almanac.search.resources import SearchResources, SearchRun

USUAL_TERMS = 8  # of a query; the time of highlighting grows with their number
TERMS_OF_PASSAGE = 4  # that are highlighted, at most in a usual passage


def limit_per_source(ranked: list[RankedPassage], limit: int) -> list[RankedPassage]:
    """At most `limit` passages of each source, or all for 0."""
    if not limit:
        return ranked
    kept, counts = list[RankedPassage](), Counter[int]()
    for passage in ranked:
        counts[passage.source] += 1
        if counts[passage.source] <= limit:
            kept.append(passage)
    return kept


def append(ranked: Sequence[RankedPassage], more: Sequence[RankedPassage]) -> list[RankedPassage]:
    """Append the passages of a second, deeper search: no passage repeats and no score rises from page to page."""
    seen, lowest = {passage.id for passage in ranked}, ranked[-1].score if ranked else 1.0
    new = (passage for passage in more if passage.id not in seen)
    return [*ranked, *(passage._replace(score=min(passage.score, lowest)) for passage in new)]


async def page(
    resources: SearchResources, run: SearchRun, parsed: ParsedQuery, ranked: Sequence[RankedPassage]
) -> SearchResponse:
    """The results of the requested page."""
    begun = time.perf_counter()
    query = parsed.query
    good = [passage for passage in ranked if passage.score >= query.min_score][:MAX_RESULT_DEPTH]
    shown, has_more = await _read_page(resources, good, query.offset, query.offset + query.limit)
    # A usual page is so short that a thread is not worth it.
    work = TERMS_OF_PASSAGE * len(shown) * max(1, len(parsed.terms) // USUAL_TERMS)
    results = await compute_for(work, _results, shown, parsed.terms)
    run.record("show", begun, diverse=len(ranked), above_min_score=len(good), returned=len(results))
    notes = tuple(dict.fromkeys(run.notes))
    if not query.explain:
        return SearchResponse(results, notes, has_more)
    return SearchResponse(results, notes, has_more, run.timings, run.counts)


async def _read_page(
    resources: SearchResources, ranked: list[RankedPassage], start: int, stop: int
) -> tuple[list[tuple[RankedPassage, Row]], bool]:
    """The passages from `start` to `stop` with their rows, and whether there are more. Passages that were removed
    since the retrieval leave no gap."""
    while True:
        shown = ranked[start:stop]
        rows = {passage.id: passage.row for passage in shown if passage.row is not None}
        rows |= await resources.rows([passage.id for passage in shown if passage.id not in rows])
        removed = {passage.id for passage in shown} - rows.keys()
        if not removed:
            return [(passage, rows[passage.id]) for passage in shown], stop < len(ranked)
        ranked = [passage for passage in ranked if passage.id not in removed]


def _results(shown: Sequence[tuple[RankedPassage, Row]], terms: frozenset[str]) -> tuple[SearchResult, ...]:
    return tuple(_result(passage, row, terms) for passage, row in shown)


def _result(ranked: RankedPassage, row: Row, terms: frozenset[str]) -> SearchResult:
    passage = passage_from_row(row)
    return SearchResult(
        passage_id=ranked.id,
        kind=row["source_kind"],
        object_id=row["owner_id"],
        collection=row["collection"],
        title=row["title"],
        text=passage.text,
        score=round(ranked.score, 4),
        legs=ranked.legs,
        headings=passage.headings,
        page=passage.page,
        boxes=passage.boxes,
        start=passage.start,
        end=passage.end,
        hash=citations.passage_hash(passage.text),
        highlights=highlights.find(passage.text, terms),
    )
