"""A message to an agent, from who sent it to what becomes of it: what both ways of sending one have in common.

Whoever calls is known by a token in the headers or, where none came, by the key in the message's own context. The agent
searches with that key: in this process where the address in the context is our own or none, and through the guarded
fetcher otherwise. It works for as long as its caller is there, nobody stops it, and time is left.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

import orjson
from pydantic import ConfigDict, Field

from almanac.assist import agent_tasks
from almanac.assist.agent import AnswerCitation, Event, Reply
from almanac.assist.agent_tasks import Task
from almanac.assist.weknora.backends import LocalBackend, Work, untrusted_backend
from almanac.assist.weknora.knowledge_search import Results
from almanac.assist.weknora.weknora_tool import ToolUseResult, WeKnoraContext, WeKnoraQuery, WeKnoraTool
from almanac.core.arguments import Arguments
from almanac.core.errors import AlmanacError, BadRequest, Cancelled, DeadlineExceeded, NotFound, Unauthorized
from almanac.core.timers import Deadline
from almanac.net.http_exchange import BodyTimeout, HttpExchange, replay
from almanac.net.url import read_url
from almanac.web import weknora_search
from almanac.web.rest import Admission, Ask, Rest, account, by_token

SCOPE = "search:read"
MAX_UNAUTHENTICATED_BODY_BYTES = 65536  # of a body that is read before its sender is known
LONGEST_SESSION = 128
_LOOKED = 1.0  # seconds after which it is looked again whether a task was stopped

Tell = Callable[[Event], Awaitable[None]]


class WeKnora(Arguments):
    """What to search, with what key. Other things in a context are for other agents."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    api_key: Annotated[str | None, Field(min_length=1, max_length=1000, repr=False)] = None
    kb_ids: Annotated[list[str | int] | None, Field(max_length=500)] = None
    weknora_base_url: Annotated[str | None, Field(max_length=2000)] = None


class MessageContext(WeKnora):
    """The same, or under a name of its own."""

    weknora: WeKnora | None = None


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """A message that was taken in."""

    agent: str
    text: str
    context: WeKnora
    task: Task


async def by_context(rest: Rest, exchange: HttpExchange) -> Admission:
    """Whoever's token came in the headers or, where there is none, whoever's key the message has in its context."""
    headers = exchange.headers
    if headers.get(b"authorization") or headers.get(b"x-api-key"):
        return await by_token(rest, exchange)
    try:
        async with asyncio.timeout(rest.settings.request_deadline_seconds):
            raw = await exchange.read_body(MAX_UNAUTHENTICATED_BODY_BYTES)
    except TimeoutError:
        raise BodyTimeout() from None
    exchange.receive, exchange.is_read = replay(raw, exchange.receive), False
    key = _key_in(raw)
    actor = await rest.keyring.resolve(key) if key else None
    if actor is None:
        raise Unauthorized()
    return Admission(actor)


def check_agent(ask: Ask, name: str) -> None:
    """Refuse an agent that is not there."""
    if name not in ask.rest.settings.agent_names:
        raise NotFound("There is no such agent.", remedy="/.well-known/agent-card.json says which there are.")


@contextlib.asynccontextmanager
async def begin_task(
    ask: Ask, agent: str, text: str, context: WeKnora, session: str | None
) -> AsyncGenerator[AgentMessage]:
    """Take a message in, to a session that goes on or begins. If the block fails, so has the task."""
    if not text.strip():
        raise BadRequest("The message is empty.", remedy="Ask something.")
    task = await agent_tasks.begin(ask, agent, session or str(uuid.uuid4()), text)
    is_done = False
    try:
        yield AgentMessage(agent, text, context, task)
        is_done = True
    finally:
        if not is_done:
            await agent_tasks.end(ask.db, task.id, agent_tasks.FAILED)  # unless it is known how it ended


