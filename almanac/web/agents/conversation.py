"""A message to an agent: the parts that the WeKnora form and the A2A form share.

The caller authenticates by a token in the headers or, without one, by the key in the context of the message. The agent
searches with that key: in this process if the context has no address or that of this server, otherwise through the
fetcher, which refuses internal addresses. It stops when the caller disconnects, the task is cancelled or the time is
over.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
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
from almanac.core.call import Call
from almanac.core.errors import AlmanacError, BadRequest, Cancelled, InvalidToken, NotFound, Unauthorized
from almanac.identity.credentials import token_or_key
from almanac.net.http_exchange import HttpExchange
from almanac.net.url import read_url
from almanac.operations.context import AppContext, Authentication, RequestContext
from almanac.operations.pipeline.endpoint import Invocation
from almanac.operations.pipeline.guard import RequestGuard
from almanac.operations.pipeline.pipeline import run_recorded
from almanac.web.agents.event_stream import EventStream
from almanac.web.rest import AlreadySent, by_token
from almanac.web.weknora_search import KNOWLEDGE_SEARCH

MAX_UNAUTHENTICATED_BODY_BYTES = 65536  # of a body that is read before authentication
MAX_SESSION_ID_CHARS = 128
CANCEL_POLL_SECONDS = 1.0


class SearchTarget(Arguments):
    """The knowledge bases to search, and the key to use. Other fields of a context are for other agents."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    api_key: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=1000,
            repr=False,
            description="The token to search with, and to authenticate by if the headers have none.",
        ),
    ] = None
    kb_ids: Annotated[
        list[str | int] | None, Field(max_length=500, description="Bases to search. Default: all that you may read.")
    ] = None
    weknora_base_url: Annotated[
        str | None, Field(max_length=2000, description="The server to search. Default: this one.")
    ] = None
    is_real_weknora: Annotated[
        bool | None, Field(description="true: that server is WeKnora itself, which needs `query` and X-API-Key.")
    ] = None


class MessageContext(SearchTarget):
    """The context of a message: the search target, in the context itself or in its field `weknora`."""

    weknora: Annotated[SearchTarget | None, Field(description="The same fields, in the form of WeKnora.")] = None


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """A message with its task."""

    agent: str
    text: str
    context: SearchTarget
    task: AgentTask


SendEvent = Callable[[Event], Awaitable[None]]
# The messages that a client receives for the beginning of the work, for an event of the agent, its reply or an error.
RenderEvents = Callable[[AgentMessage | Event | AlmanacError], Sequence[dict[str, Any]]]


async def by_context(app: AppContext, http: HttpExchange) -> Authentication:
    """Authenticate by the token in the headers or, where there is none, by the key in the context of the message."""
    if http.headers.get(b"authorization") or http.headers.get(b"x-api-key"):
        return await by_token(app, http)
    key = _key_in(await http.read_json_body(MAX_UNAUTHENTICATED_BODY_BYTES))
    actor = await app.token_resolver.resolve(key) if key else None
    if actor is None:
        raise InvalidToken() if key else Unauthorized()
    return Authentication(actor)


def check_agent(ctx: RequestContext, name: str) -> None:
    """Refuse an agent that does not exist."""
    if name not in ctx.app.settings.agent_names:
        raise NotFound("There is no such agent.", remedy="/.well-known/agent-card.json says which there are.")


@contextlib.asynccontextmanager
async def begin_task(
    ctx: RequestContext, agent: str, text: str, context: SearchTarget, session: str | None
) -> AsyncGenerator[AgentMessage]:
    """Begin a task for a message, in an existing session or a new one. If the block fails, the task fails."""
    if not text.strip():
        raise BadRequest("The message is empty.", remedy="Ask something.")
    task = await agent_tasks.begin(ctx, agent, session or str(uuid.uuid4()), text)
    is_done = False
    try:
        yield AgentMessage(agent, text, context, task)
        is_done = True
    finally:
        if not is_done:
            await agent_tasks.end(ctx.db, task.id, agent_tasks.FAILED)  # has no effect on a task that has ended


