"""The operations that search documents, fetch a result whole and check citations.

`search` and `fetch` have the arguments and answers that ChatGPT's connectors and deep research expect of tools with
these names: a query and results with id, title and url; an id and the text with title, url and metadata.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from almanac.core import clock
from almanac.core.arguments import Arguments, Id, Offset
from almanac.knowledge import document_search, document_text
from almanac.knowledge.document_search import CitationArguments, DocumentResult, SearchArguments
from almanac.knowledge.document_text import TextExcerpt
from almanac.operations import joint_search
from almanac.operations.context import RequestContext
from almanac.operations.document_models import ReadLimit
from almanac.operations.joint_search import Included, JointResult
from almanac.operations.models import SEARCH, UntrustedAnswer, failure_text, read_operation
from almanac.operations.operation import REST_ONLY, Example, Mcp, Rest, operation


class Search(SearchArguments):
    highlight: Annotated[bool, Field(description="Add where words of the query stand in each text.")] = False
    include: Annotated[list[Included], Field(description="Also search these.", default_factory=list[Included])]


class Fetch(Arguments):
    id: Annotated[str, Field(max_length=100, description="Of a result of search, such as document:12.")]
    offset: Annotated[Offset, Field(description="First character; metadata.next_offset continues.")] = 0
    limit: ReadLimit = document_text.DEFAULT_READ_CHARS


def _check_span(span: list[int] | None) -> list[int] | None:
    # Checked here and not described in the schema, because every agent pays for each word of the schema.
    if span is not None and len(span) != 2:
        raise ValueError("should be two numbers, start and end, as in the span of a search result")
    return span


class VerifyCitation(CitationArguments):
    span: Annotated[list[Id] | None, Field(description="span of the result."), AfterValidator(_check_span)] = None


@dataclass(slots=True)
class ResultInfo:
    """A passage that search found."""

    id: str
    title: str
    url: str
    text: str
    score: Annotated[float, Field(description="How likely it answers; a cautious guess.")]
    base_id: int | None
    headings: list[str]
    page: int | None
    boxes: Annotated[list[Any], Field(description="Page, x0, y0, x1, y1.")]
    span: Annotated[list[int], Field(description="Offsets for read_document.")]
    hash: Annotated[str, Field(description="For verify_citation.")]
    highlights: Annotated[list[Any], Field(description="Offsets in text.")]
    document_id: Annotated[int | None, REST_ONLY]
    legs: Annotated[list[str], Field(description="The retrievers that found it: words, vectors."), REST_ONLY]


@dataclass(slots=True)
class Explanation:
    """The time that each stage of a search took, and the number of passages after it."""

    milliseconds: dict[str, float]
    passages: dict[str, int]


@dataclass(slots=True)
class ResultList(UntrustedAnswer):
    """The passages that answer best, the best first."""

    results: list[ResultInfo]
    has_more: bool
    notes: list[str]
    explanation: Explanation | None
    offset: Annotated[int, REST_ONLY]


@dataclass(slots=True)
class FetchedDocument(UntrustedAnswer):
    """A document that search found."""

    id: str
    title: str
    text: str
    url: str
    metadata: dict[str, Any]


@dataclass(slots=True)
class VerifiedCitation:
    """The state of a quoted passage."""

    outcome: Annotated[str, Field(description="unchanged, moved, changed or gone.")]
    span: Annotated[list[int] | None, Field(description="Where it is now; if changed, the nearest passage.")]
    page: int | None
    hash: str | None


async def search(ctx: RequestContext, args: Search) -> ResultList:
    """Find passages that answer a question, in all documents you may read."""
    if args.include:
        return await _search_all(ctx, args)
    found = await document_search.search_documents(ctx, ctx.app.search, args)
    return ResultList(
        results=[_result(_joint(hit, ctx.app.settings.url), highlight=args.highlight) for hit in found.hits],
        has_more=found.has_more,
        notes=list(found.notes),
        explanation=Explanation(found.timings, found.counts) if args.explain else None,
        offset=args.offset,
    )


async def fetch(ctx: RequestContext, args: Fetch) -> FetchedDocument:
    """The text of a document that search found, and what is known of it."""
    document_id = document_search.parse_document_ref(args.id)
    excerpt = await document_text.read(ctx, document_id, offset=args.offset, limit=args.limit)
    document = excerpt.document
    return FetchedDocument(
        id=document_search.document_ref(document.id),
        title=document.title or document.name,
        text=excerpt.text,
        url=document_search.url_of(ctx.app.settings.url, document.id, document.source_url),
        metadata=_metadata(excerpt),
    )


async def verify_citation(ctx: RequestContext, args: VerifyCitation) -> VerifiedCitation:
    """Whether a passage you quoted still stands in its document."""
    check = await document_search.verify(ctx, args, args.span)
    span = None if check.start is None or check.end is None else [check.start, check.end]
    return VerifiedCitation(check.outcome, span, check.page, check.hash)


async def _search_all(ctx: RequestContext, args: Search) -> ResultList:
    results, response = await joint_search.find(ctx, args, args.include)
    return ResultList(
        results=[_result(result, highlight=args.highlight) for result in results],
        has_more=response.has_more,
        notes=list(response.notes),
        explanation=Explanation(response.timings, response.counts) if args.explain else None,
        offset=args.offset,
    )


def _joint(hit: DocumentResult, public_url: str) -> JointResult:
    url = document_search.url_of(public_url, hit.document_id, hit.source_url)
    return JointResult(hit.found, url, hit.base_id, hit.document_id)


def _result(result: JointResult, *, highlight: bool) -> ResultInfo:
    found = result.found
    return ResultInfo(
        id=result.id,
        title=found.title,
        url=result.url,
        text=found.text,
        score=round(found.score, 4),
        base_id=result.base_id,
        headings=list(found.headings),
        page=found.page,
        boxes=[list(box) for box in found.boxes],
        span=[found.start, found.end],
        hash=found.hash,
        highlights=[list(span) for span in found.highlights] if highlight else [],
        document_id=result.document_id,
        legs=list(found.legs),
    )


def _metadata(excerpt: TextExcerpt) -> dict[str, Any]:
    document = excerpt.document
    metadata: dict[str, Any] = {
        "name": document.name,
        "base_id": document.base_id,
        "index_status": document.index_status,
        "mime_type": document.mime_type,
        "page_count": document.page_count,
        "tags": list(document.tags),
        "updated_at": clock.format_timestamp(document.updated_at),
        **({"metadata": document.metadata} if document.metadata else {}),
    }
    if document.failure is not None:
        metadata["failure"] = failure_text(document)
    if excerpt.has_more:
        end = excerpt.offset + len(excerpt.text)
        metadata["next_offset"] = end
        metadata["note"] = (
            f"The text continues: these are the characters {excerpt.offset:,} to {end:,} of {excerpt.total:,}. "
            f"Call fetch again with offset {end}."
        )
    return metadata


_HASH = "5f2b9c0e7d1a44c3b8e6f0a91d7c2e35"
_RESULT = ResultInfo(
    id="document:12",
    title="Pump P-40",
    url="https://almanac.example.org/api/v1/documents/12",
    text="Oil it monthly.",
    score=0.91,
    base_id=7,
    headings=["Care"],
    page=2,
    boxes=[[2, 72.0, 90.5, 523.0, 118.0]],
    span=[120, 135],
    hash=_HASH,
    highlights=[[0, 3]],
    document_id=12,
    legs=["words", "vectors"],
)

OPERATIONS = (
    operation(
        search,
        title="Search",
        scopes=SEARCH,
        rest=Rest("POST", "/search"),
        mcp=Mcp(advice="Begin here; then fetch a document whole, or read_document around a span."),
        example=Example(
            {"query": "How often is the pump oiled?", "base_ids": [7], "limit": 5, "highlight": True},
            ResultList([_RESULT], False, [], None, 0),
        ),
    ),
    read_operation(fetch, title="Fetch a document", mcp=Mcp()),
    operation(
        verify_citation,
        title="Verify a citation",
        scopes=SEARCH,
        rest=Rest("POST", "/citations/verify"),
        mcp=Mcp(),
        example=Example(
            {"id": "document:12", "hash": _HASH, "span": [120, 135]},
            VerifiedCitation("unchanged", [120, 135], 2, _HASH),
        ),
    ),
)