async def run_agent(ask: Ask, letter: AgentMessage, tell: Tell) -> Reply:
    """The agent's answer; what happens on the way is told. However it ends, the task says how."""
    ask.rest.alarm.drop(ask.deadline)  # it has a limit of its own
    state: str | None = agent_tasks.FAILED
    try:
        reply = await _attend(ask, letter, _work(ask, letter, tell))
        sources = [describe(each) for each in reply.citations]
        if not await agent_tasks.end(
            ask.db, letter.task.id, agent_tasks.COMPLETED, resolved=reply.resolved, answer=reply.text, sources=sources
        ):
            raise Cancelled()
        state = None
        return reply
    except (Cancelled, asyncio.CancelledError):
        state = agent_tasks.CANCELED
        raise
    finally:
        if state is not None:
            await agent_tasks.end(ask.db, letter.task.id, state)


async def silently(_: Event) -> None:
    """Nobody wants to know before it is done."""


def describe(citation: AnswerCitation) -> dict[str, Any]:
    """A citation as callers see it."""
    piece = citation.piece
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


def describe_search(outcome: ToolUseResult) -> dict[str, Any]:
    """A search that the agent made, as callers see it."""
    query, found = outcome.query, outcome.found
    told: dict[str, Any] = query.model_dump() if query is not None else {}
    told |= {"returned": len(found.pieces), "total_found": found.total, "left_out": found.dropped}
    return told | ({"failure": outcome.failure} if outcome.failure else {})


async def _work(ask: Ask, letter: AgentMessage, tell: Tell) -> Reply:
    lookup = bind(ask, letter.context)
    earlier = await agent_tasks.turns(ask, letter.agent, letter.task.session_id)
    reply: Reply | None = None
    async with contextlib.aclosing(ask.rest.agent.answer(lookup, letter.text, earlier)) as events:
        async for event in events:
            reply = event if isinstance(event, Reply) else reply
            await tell(event)
    assert reply is not None
    return reply