async def run_agent(ctx: RequestContext, message: AgentMessage, send_event: SendEvent | None = None) -> Reply:
    """Run the agent and return its answer. `send_event` receives each event before the answer.

    The task records how the run ended.
    """
    state: str | None = agent_tasks.FAILED
    try:
        reply, base_ids = await _answer_in_time(ctx, message, send_event)
        if not await agent_tasks.end(
            ctx.db,
            message.task.id,
            agent_tasks.COMPLETED,
            resolved=reply.resolved,
            answer=reply.text,
            sources=[render_citation(each) for each in reply.citations],
            base_ids=base_ids,
        ):
            raise Cancelled()
        state = None
        return reply
    except (Cancelled, asyncio.CancelledError):
        state = agent_tasks.CANCELED
        raise
    finally:
        if state is not None:
            await agent_tasks.end(ctx.db, message.task.id, state)


async def stream_reply(ctx: RequestContext, message: AgentMessage, render: RenderEvents) -> AlreadySent:
    """Run the agent and send its events while it works. An error is sent as the last event."""
    async with EventStream(ctx.http).open() as stream:

        async def send_events(event: AgentMessage | Event | AlmanacError) -> None:
            for value in render(event):
                await stream.send(value)

        await send_events(message)
        try:
            reply = await run_agent(ctx, message, send_events)
        except AlmanacError as error:
            await send_events(error)
            raise
        await send_events(reply)
    return AlreadySent()


def render_citation(citation: AnswerCitation) -> dict[str, Any]:
    """Return a citation as callers see it."""
    result = citation.result
    return {
        "number": citation.number,
        "id": result.id,
        "knowledge_id": result.knowledge_id,
        "knowledge_title": result.title,
        "knowledge_filename": result.filename,
        "score": result.score,
        "match_type": result.match_type,
        "quote": citation.quote,
        "highlights": [result.content[start:end] for start, end in result.highlights],
    }


def render_search(search: ToolUseResult) -> dict[str, Any]:
    """Return a search of the agent as callers see it."""
    query, results = search.query, search.results
    body: dict[str, Any] = query.model_dump() if query is not None else {}
    body |= {"returned": len(results.items), "total_found": results.total, "left_out": results.dropped}
    return body | ({"failure": search.failure} if search.failure else {})


async def _run(
    ctx: RequestContext, message: AgentMessage, send_event: SendEvent | None
) -> tuple[Reply, frozenset[int]]:
    """Run the agent. Return its answer, and the knowledge bases of this server behind it and the earlier answers."""
    tool = open_tool(ctx, message.context)
    reader = await _searching_call(ctx, message.context)
    earlier = await agent_tasks.turns(ctx, message.agent, message.task.session_id, reader)
    reply: Reply | None = None
    async with contextlib.aclosing(ctx.app.agent.answer(tool, message.text, earlier)) as events:
        async for event in events:
            if isinstance(event, Reply):
                reply = event
            elif send_event is not None:
                await send_event(event)
    assert reply is not None
    return reply, reply.base_ids.union(*(turn.base_ids for turn in earlier))


async def _searching_call(ctx: RequestContext, target: SearchTarget) -> Call:
    """Return a call of the owner of the key that this message searches with; of the sender, if this server has no such
    key."""
    actor = await ctx.app.token_resolver.resolve(target.api_key) if target.api_key else None
    return ctx if actor is None else Call(actor, ctx.db, ctx.request_id)


async def _answer_in_time(
    ctx: RequestContext, message: AgentMessage, send_event: SendEvent | None
) -> tuple[Reply, frozenset[int]]:
    """Run the agent until it answers, its own time is over, or its task is cancelled."""
    ctx.guard.lift_deadline()
    with RequestGuard(ctx.app.timers, ctx.app.settings.agent_seconds) as guard:
        polling = asyncio.create_task(_cancel_with_task(ctx, message.task.id, guard))
        try:
            return await _run(ctx, message, send_event)
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)


async def _cancel_with_task(ctx: RequestContext, task_id: str, guard: RequestGuard) -> None:
    try:
        # Polled, because another process may cancel the task.
        while not await agent_tasks.is_cancelled(ctx.db, task_id):  # noqa: ASYNC110
            await asyncio.sleep(CANCEL_POLL_SECONDS)
        guard.cancel(Cancelled())
    except AlmanacError as error:  # a run that nobody can cancel must not continue
        guard.cancel(error)


