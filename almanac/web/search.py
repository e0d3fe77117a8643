"""The REST endpoints of search: what they answer, and what they mean in verbs."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from almanac.knowledge import document_search
from almanac.knowledge.document_search import CitationArguments, DocumentResult, SearchArguments
from almanac.web.rest import Ask


@dataclass(slots=True)
class ResultFacts:
    """A passage that was found, and where it stands."""

    id: Annotated[str, Field(description="Of the document, as in document:12.")]
    document_id: int
    base_id: int
    title: str
    url: Annotated[str, Field(description="Where the document came from; otherwise where it is here.")]
    text: str
    score: Annotated[float, Field(description="How likely it answers, 0 to 1; a cautious guess.")]
    legs: Annotated[list[str], Field(description="How it was found: words, vectors.")]
    headings: Annotated[list[str], Field(description="Those it stands under, the highest first.")]
    page: int | None
    boxes: Annotated[list[list[float]], Field(description="Page, x0, y0, x1, y1.")]
    start: Annotated[int, Field(description="In the document's text.")]
    end: int
    hash: Annotated[str, Field(description="Of the text, to verify a citation by.")]
    highlights: Annotated[list[list[int]], Field(description="Where words of the query stand in `text`.")]


@dataclass(slots=True)
class Explanation:
    """How a search went."""

    milliseconds: Annotated[dict[str, float], Field(description="By stage.")]
    passages: Annotated[dict[str, int], Field(description="How many there were before and after each stage.")]


@dataclass(slots=True)
class ResultList:
    """What was found, the best first."""

    results: list[ResultFacts]
    offset: int
    has_more: bool
    notes: Annotated[list[str], Field(description="What to know of this answer, such as vectors still being made.")]
    explanation: Annotated[Explanation | None, Field(description="Where it was asked for.")]


@dataclass(slots=True)
class VerdictFacts:
    """Whether something quoted is still there."""

    outcome: Annotated[str, Field(description="unchanged, moved, changed or gone.")]
    start: Annotated[int | None, Field(description="Where it is now; if changed, the nearest passage.")]
    end: int | None
    page: int | None
    hash: Annotated[str | None, Field(description="Of the passage there.")]


async def search(ask: Ask, _: Any, given: SearchArguments) -> ResultList:
    """The passages that answer best."""
    found = await document_search.search_documents(ask, ask.rest.search, given)
    return ResultList(
        results=[_result(hit, ask.rest.settings.url) for hit in found.hits],
        offset=given.offset,
        has_more=found.has_more,
        notes=list(found.notes),
        explanation=Explanation(found.timings, found.counts) if given.explain else None,
    )


async def verify_citation(ask: Ask, _: Any, given: CitationArguments) -> VerdictFacts:
    """Whether something quoted is still there."""
    verdict = await document_search.verify(ask, given)
    return VerdictFacts(verdict.outcome, verdict.start, verdict.end, verdict.page, verdict.hash)


def _result(hit: DocumentResult, public: str) -> ResultFacts:
    found = hit.found
    return ResultFacts(
        id=hit.id,
        document_id=hit.document_id,
        base_id=hit.base_id,
        title=found.title,
        url=document_search.url_of(public, hit.document_id, hit.source_url),
        text=found.text,
        score=round(found.score, 4),
        legs=list(found.legs),
        headings=list(found.headings),
        page=found.page,
        boxes=[list(box) for box in found.boxes],
        start=found.start,
        end=found.end,
        hash=found.hash,
        highlights=[list(span) for span in found.highlights],
    )
