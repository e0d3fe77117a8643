"""The REST endpoint that WeKnora's clients search by, in the form of its document and in that of its server.

The document's clients send `question` and read `results`; the server's own send `query` and read `data`. Whoever asks
by `query`, or says `envelope=true`, is answered with both.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from almanac.assist.weknora import knowledge_search
from almanac.assist.weknora.backends import DROPPED_HEADER, MATCH_TYPES
from almanac.assist.weknora.knowledge_search import WeKnoraSearchArguments
from almanac.core.errors import AlmanacError
from almanac.knowledge.document_search import DocumentResult
from almanac.operations.context import RequestContext
from almanac.operations.operation import Example, Operation, Rest
from almanac.web.rest import Parameters, RestAnswer


class Enveloped(Parameters):
    """In which form to answer."""

    envelope: Annotated[
        bool | None, Field(description="Also as WeKnora's server answers. Unless said, where `query` was sent.")
    ] = None
    resource_urls: Annotated[
        str | None, Field(description="Taken, for WeKnora's clients send it; it changes nothing here.")
    ] = None


@dataclass(slots=True)
class PieceFacts:
    """A piece of a document that was found."""

    id: str
    content: str
    score: Annotated[
        float, Field(description="Above 0.8 directly relevant, from 0.5 related, below it tangential; in every mode.")
    ]
    knowledge_id: Annotated[str, Field(description="The document's number.")]
    knowledge_title: str
    knowledge_filename: str
    match_type: Annotated[str, Field(description="Which legs found it: hybrid, vector or keyword.")]


@dataclass(slots=True)
class PieceList:
    """What was found, the best first. The header X-Dropped-By-Min-Score says how many scored too low."""

    results: list[PieceFacts]
    total_count: Annotated[int, Field(description="How many reach `min_score`.")]


async def search(ctx: RequestContext, given: WeKnoraSearchArguments) -> RestAnswer:
    """The pieces that answer best."""
    found = await knowledge_search.search(ctx, ctx.app.search, given)
    results = [knowledge_search.describe(hit, highlight=given.highlight) for hit in found.hits]
    body: dict[str, Any] = {"results": results, "total_count": found.total_count}
    if _wants_envelope(ctx, ctx.parameters.envelope):
        body |= {"success": True, "data": [_as_server(hit) for hit in found.hits]}
    return RestAnswer(body, 200, ((DROPPED_HEADER.encode(), b"%d" % found.below_min_score),))


def render_error(ctx: RequestContext, error: AlmanacError) -> dict[str, Any] | None:
    """A failure as WeKnora's server puts it, for those who know that form."""
    if not _wants_envelope(ctx, ctx.parameters.envelope if ctx.parameters else None):
        return None
    return {"success": False, "error": {"code": error.code, "message": error.text, "details": None}}


def _wants_envelope(ctx: RequestContext, said: bool | None) -> bool:
    return ("query" in ctx.arguments and "question" not in ctx.arguments) if said is None else said


def _as_server(hit: DocumentResult) -> dict[str, Any]:
    found = hit.found
    return {
        **knowledge_search.describe(hit, highlight=False),
        "match_type": MATCH_TYPES.index("vector" if "vectors" in found.legs else "keyword"),
        "chunk_type": "text",
        "start_at": found.start,
        "end_at": found.end,
        "matched_content": found.text,
        "metadata": {"page": str(found.page)} if found.page is not None else {},
        "knowledge_base_id": str(hit.base_id),
        "knowledge_source": hit.source_url or "",
    }


_PIECE = PieceFacts("3711", "Oil it monthly.", 0.85, "12", "Pump P-40", "pump.pdf", "hybrid")

KNOWLEDGE_SEARCH = Operation(
    name="knowledge_search",
    summary="The passages of documents that answer a question, in the form of WeKnora's clients",
    arguments=WeKnoraSearchArguments,
    answer=PieceList,
    scopes=frozenset({"search:read"}),
    handler=search,
    rest=Rest("POST", "/knowledge-search", parameters=Enveloped, render_error=render_error),
    people_only="It is the form of WeKnora's clients; agents have search.",
    example=Example(
        {
            "question": "How often is the pump oiled?",
            "knowledge_base_ids": ["7"],
            "search_mode": "hybrid",
            "top_k": 10,
            "min_score": 0.5,
            "rerank": True,
        },
        PieceList([_PIECE], 1),
    ),
)