def open_tool(ctx: RequestContext, target: SearchTarget) -> WeKnoraTool | None:
    """Return the search tool for a target; None if the target has an empty list of knowledge bases."""
    base_ids = [id for id in target.kb_ids or () if id != ""]
    if target.kb_ids is not None and not base_ids:
        return None
    url = target.weknora_base_url or ""
    is_local = not url or _is_this_server(ctx, url)
    key = target.api_key or _token(ctx)
    if not is_local:
        _check_remote_target(ctx, target)
    context = WeKnoraContext(key, tuple(base_ids), url, bool(target.is_real_weknora))
    backend = (
        LocalBackend(ctx.app.search, context, _run_as_key_owner(ctx, key))
        if is_local
        else untrusted_backend(context, ctx.app.settings, ctx.app.fetcher)
    )
    return WeKnoraTool(backend, context)


def _check_remote_target(ctx: RequestContext, target: SearchTarget) -> None:
    """Refuse a search on another server that would send the caller's token of this server there."""
    token, key = _token(ctx), target.api_key
    if not token or not key or token in key or not target.kb_ids:
        raise BadRequest(
            "context: a search on another server needs a token of this server in the headers, and api_key and kb_ids "
            "of the other server.",
            remedy="Send your token in the header Authorization or X-API-Key. It is not sent to the other server.",
        )
    if not key.isascii() or not key.isprintable():
        raise BadRequest("context.api_key: contains characters that no key has.")


def _run_as_key_owner(
    ctx: RequestContext, key: str
) -> Callable[[WeKnoraQuery, SearchFunction], Awaitable[GradedResults]]:
    """Return a function that searches as the owner of a key, with the owner's rights, rate limit and audit trail."""

    async def account(query: WeKnoraQuery, search: SearchFunction) -> GradedResults:
        app = ctx.app
        actor = await app.token_resolver.resolve(key)
        if actor is None:
            raise InvalidToken()
        searching = RequestContext(actor, app.db, ctx.request_id, app=app, http=ctx.http, surface=ctx.surface)

        async def run(searching: RequestContext, _: Any) -> GradedResults:
            return await search(searching)

        operation = replace(KNOWLEDGE_SEARCH, handler=run, arguments=None)
        invocation = Invocation(operation.name, operation, query.model_dump())
        return await run_recorded(searching, invocation, app.call_limit)

    return account


def _is_this_server(ctx: RequestContext, url: str) -> bool:
    """Return whether a URL is that of this server. A forged Host header only keeps the search in this process."""
    parsed = read_url(url)
    host = ctx.http.headers.get(b"host", b"").decode("latin-1").lower()
    ours = {read_url(ctx.app.settings.url).authority, host, host.removesuffix(":80"), host.removesuffix(":443")}
    return parsed.authority in ours and parsed.target == "/"


def _token(ctx: RequestContext) -> str:
    return token_or_key(ctx.http.headers) or ""


def _key_in(raw: bytes) -> str | None:
    """Return the key in a message of either form, before the message is validated."""
    try:
        body: Any = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    params = _object_in(body, "params")
    is_rpc = isinstance(body, dict) and "jsonrpc" in body
    owners = (_object_in(params, "message"), params)
    contexts = [_object_in(owner, "metadata") for owner in owners] if is_rpc else [_object_in(body, "context")]
    key = _merged(*contexts).get("api_key")
    return key if isinstance(key, str) and key else None


def merge(*contexts: MessageContext | None) -> SearchTarget:
    """Return the search target of a message with several contexts. Of different values, the first counts."""
    return SearchTarget.model_validate(_merged(*(each.model_dump() for each in contexts if each is not None)))


def _merged(*contexts: Mapping[str, Any]) -> dict[str, Any]:
    """Merge unvalidated contexts. In each, the field `weknora` comes before the context itself."""
    layers = [layer for context in contexts for layer in (_object_in(context, "weknora"), context)]
    return {
        name: value
        for layer in reversed(layers)
        for name in SearchTarget.model_fields
        if (value := layer.get(name)) is not None
    }


def _object_in(parent: Any, name: str) -> dict[str, Any]:
    value: Any = cast("dict[str, Any]", parent).get(name) if isinstance(parent, dict) else None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
