"""A message to an agent, from who sent it to what becomes of it: what both ways of sending one have in common.

Whoever calls is known by a token in the headers or, where none came, by the key in the message's own context. The agent
searches with that key: in this process where the address in the context is our own or none, and through the guarded
fetcher otherwise. It works for as long as its caller is there, nobody stops it, and time is left.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

import orjson
from pydantic import ConfigDict, Field

from almanac.assist import agent_tasks
from almanac.assist.agent import AnswerCitation, Event, Reply
from almanac.assist.agent_tasks import AgentTask
from almanac.assist.weknora.backends import LocalBackend, SearchFunction, untrusted_backend
from almanac.assist.weknora.knowledge_search import GradedResults
from almanac.assist.weknora.weknora_tool import ToolUseResult, WeKnoraContext, WeKnoraQuery, WeKnoraTool
from almanac.core.arguments import Arguments
from almanac.core.errors import AlmanacError, BadRequest, Cancelled, NotFound, Unauthorized
from almanac.identity.credentials import bearer_token
from almanac.net.http_exchange import HttpExchange
from almanac.net.url import read_url
from almanac.operations.context import AppContext, Authentication, RequestContext
from almanac.operations.pipeline.endpoint import Invocation
from almanac.operations.pipeline.guard import RequestGuard
from almanac.operations.pipeline.pipeline import run_recorded
from almanac.web.rest import by_token
from almanac.web.weknora_search import KNOWLEDGE_SEARCH

SCOPES = frozenset({"search:read"})
MAX_UNAUTHENTICATED_BODY_BYTES = 65536  # of a body that is read before its sender is known
MAX_SESSION_ID_CHARS = 128
CANCEL_POLL_SECONDS = 1.0

SendEvent = Callable[[Event], Awaitable[None]]


class SearchTarget(Arguments):
    """What to search, with what key. Other things in a context are for other agents."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    api_key: Annotated[str | None, Field(min_length=1, max_length=1000, repr=False)] = None
    kb_ids: Annotated[list[str | int] | None, Field(max_length=500)] = None
    weknora_base_url: Annotated[str | None, Field(max_length=2000)] = None


class MessageContext(SearchTarget):
    """The same, or under a name of its own."""

    weknora: SearchTarget | None = None


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """A message that was taken in."""

    agent: str
    text: str
    context: SearchTarget
    task: AgentTask


async def by_context(app: AppContext, http: HttpExchange) -> Authentication:
    """Authenticate by the token in the headers or, where there is none, by the key in the message's own context."""
    if http.headers.get(b"authorization") or http.headers.get(b"x-api-key"):
        return await by_token(app, http)
    key = _key_in(await http.read_body(MAX_UNAUTHENTICATED_BODY_BYTES))
    actor = await app.token_resolver.resolve(key) if key else None
    if actor is None:
        raise Unauthorized()
    return Authentication(actor)


def check_agent(ctx: RequestContext, name: str) -> None:
    """Refuse an agent that is not there."""
    if name not in ctx.app.settings.agent_names:
        raise NotFound("There is no such agent.", remedy="/.well-known/agent-card.json says which there are.")


@contextlib.asynccontextmanager
async def begin_task(
    ctx: RequestContext, agent: str, text: str, context: SearchTarget, session: str | None
) -> AsyncGenerator[AgentMessage]:
    """Take a message in, to a session that goes on or begins. If the block fails, so has the task."""
    if not text.strip():
        raise BadRequest("The message is empty.", remedy="Ask something.")
    task = await agent_tasks.begin(ctx, agent, session or str(uuid.uuid4()), text)
    is_done = False
    try:
        yield AgentMessage(agent, text, context, task)
        is_done = True
    finally:
        if not is_done:
            await agent_tasks.end(ctx.db, task.id, agent_tasks.FAILED)  # unless it is known how it ended


