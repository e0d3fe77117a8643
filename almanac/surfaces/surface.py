"""A surface: a set of tools under one path, and the one way every call of them goes.

`Desk.call` finds the tool among those this caller may use, meters, parses strictly, runs under a deadline, maps
errors to the surface's own form, and accounts for the call in the metrics and the audit trail, whatever happened.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson
import structlog
from opentelemetry.trace import Tracer
from pydantic import BaseModel

from almanac.audit.recorder import Ledger
from almanac.core.call import REQUEST_ID, Actor
from almanac.core.database import Database
from almanac.core.errors import AlmanacError, Cancelled, DeadlineExceeded, InsufficientScope, Internal, Unauthorized
from almanac.core.timers import Deadline, TimerQueue
from almanac.identity.tokens import TokenResolver
from almanac.net.http_exchange import HttpExchange
from almanac.quotas.rate_limits import RateLimit
from almanac.surfaces import json_rpc as messages
from almanac.surfaces.resource import Prompt, ResourceTemplate
from almanac.surfaces.tool import AppContext, RawResult, Tool, ToolCall

Result = dict[str, Any]

_log = structlog.get_logger("almanac.surface")

_SERVER_ERROR = -32000
_INVALID = -32602
_INTERNAL = -32603
_UNKNOWN = "(unknown)"  # a caller's invented tool name must not become a metric label


class ProtocolError(Exception):
    """A failure that is the protocol's to tell, as a JSON-RPC error: no wiser choice of arguments would help."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        self.code = code
        self.data = data
        super().__init__(message)


class UnknownTool(ProtocolError):
    """There is no such tool on this surface, or this token may not call it: the caller cannot tell which."""

    def __init__(self, name: str) -> None:
        super().__init__(-32602, f"Unknown tool: {name[:100]}. The tools you can call are those of tools/list.")


def text_error(error: AlmanacError) -> Result:
    """An error as our own surface tells it: its code, what happened, and what to do next."""
    return {"content": [{"type": "text", "text": f"{error.code}: {error.text}"}], "isError": True}


def structured(value: Any) -> Result:
    """A result as our own surface gives it: structured, and the same as JSON text for older clients."""
    if isinstance(value, RawResult):
        return value.result
    text = orjson.dumps(value, default=_jsonable)
    # Serialised once: the fragment goes into the answer as it is.
    return {
        "content": [{"type": "text", "text": text.decode()}],
        "structuredContent": orjson.Fragment(text),
        "isError": False,
    }


def _jsonable(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"cannot answer with a {type(value).__name__}")


