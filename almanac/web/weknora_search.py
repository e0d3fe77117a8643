"""The REST endpoint for searches of WeKnora's clients, in the form of its document and in that of its server.

Clients of the document send `question` and read `results`; clients of the server send `query` and read `data`. The
answer contains both if the client sends `query` or `envelope=true`.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from almanac.assist.weknora import knowledge_search as weknora_search
from almanac.assist.weknora.backends import DROPPED_HEADER
from almanac.assist.weknora.knowledge_search import WeKnoraSearchArguments
from almanac.assist.weknora.weknora_result import documented_form, server_form
from almanac.core.errors import AlmanacError
from almanac.operations.context import RequestContext
from almanac.operations.models import SEARCH
from almanac.operations.operation import Example, Rest, operation
from almanac.web.rest import RestAnswer, UrlParameters, notes_header


class WeKnoraSearchParameters(UrlParameters):
    """The form of the answer."""

    envelope: Annotated[
        bool | None, Field(description="Add the answer of WeKnora's server. Default: true if the body has `query`.")
    ] = None
    resource_urls: Annotated[
        str | None, Field(description="Accepted because WeKnora's clients send it. It has no effect.")
    ] = None


@dataclass(slots=True)
class WeKnoraResultInfo:
    """A passage of a document."""

    id: str
    content: str
    score: Annotated[
        float, Field(description="In every mode: above 0.8 directly relevant, from 0.5 related, below 0.5 tangential.")
    ]
    knowledge_id: Annotated[str, Field(description="The document's id.")]
    knowledge_title: str
    knowledge_filename: str
    match_type: Annotated[str, Field(description="The retrievers that found it: hybrid, vector or keyword.")]


@dataclass(slots=True)
class WeKnoraResultList:
    """The results, best first. The header X-Dropped-By-Min-Score counts the matches below the threshold."""

    results: list[WeKnoraResultInfo]
    total_count: Annotated[int, Field(description="The number of matches that reach `min_score`.")]


@dataclass(slots=True)
class WeKnoraErrorInfo:
    """The code and the message of an error."""

    code: str
    message: str
    details: None


@dataclass(slots=True)
class WeKnoraErrorAnswer:
    """An error in the form of WeKnora's server."""

    success: Literal[False]
    error: WeKnoraErrorInfo


async def knowledge_search(ctx: RequestContext, args: WeKnoraSearchArguments) -> RestAnswer:
    """The passages of documents that answer a question, in the form of WeKnora's clients."""
    found = await weknora_search.search(ctx, ctx.app.search, args)
    results = [documented_form(hit, highlight=args.highlight) for hit in found.hits]
    body: dict[str, Any] = {"results": results, "total_count": found.total_count}
    if _wants_envelope(ctx, ctx.parameters.envelope):
        body |= {"success": True, "data": [server_form(hit) for hit in found.hits]}
    return RestAnswer(body, 200, ((DROPPED_HEADER.encode(), b"%d" % found.below_min_score), *notes_header(found.notes)))


def render_error(ctx: RequestContext, error: AlmanacError) -> WeKnoraErrorAnswer | None:
    """Return an error in the form of WeKnora's server, for its clients."""
    if not _wants_envelope(ctx, ctx.parameters.envelope if ctx.parameters else None):
        return None
    return WeKnoraErrorAnswer(False, WeKnoraErrorInfo(error.code, error.text, None))


def _wants_envelope(ctx: RequestContext, envelope: bool | None) -> bool:
    return ("query" in ctx.arguments and "question" not in ctx.arguments) if envelope is None else envelope


_EXAMPLE_RESULT = WeKnoraResultInfo("3711", "Oil it monthly.", 0.85, "12", "Pump P-40", "pump.pdf", "hybrid")

KNOWLEDGE_SEARCH = operation(
    knowledge_search,
    answer=WeKnoraResultList,
    scopes=SEARCH,
    rest=Rest(
        "POST",
        "/knowledge-search",
        parameters=WeKnoraSearchParameters,
        render_error=render_error,
        error_answer=WeKnoraErrorAnswer,
    ),
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
        WeKnoraResultList([_EXAMPLE_RESULT], 1),
    ),
)