async def _attend(ask: Ask, letter: AgentMessage, work: Awaitable[Reply]) -> Reply:
    working = asyncio.ensure_future(work)
    watching = [asyncio.create_task(_gone(ask.exchange)), asyncio.create_task(_stopped(ask, letter.task.id))]
    try:
        async with asyncio.timeout(ask.rest.settings.agent_seconds):
            await asyncio.wait({working, *watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        for each in watching:
            if each.done():
                each.result()  # one that could not look has not seen that anybody stopped it
        raise Cancelled()
    except TimeoutError:
        raise DeadlineExceeded() from None
    finally:
        for each in (working, *watching):
            each.cancel()
        await asyncio.gather(working, *watching, return_exceptions=True)


async def _gone(exchange: HttpExchange) -> None:
    while (await exchange.receive())["type"] != "http.disconnect":
        pass


async def _stopped(ask: Ask, id: str) -> None:
    while not await agent_tasks.is_cancelled(ask.db, id):  # noqa: ASYNC110 - it may be stopped in another process
        await asyncio.sleep(_LOOKED)


def bind(ask: Ask, given: WeKnora) -> WeKnoraTool | None:
    """The tool, bound to what a message's context says; None where it names no bases at all."""
    chosen = [id for id in given.kb_ids or () if id != ""]
    if given.kb_ids is not None and not chosen:
        return None
    url = given.weknora_base_url or ""
    is_here = not url or _is_ours(ask, url)
    key = given.api_key or _token(ask.exchange)
    if not is_here:
        _check_elsewhere(ask, given)
    context = WeKnoraContext(key, tuple(chosen), url)
    rest = ask.rest
    source = (
        LocalBackend(rest.search, context, _accounted(ask, key))
        if is_here
        else untrusted_backend(context, rest.settings, rest.fetcher)
    )
    return WeKnoraTool(source, context)


def _check_elsewhere(ask: Ask, given: WeKnora) -> None:
    """Refuse a search elsewhere that would be made with the token by which the caller is known here."""
    token, key = _token(ask.exchange), given.api_key
    if not token or not key or token in key or not given.kb_ids:
        raise BadRequest(
            "context: a search at another address needs a token of ours in the headers, and api_key and kb_ids of that "
            "address.",
            remedy="Send your token in the header Authorization or X-API-Key: it is not sent to others.",
        )
    if not key.isascii() or not key.isprintable():
        raise BadRequest("context.api_key: has characters that no key has.")


def _accounted(ask: Ask, key: str) -> Callable[[WeKnoraQuery, Work], Awaitable[Results]]:
    """Searches as the holder of a key, with their rights, their limit and their audit trail."""

    async def use(query: WeKnoraQuery, work: Work) -> Results:
        rest = ask.rest
        actor = await rest.keyring.resolve(key)
        if actor is None:
            raise Unauthorized()
        asked = Ask(actor, rest.db, ask.request_id, rest=rest, exchange=ask.exchange, deadline=Deadline(rest.alarm))
        asked.note(query.model_dump())
        return await account(asked, weknora_search.ENDPOINT.name, weknora_search.ENDPOINT.scope, lambda: work(asked))

    return use


def _is_ours(ask: Ask, url: str) -> bool:
    """Whether an address is one that this server answers at. What the caller says its Host is decides nothing but
    that the search stays here."""
    place = read_url(url)
    host = ask.exchange.headers.get(b"host", b"").decode("latin-1").lower()
    ours = {read_url(ask.rest.settings.url).authority, host, host.removesuffix(":80"), host.removesuffix(":443")}
    return place.authority in ours and place.target == "/"


def _token(exchange: HttpExchange) -> str:
    scheme, _, given = exchange.headers.get(b"authorization", b"").partition(b" ")
    bearer = given.strip() if scheme.lower() == b"bearer" else b""
    return (bearer or exchange.headers.get(b"x-api-key", b"")).decode("latin-1")


def _key_in(raw: bytes) -> str | None:
    """The key in a message, of either form, before anything else of it is looked at."""
    try:
        said: Any = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    params = _inside(said, "params")
    is_rpc = isinstance(said, dict) and "jsonrpc" in said
    places = (_inside(params, "message"), params)
    contexts = [_inside(each, "metadata") for each in places] if is_rpc else [_inside(said, "context")]
    key = _merged(*contexts).get("api_key")
    return key if isinstance(key, str) and key else None


def merge(*contexts: MessageContext | None) -> WeKnora:
    """What the contexts of one message say together, where they differ the first of them."""
    return WeKnora.model_validate(_merged(*(each.model_dump() for each in contexts if each is not None)))


def _merged(*contexts: Mapping[str, Any]) -> dict[str, Any]:
    """The same of contexts as they came. In each, what stands under a name of its own comes before the rest."""
    layers = [layer for context in contexts for layer in (_inside(context, "weknora"), context)]
    return {
        name: value
        for layer in reversed(layers)
        for name in WeKnora.model_fields
        if (value := layer.get(name)) is not None
    }


def _inside(said: Any, name: str) -> dict[str, Any]:
    found: Any = cast("dict[str, Any]", said).get(name) if isinstance(said, dict) else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


class EventStream:
    """An answer that is sent as it comes, as server-sent events; with a sign of life when nothing comes."""

    ALIVE = 15.0  # seconds

    def __init__(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        self._turn = asyncio.Lock()

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
        living = asyncio.create_task(self._live())
        try:
            yield self
        finally:
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)
            await exchange.send({"type": "http.response.body", "body": b""})

    async def send(self, value: Any) -> None:
        """One event."""
        await self._write(b"data: " + orjson.dumps(value) + b"\n\n")

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(self.ALIVE)
            await self._write(b": working\n\n")

    async def _write(self, body: bytes) -> None:
        async with self._turn:
            await self._exchange.send({"type": "http.response.body", "body": body, "more_body": True})


def failed(error: AlmanacError) -> dict[str, str]:
    """A failure as an event tells it."""
    return {"error": error.text, "code": error.code}