async def run_agent(ctx: RequestContext, letter: AgentMessage, tell: SendEvent) -> Reply:
    """The agent's answer; what happens on the way is told. However it ends, the task says how."""
    state: str | None = agent_tasks.FAILED
    try:
        reply = await _answer_in_time(ctx, letter, tell)
        sources = [render_citation(each) for each in reply.citations]
        if not await agent_tasks.end(
            ctx.db, letter.task.id, agent_tasks.COMPLETED, resolved=reply.resolved, answer=reply.text, sources=sources
        ):
            raise Cancelled()
        state = None
        return reply
    except (Cancelled, asyncio.CancelledError):
        state = agent_tasks.CANCELED
        raise
    finally:
        if state is not None:
            await agent_tasks.end(ctx.db, letter.task.id, state)


async def ignore_event(_: Event) -> None:
    """Nobody wants to know before it is done."""


def render_citation(citation: AnswerCitation) -> dict[str, Any]:
    """A citation as callers see it."""
    piece = citation.result
    return {
        "number": citation.number,
        "id": piece.id,
        "knowledge_id": piece.knowledge_id,
        "knowledge_title": piece.title,
        "knowledge_filename": piece.filename,
        "score": piece.score,
        "match_type": piece.match_type,
        "quote": citation.quote,
        "highlights": [piece.content[start:end] for start, end in piece.highlights],
    }


def render_search(outcome: ToolUseResult) -> dict[str, Any]:
    """A search that the agent made, as callers see it."""
    query, found = outcome.query, outcome.results
    told: dict[str, Any] = query.model_dump() if query is not None else {}
    told |= {"returned": len(found.items), "total_found": found.total, "left_out": found.dropped}
    return told | ({"failure": outcome.failure} if outcome.failure else {})


async def _run(ctx: RequestContext, letter: AgentMessage, tell: SendEvent) -> Reply:
    lookup = open_tool(ctx, letter.context)
    earlier = await agent_tasks.turns(ctx, letter.agent, letter.task.session_id)
    reply: Reply | None = None
    async with contextlib.aclosing(ctx.app.agent.answer(lookup, letter.text, earlier)) as events:
        async for event in events:
            reply = event if isinstance(event, Reply) else reply
            await tell(event)
    assert reply is not None
    return reply


async def _answer_in_time(ctx: RequestContext, letter: AgentMessage, tell: SendEvent) -> Reply:
    """Run the agent until it answers, its own time is over, or its task is cancelled."""
    ctx.guard.lift_deadline()
    with RequestGuard(ctx.app.timers, ctx.app.settings.agent_seconds) as guard:
        polling = asyncio.create_task(_cancel_with_task(ctx, letter.task.id, guard))
        try:
            return await _run(ctx, letter, tell)
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)


async def _cancel_with_task(ctx: RequestContext, task_id: str, guard: RequestGuard) -> None:
    try:
        # Polled, because another process may cancel the task.
        while not await agent_tasks.is_cancelled(ctx.db, task_id):  # noqa: ASYNC110
            await asyncio.sleep(CANCEL_POLL_SECONDS)
        guard.cancel(Cancelled())
    except AlmanacError as error:  # an agent that nobody can cancel must not go on
        guard.cancel(error)


def open_tool(ctx: RequestContext, given: SearchTarget) -> WeKnoraTool | None:
    """The tool, bound to what a message's context says; None where it names no bases at all."""
    chosen = [id for id in given.kb_ids or () if id != ""]
    if given.kb_ids is not None and not chosen:
        return None
    url = given.weknora_base_url or ""
    is_here = not url or _is_this_server(ctx, url)
    key = given.api_key or _token(ctx)
    if not is_here:
        _check_remote_target(ctx, given)
    context = WeKnoraContext(key, tuple(chosen), url)
    source = (
        LocalBackend(ctx.app.search, context, _run_as_key_owner(ctx, key))
        if is_here
        else untrusted_backend(context, ctx.app.settings, ctx.app.fetcher)
    )
    return WeKnoraTool(source, context)


def _check_remote_target(ctx: RequestContext, given: SearchTarget) -> None:
    """Refuse a search elsewhere that would be made with the token by which the caller is known here."""
    token, key = _token(ctx), given.api_key
    if not token or not key or token in key or not given.kb_ids:
        raise BadRequest(
            "context: a search at another address needs a token of ours in the headers, and api_key and kb_ids of that "
            "address.",
            remedy="Send your token in the header Authorization or X-API-Key: it is not sent to others.",
        )
    if not key.isascii() or not key.isprintable():
        raise BadRequest("context.api_key: has characters that no key has.")


