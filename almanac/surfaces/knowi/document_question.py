"""The tool `knowi_ask_document`: an answer from documents, with citations that were checked.

The agent searches with the caller's rights, and answers with quoted sentences or, if one is configured, by a language
model. The model receives the question and passages of documents that the caller may read, and nothing else.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from almanac.assist.agent import NOT_DIRECTLY, Reply
from almanac.assist.weknora.backends import LocalBackend, SearchFunction
from almanac.assist.weknora.knowledge_search import GradedResults
from almanac.assist.weknora.weknora_tool import WeKnoraContext, WeKnoraQuery, WeKnoraResult, WeKnoraTool
from almanac.core.arguments import Arguments
from almanac.core.errors import BadRequest
from almanac.core.text import one_line
from almanac.knowledge import document_search, document_store
from almanac.knowledge.document_search import CitationArguments
from almanac.operations.context import RequestContext
from almanac.operations.pipeline.guard import RequestGuard
from almanac.search.citations import CitationCheck
from almanac.surfaces.knowi import object_access
from almanac.surfaces.knowi.responses import KnowiAnswer

MAX_QUESTION_CHARS = 10_000
MAX_NAMED_DOCUMENTS = 500
STALE = "The documents behind the answer have just changed. Ask again."

_MARKER = re.compile(r"\s?\[(\d{1,3})\]")
_SOURCES = "\n\nSources:\n"


class AskArguments(Arguments):
    question: Annotated[str, Field(min_length=1, max_length=MAX_QUESTION_CHARS)]
    documentIds: Annotated[list[str], Field(max_length=MAX_NAMED_DOCUMENTS, default_factory=list[str])]


@dataclass(frozen=True, slots=True)
class CheckedCitation:
    """A quotation that is in its document at the moment of the answer."""

    number: int
    result: WeKnoraResult
    quote: str
    place: CitationCheck


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """The text of an answer, and its citations."""

    text: str
    citations: list[CheckedCitation]


async def knowi_ask_document(ctx: RequestContext, args: AskArguments) -> KnowiAnswer:
    """Answer a question from the named documents, or from every document that the caller may read."""
    if not args.question.strip():
        raise BadRequest("question: has no words.", remedy="Ask something.")
    ids = [(await object_access.get_document(ctx, id)).id for id in dict.fromkeys(args.documentIds)]
    reply = await _ask(ctx, args.question, ids)
    answer = await (_check_quotes(ctx, reply) if reply.quotes else _check_model_answer(ctx, reply))
    unread = await document_store.count_unread(ctx, ids) if ids or not answer.citations else 0
    text = _with_note(answer.text, unread)
    return KnowiAnswer(
        _with_sources(text, answer.citations),
        {
            "answer": text,
            "citations": [_describe(ctx, citation) for citation in answer.citations],
            "answeredBy": reply.model,
        },
        is_untrusted=True,
    )


async def _ask(ctx: RequestContext, question: str, ids: Sequence[int]) -> Reply:
    async def search_as_caller(_: WeKnoraQuery, search: SearchFunction) -> GradedResults:
        return await search(ctx)

    context = WeKnoraContext("", (), document_ids=ids)
    tool = WeKnoraTool(LocalBackend(ctx.app.search, context, search_as_caller), context)
    reply: Reply | None = None
    ctx.has_used_model = ctx.app.agent.has_model  # also if it fails, because it receives the question
    # A language model takes longer than other tools may. A disconnect of the client still ends it.
    ctx.guard.lift_deadline()
    with RequestGuard(ctx.app.timers, ctx.app.settings.agent_seconds):
        async with contextlib.aclosing(ctx.app.agent.answer(tool, question, ())) as events:
            async for event in events:
                reply = event if isinstance(event, Reply) else reply
    assert reply is not None
    return reply


async def _check_quotes(ctx: RequestContext, reply: Reply) -> CheckedAnswer:
    """Return the quoted sentences that are in their documents, numbered by document passage."""
    numbers: dict[str, int] = {}
    citations: list[CheckedCitation] = []
    for quote in reply.quotes:
        if (place := await _find(ctx, quote.result, quote.text)) is not None:
            number = numbers.setdefault(quote.result.id, len(numbers) + 1)
            citations.append(CheckedCitation(number, quote.result, quote.text, place))
    if not citations:
        return CheckedAnswer(STALE, [])
    lines = [f"{citation.quote} [{citation.number}]" for citation in citations]
    is_direct = not reply.text.startswith(NOT_DIRECTLY)
    return CheckedAnswer("\n".join(lines if is_direct else [NOT_DIRECTLY, *lines]), citations)


async def _check_model_answer(ctx: RequestContext, reply: Reply) -> CheckedAnswer:
    """Return the text of a language model without the numbers of quotations that are not in their documents."""
    citations: list[CheckedCitation] = []
    for citation in reply.citations:
        if (place := await _find(ctx, citation.result, citation.quote)) is not None:
            citations.append(CheckedCitation(citation.number, citation.result, citation.quote, place))
    if reply.citations and not citations:
        return CheckedAnswer(STALE, [])
    numbers = {citation.number for citation in citations}
    text = reply.text.partition(_SOURCES)[0]
    return CheckedAnswer(_MARKER.sub(lambda match: match[0] if int(match[1]) in numbers else "", text), citations)


async def _find(ctx: RequestContext, result: WeKnoraResult, quote: str) -> CitationCheck | None:
    """Return the place of a quotation in its document; None if it is not there."""
    shortened = quote.removesuffix("…").strip()
    if not shortened:
        return None
    citation = CitationArguments(id=document_search.document_ref(int(result.knowledge_id)), text=shortened)
    check = await document_search.verify(ctx, citation)
    return check if check.outcome in ("unchanged", "moved") else None


def _with_note(text: str, unread: int) -> str:
    if not unread:
        return text
    documents = "1 document is" if unread == 1 else f"{unread:,} documents are"
    return f"{text}\n\n{documents} still being read and not searched yet: ask again in a moment."


def _with_sources(text: str, citations: Sequence[CheckedCitation]) -> str:
    first = {citation.number: citation for citation in reversed(citations)}
    lines = [f"[{number}] {_source(first[number])}" for number in sorted(first)]
    return "\n".join((text, "", "Sources:", *lines)) if lines else text


def _source(citation: CheckedCitation) -> str:
    name = one_line(citation.result.filename) or "Untitled"
    return name if citation.place.page is None else f"{name}, page {citation.place.page}"


def _describe(ctx: RequestContext, citation: CheckedCitation) -> dict[str, Any]:
    result, place = citation.result, citation.place
    return {
        "number": citation.number,
        "documentId": result.knowledge_id,
        "documentName": result.filename,
        "quote": citation.quote,
        "page": place.page,
        "start": place.start,
        "end": place.end,
        "score": result.score,
        "url": document_search.url_of(ctx.app.settings.url, int(result.knowledge_id), None),
    }
