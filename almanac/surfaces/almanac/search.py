"""The tools of our own surface that search, fetch what was found, and check citations.

`search` and `fetch` take and give what ChatGPT's connectors and deep research expect of tools with these names: a
query and results with id, title and url; an id and the text with title, url and metadata. What is more is optional.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from almanac.core import clock
from almanac.core.arguments import Id
from almanac.knowledge import document_search, document_text
from almanac.knowledge.document_search import CitationArguments, CitationSpan, DocumentResult, SearchArguments
from almanac.knowledge.document_text import TextExcerpt
from almanac.surfaces.tool import READS, Arguments, Tool, ToolCall

_SEARCH = frozenset({"search:read"})
_READ = frozenset({"knowledge:read"})


class Ask(SearchArguments):
    """Arguments of `search`."""

    highlight: Annotated[bool, Field(description="Also where words of the query stand.")] = False


class Fetch(Arguments):
    """Arguments of `fetch`."""

    id: Annotated[str, Field(max_length=100, description="As search gave it.")]


def _check_span(span: list[int] | None) -> list[int] | None:
    """Two numbers; said in the error and not in the schema, for every agent pays for that."""
    if span is not None and len(span) != 2:
        raise ValueError("is not a start and an end, as search gives them")
    return span


class Quoted(CitationSpan):
    """Arguments of `verify_citation`."""

    span: Annotated[list[Id] | None, Field(description="Where it stood."), AfterValidator(_check_span)] = None


@dataclass(slots=True)
class Result:
    """A passage that was found."""

    id: str
    title: str
    url: str
    text: str
    score: Annotated[float, Field(description="How likely it answers; a cautious guess.")]
    base_id: int
    headings: list[str]
    page: int | None
    boxes: Annotated[list[Any], Field(description="Page, x0, y0, x1, y1.")]
    span: Annotated[list[int], Field(description="Offsets for read_document.")]
    hash: Annotated[str, Field(description="For verify_citation.")]
    highlights: Annotated[list[Any], Field(description="Offsets in text.")]


@dataclass(slots=True)
class Results:
    """The answer of `search`."""

    results: list[Result]
    has_more: bool
    notes: list[str]
    explained: dict[str, Any] | None


@dataclass(slots=True)
class Fetched:
    """The answer of `fetch`."""

    id: str
    title: str
    text: str
    url: str
    metadata: dict[str, Any]


@dataclass(slots=True)
class Verified:
    """The answer of `verify_citation`."""

    outcome: Annotated[str, Field(description="unchanged, moved, changed or gone.")]
    span: Annotated[list[int] | None, Field(description="Where it is now; if changed, the nearest passage.")]
    page: int | None
    hash: str | None


async def search(call: ToolCall, given: Ask) -> Results:
    """The passages that answer best."""
    found = await document_search.search_documents(call, call.house.search, given)
    return Results(
        results=[_result(hit, call.house.settings.url, highlight=given.highlight) for hit in found.hits],
        has_more=found.has_more,
        notes=list(found.notes),
        explained={"milliseconds": found.timings, "passages": found.counts} if given.explain else None,
    )


async def fetch(call: ToolCall, given: Fetch) -> Fetched:
    """A document that was found, whole or as much as is read at once."""
    excerpt = await document_text.read(call, document_search.parse_document_ref(given.id))
    document = excerpt.document
    return Fetched(
        id=document_search.document_ref(document.id),
        title=document.title or document.name,
        text=excerpt.text,
        url=document_search.url_of(call.house.settings.url, document.id, document.source_url),
        metadata=_about(excerpt),
    )


async def verify_citation(call: ToolCall, given: Quoted) -> Verified:
    """Whether something quoted is still there."""
    start, end = given.span or (None, None)
    citation = CitationArguments(id=given.id, hash=given.hash, text=given.text, start=start, end=end)
    verdict = await document_search.verify(call, citation)
    span = None if verdict.start is None or verdict.end is None else [verdict.start, verdict.end]
    return Verified(verdict.outcome, span, verdict.page, verdict.hash)


def _result(hit: DocumentResult, public: str, *, highlight: bool) -> Result:
    found = hit.found
    return Result(
        id=hit.id,
        title=found.title,
        url=document_search.url_of(public, hit.document_id, hit.source_url),
        text=found.text,
        score=round(found.score, 4),
        base_id=hit.base_id,
        headings=list(found.headings),
        page=found.page,
        boxes=[list(box) for box in found.boxes],
        span=[found.start, found.end],
        hash=found.hash,
        highlights=[list(span) for span in found.highlights] if highlight else [],
    )


def _about(excerpt: TextExcerpt) -> dict[str, Any]:
    document = excerpt.document
    about: dict[str, Any] = {
        "name": document.name,
        "base_id": document.base_id,
        "status": document.index_status,
        "mime_type": document.mime_type,
        "pages": document.page_count,
        "tags": list(document.tags),
        "updated_at": clock.format_timestamp(document.updated_at),
        **({"metadata": document.metadata} if document.metadata else {}),
    }
    if document.failure is not None:
        about["failure"] = f"{document.failure.code}: {document.failure.message}"
    if excerpt.has_more:
        read = len(excerpt.text)
        about["next_offset"] = read
        about["note"] = (
            f"These are the first {read:,} of {excerpt.total:,} characters. "
            f"Read on with read_document: document_id {document.id}, offset {read}."
        )
    return about


TOOLS = (
    Tool(
        name="search",
        title="Search",
        description=(
            "Find passages that answer a question, in all documents you may read. Begin here; then fetch a document "
            "whole, or read_document around a span."
        ),
        run=search,
        arguments=Ask,
        output=Results,
        scopes=_SEARCH,
        annotations=READS,
    ),
    Tool(
        name="fetch",
        title="Fetch a document",
        description="The text of a document that search found, and what is known of it.",
        run=fetch,
        arguments=Fetch,
        output=Fetched,
        scopes=_READ,
        annotations=READS,
    ),
    Tool(
        name="verify_citation",
        title="Verify a citation",
        description="Whether a passage you quoted still stands in its document.",
        run=verify_citation,
        arguments=Quoted,
        output=Verified,
        scopes=_SEARCH,
        annotations=READS,
    ),
)