def _run_as_key_owner(
    ctx: RequestContext, key: str
) -> Callable[[WeKnoraQuery, SearchFunction], Awaitable[GradedResults]]:
    """Return a function that searches as the holder of a key, with their rights, rate limit and audit trail."""

    async def use(query: WeKnoraQuery, work: SearchFunction) -> GradedResults:
        app = ctx.app
        actor = await app.token_resolver.resolve(key)
        if actor is None:
            raise Unauthorized()
        searching = RequestContext(actor, app.db, ctx.request_id, app=app, http=ctx.http, surface=ctx.surface)

        async def run(searching: RequestContext, _: Any) -> GradedResults:
            return await work(searching)

        operation = replace(KNOWLEDGE_SEARCH, handler=run, arguments=None)
        invocation = Invocation(operation.name, operation, query.model_dump())
        return await run_recorded(searching, invocation, app.call_limit)

    return use


def _is_this_server(ctx: RequestContext, url: str) -> bool:
    """Whether an address is one that this server answers at. What the caller says its Host is decides nothing but
    that the search stays here."""
    place = read_url(url)
    host = ctx.http.headers.get(b"host", b"").decode("latin-1").lower()
    ours = {read_url(ctx.app.settings.url).authority, host, host.removesuffix(":80"), host.removesuffix(":443")}
    return place.authority in ours and place.target == "/"


def _token(ctx: RequestContext) -> str:
    headers = ctx.http.headers
    return bearer_token(headers) or headers.get(b"x-api-key", b"").decode("latin-1")


def _key_in(raw: bytes) -> str | None:
    """The key in a message, of either form, before anything else of it is looked at."""
    try:
        said: Any = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    params = _object_in(said, "params")
    is_rpc = isinstance(said, dict) and "jsonrpc" in said
    places = (_object_in(params, "message"), params)
    contexts = [_object_in(each, "metadata") for each in places] if is_rpc else [_object_in(said, "context")]
    key = _merged(*contexts).get("api_key")
    return key if isinstance(key, str) and key else None


def merge(*contexts: MessageContext | None) -> SearchTarget:
    """What the contexts of one message say together, where they differ the first of them."""
    return SearchTarget.model_validate(_merged(*(each.model_dump() for each in contexts if each is not None)))


def _merged(*contexts: Mapping[str, Any]) -> dict[str, Any]:
    """The same of contexts as they came. In each, what stands under a name of its own comes before the rest."""
    layers = [layer for context in contexts for layer in (_object_in(context, "weknora"), context)]
    return {
        name: value
        for layer in reversed(layers)
        for name in SearchTarget.model_fields
        if (value := layer.get(name)) is not None
    }


def _object_in(said: Any, name: str) -> dict[str, Any]:
    found: Any = cast("dict[str, Any]", said).get(name) if isinstance(said, dict) else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


class EventStream:
    """An answer that is sent as it comes, as server-sent events; with a sign of life when nothing comes."""

    KEEPALIVE_SECONDS = 15.0  # seconds

    def __init__(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncGenerator["EventStream"]:
        """Begin, and end when the block does."""
        exchange = self._exchange
        exchange.is_answered = True
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            (b"x-request-id", exchange.request_id.encode()),
        ]
        await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
        living = asyncio.create_task(self._keep_alive())
        try:
            yield self
        finally:
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)
            await exchange.send({"type": "http.response.body", "body": b""})

    async def send(self, value: Any) -> None:
        """One event."""
        await self._write(b"data: " + orjson.dumps(value) + b"\n\n")

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self.KEEPALIVE_SECONDS)
            await self._write(b": working\n\n")

    async def _write(self, body: bytes) -> None:
        async with self._lock:
            await self._exchange.send({"type": "http.response.body", "body": body, "more_body": True})


def render_error_event(error: AlmanacError) -> dict[str, str]:
    """A failure as an event tells it."""
    return {"error": error.text, "code": error.code}