def bearer(headers: Mapping[bytes, bytes]) -> str | None:
    """The token of an `Authorization: Bearer` header."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip().decode("latin-1") or None if scheme.lower() == b"bearer" else None


def http_error(error: AlmanacError) -> tuple[int, dict[str, Any]]:
    """A failure before any tool is reached: its status, and a JSON-RPC error, which clients show to the model."""
    return error.status, messages.error(None, _SERVER_ERROR, error.text, {"code": error.code})


class Authenticator:
    """Lets callers in, by the token of each request. A surface that knows them otherwise brings a gate of its own."""

    def __init__(self, desk: "ToolDispatcher") -> None:
        self.desk = desk

    async def authenticate(self, exchange: HttpExchange) -> Actor:
        """Who is calling, before the body is read; an error if nobody who may."""
        secret = self.desk.surface.credential(exchange.headers)
        actor = await self.desk.keyring.resolve(secret) if secret else None
        if actor is None:
            raise Unauthorized()
        return actor

    async def on_message(self, exchange: HttpExchange, message: messages.Message) -> tuple[tuple[bytes, bytes], ...]:
        """A look at the message, which may be refused; the headers that its answer gets."""
        return ()

    async def end_session(self, exchange: HttpExchange) -> bool:
        """The caller leaves; whether there was anything to leave."""
        return False


def default_rate_limit(house: AppContext, _: Actor) -> RateLimit:
    """The limit that the settings give every token."""
    return house.call_rule


@dataclass(frozen=True)
class Surface:
    """What one surface offers and how it speaks. Values only: nothing runs until `app.py` opens it."""

    name: str
    path: str
    tools: tuple[Tool, ...]
    server_name: str = ""  # as clients see it; empty for the surface's own name
    title: str = ""
    instructions: str = ""
    credential: Callable[[Mapping[bytes, bytes]], str | None] = bearer
    gate: Callable[["ToolDispatcher"], Authenticator] = Authenticator
    # Counts each request at the door, in place of the house's own limit, where a document says how.
    limits_before_body: Callable[["ToolDispatcher", HttpExchange, Actor], Awaitable[None]] | None = None
    sends_retry_after: bool = True  # tells whoever is over a limit, by Retry-After, when to come back
    setting: str = ""  # that must be on for it to be served
    render_error: Callable[[AlmanacError], Result] = text_error
    render_result: Callable[[Any], Result] = structured
    http_error: Callable[[AlmanacError], tuple[int, dict[str, Any]]] = http_error
    rate_limit: Callable[[AppContext, Actor], RateLimit] = default_rate_limit
    errors_as_http_status: tuple[
        type[AlmanacError], ...
    ] = ()  # failures of calls that the HTTP status tells, not a result
    lists_all_tools: bool = False  # lists every tool to everyone, and says which scope a call lacks
    resources: tuple[ResourceTemplate, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    sessions: bool = False  # keeps MCP sessions, where a seed documents them
    streams: bool = False  # answers legacy calls as event streams, so that tools can talk to the client
    transport: Mapping[str, Any] | None = None  # further options of the session manager
    handlers: tuple[tuple[str, type[BaseModel], Any], ...] = ()  # MCP methods beyond tools: (method, params, handler)

    @cached_property
    def sdk_only_tools(self) -> frozenset[str]:
        """The tools that need the whole SDK: they talk to the client, or have arguments mirrored in headers."""
        return frozenset(
            tool.name for tool in self.tools if tool.needs_client or b"x-mcp-header" in orjson.dumps(tool.schema)
        )


class ToolDispatcher:
    """An open surface: where its calls are served."""

    def __init__(self, surface: Surface, house: AppContext, db: Database, tracer: Tracer | None = None) -> None:
        self.surface = surface
        self.house = house
        self.db = db
        self.keyring = TokenResolver(db, house.remembered)
        self._tracer = tracer
        self._ledger = Ledger(house.trail, house.key)
        self._alarm = TimerQueue(house.settings.request_deadline_seconds)
        self._visible: dict[tuple[frozenset[str], frozenset[str] | None], dict[str, Tool]] = {}

    def tools_for(self, actor: Actor) -> dict[str, Tool]:
        """The tools this caller may use. What is not here is neither listed nor callable."""
        rights = (actor.scopes, actor.tools)
        found = self._visible.get(rights)
        if found is None:
            if len(self._visible) > 1000:  # tokens with their own tool lists could otherwise grow this for ever
                self._visible.clear()
            found = {tool.name: tool for tool in self.surface.tools if self._is_shown(tool, actor)}
            self._visible[rights] = found
        return found

    async def meter(self, actor: Actor) -> None:
        """Count one request against the caller's limit, or refuse."""
        if self.surface.limits_before_body is not None:
            return  # the door has done so
        await self.house.rates.count(self.surface.rate_limit(self.house, actor), actor.limit_key)

    async def call(
        self,
        actor: Actor,
        name: str,
        arguments: dict[str, Any],
        request_id: str,
        peer: Any = None,
        *,
        is_metered: bool = False,
        path: str = "",
    ) -> Result:
        """Serve one call; `is_metered` if the door has already counted it against the caller's limit."""
        call = self._call(actor, request_id, peer, path)
        if self._tracer is None:
            return await self._serve(call, name, arguments, is_metered)
        title = f"tools/call {name if name in self.tools_for(actor) else _UNKNOWN}"
        # An exception is not recorded, for its message may hold what the caller sent.
        with self._tracer.start_as_current_span(title, record_exception=False, set_status_on_exception=False) as span:
            span.set_attribute("almanac.surface", self.surface.name)
            span.set_attribute("almanac.request_id", request_id)
            result = await self._serve(call, name, arguments, is_metered)
            span.set_attribute("almanac.is_error", bool(result.get("isError")))
            return result

    async def read(self, actor: Actor, uri: str, request_id: str) -> Result:
        """Serve one `resources/read`: the way of a call, with its failures as the protocol's."""
        for resource in self.surface.resources:
            if (parts := resource.match(uri)) is not None:
                aside = _reader(resource, uri, parts)
                return await self._serve(self._call(actor, request_id), "resources/read", {"uri": uri}, True, aside)
        raise ProtocolError(_INVALID, "There is no resource of this kind. See resources/templates/list.")

    async def prompt(self, actor: Actor, name: str, given: dict[str, str], request_id: str) -> Result:
        """Serve one `prompts/get`, likewise."""
        for prompt in self.surface.prompts:
            if prompt.name == name:
                if unknown := sorted(given.keys() - prompt.arguments.keys()):
                    raise ProtocolError(_INVALID, f"This prompt takes no argument {unknown[0][:100]!r}.")
                aside = _writer(prompt, given)
                return await self._serve(self._call(actor, request_id), "prompts/get", dict(given), True, aside)
        raise ProtocolError(_INVALID, f"Unknown prompt: {name[:100]}. See prompts/list.")

    def _protocol_error(self, error: AlmanacError) -> ProtocolError:
        told = self.surface.http_error(error)[1]["error"]
        return ProtocolError(_INVALID if error.status < 500 else _INTERNAL, told["message"], told.get("data"))

    def _is_shown(self, tool: Tool, actor: Actor) -> bool:
        within = self.surface.lists_all_tools or tool.scopes <= actor.scopes
        return within and (actor.tools is None or tool.name in actor.tools)

    def _call(self, actor: Actor, request_id: str, peer: Any = None, path: str = "") -> ToolCall:
        return ToolCall(actor, self.db, request_id, house=self.house, client=peer, path=path or self.surface.path)

    async def _serve(
        self, call: ToolCall, name: str, arguments: dict[str, Any], is_metered: bool, aside: Tool | None = None
    ) -> Result:
        begun = time.perf_counter_ns()
        actor, request_id = call.actor, call.request_id
        REQUEST_ID.set(request_id)
        self.house.trail.calls_in_flight += 1
        tool = aside or self.tools_for(actor).get(name)
        digest, outcome = "", "ok"
        try:
            self.house.trail.require_capacity()
            if not is_metered:
                await self.meter(actor)
            if tool is None:
                raise UnknownTool(name)
            if lacking := tool.scopes - actor.scopes:
                raise InsufficientScope(f"Your token lacks the scope {', '.join(sorted(lacking))}.")
            digest = self._ledger.digest(arguments)
            return self.surface.render_result(await self._run(tool, call, arguments))
        except ProtocolError as error:
            outcome = "unknown_tool" if tool is None else f"protocol_{-error.code}"
            raise
        except AlmanacError as error:
            outcome = error.code
            if error.status >= 500:
                _log.warning(
                    "call_failed", surface=self.surface.name, tool=name, request_id=request_id, error=str(error)
                )
            if aside is not None:
                raise self._protocol_error(error) from None
            if isinstance(error, self.surface.errors_as_http_status):
                raise
            return self.surface.render_error(error)
        except asyncio.CancelledError:
            outcome = Cancelled.code
            raise
        except Exception:  # noqa: BLE001 - the dispatcher
            outcome = Internal.code
            _log.exception("tool_failed", surface=self.surface.name, tool=name, request_id=request_id)
            if aside is not None:
                raise self._protocol_error(Internal.for_request(request_id)) from None
            return self.surface.render_error(Internal.for_request(request_id))
        finally:
            taken = time.perf_counter_ns() - begun
            # The answer goes out in this same step of the loop, so that nobody waits for the bookkeeping.
            asyncio.get_running_loop().call_soon(
                self._account, call, tool.name if tool else _UNKNOWN, outcome, taken, digest
            )

    def _account(self, call: ToolCall, tool: str, outcome: str, nanoseconds: int, digest: str) -> None:
        self._ledger.record(call, self.surface.name, tool, outcome, nanoseconds, digest)
        self.house.trail.calls_in_flight -= 1  # a stop waits until nothing is in flight

    async def _run(self, tool: Tool, call: ToolCall, arguments: dict[str, Any]) -> Any:
        parsed = tool.parse(arguments)
        deadline = Deadline(self._alarm)
        try:
            with deadline:
                return await tool.run(call, parsed)
        except TimeoutError:
            if deadline.is_over:
                raise DeadlineExceeded() from None
            raise


def _reader(resource: ResourceTemplate, uri: str, parts: dict[str, str]) -> Tool:
    async def run(call: ToolCall, _: Any) -> RawResult:
        content = await resource.read(call, parts)
        told = {"uri": uri, "mimeType": resource.mime_type, "text": content.text}
        return RawResult({"contents": [{**told, "_meta": dict(content.meta)} if content.meta else told]})

    return Tool("resources/read", resource.description, run, arguments=None, scopes=resource.scopes)


def _writer(prompt: Prompt, given: dict[str, str]) -> Tool:
    async def run(call: ToolCall, _: Any) -> RawResult:
        said = {"role": "user", "content": {"type": "text", "text": await prompt.render(call, given)}}
        return RawResult({"description": prompt.description, "messages": [said]})

    return Tool("prompts/get", prompt.description, run, arguments=None)
