"""A surface: a set of tools under one path, and the one way every call of them goes.

`Desk.call` finds the tool among those this caller may use, meters, parses strictly, runs under a deadline, maps
errors to the surface's own form, and accounts for the call in the metrics and the audit trail, whatever happened.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, cast

import orjson
import structlog
from opentelemetry.trace import Tracer
from prometheus_client import Counter, Histogram
from pydantic import BaseModel

from almanac.audit.trail import Entry
from almanac.core import clock
from almanac.core.call import REQUEST_ID, Actor
from almanac.core.database import Database
from almanac.core.deadline import Alarm, Deadline
from almanac.core.errors import AlmanacError, AuditUnavailable, BadRequest, Cancelled, DeadlineExceeded, Internal
from almanac.surfaces import message as messages
from almanac.surfaces.tool import House, Raw, Tool, ToolCall

Result = dict[str, Any]

_log = structlog.get_logger("almanac.surface")

CALLS = Counter("almanac_calls_total", "Tool calls.", ["surface", "tool", "outcome"])
SECONDS = Histogram(
    "almanac_call_seconds",
    "How long tool calls took.",
    ["surface", "tool"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
_SERVER_ERROR = -32000
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
        super().__init__(-32602, f"Unknown tool: {name[:100]}")


def text_error(error: AlmanacError) -> Result:
    """An error as our own surface tells it: its code, what happened, and what to do next."""
    return {"content": [{"type": "text", "text": f"{error.code}: {error.text}"}], "isError": True}


def structured(value: Any) -> Result:
    """A result as our own surface gives it: structured, and the same as JSON text for older clients."""
    if isinstance(value, Raw):
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
    render: Callable[[AlmanacError], Result] = text_error
    wrap: Callable[[Any], Result] = structured
    http_error: Callable[[AlmanacError], tuple[int, dict[str, Any]]] = http_error
    sessions: bool = False  # keeps MCP sessions, where a seed documents them
    streams: bool = False  # answers legacy calls as event streams, so that tools can talk to the client
    transport: Mapping[str, Any] | None = None  # further options of the session manager
    handlers: tuple[tuple[str, type[BaseModel], Any], ...] = ()  # MCP methods beyond tools: (method, params, handler)

    @cached_property
    def slow_tools(self) -> frozenset[str]:
        """The tools that need the whole SDK: they talk to the client, or have arguments mirrored in headers."""
        return frozenset(
            tool.name for tool in self.tools if tool.needs_peer or b"x-mcp-header" in orjson.dumps(tool.schema)
        )


class Desk:
    """An open surface: where its calls are served."""

    def __init__(self, surface: Surface, house: House, db: Database, key: bytes, tracer: Tracer | None = None) -> None:
        self.surface = surface
        self.house = house
        self.db = db
        self._key = key
        self._tracer = tracer
        self._digest_of_nothing = hashlib.blake2b(b"{}", digest_size=16, key=key).hexdigest()
        self._alarm = Alarm(house.settings.request_deadline_seconds)
        self._visible: dict[tuple[frozenset[str], frozenset[str] | None], dict[str, Tool]] = {}

    def visible(self, actor: Actor) -> dict[str, Tool]:
        """The tools this caller may use. What is not here is neither listed nor callable."""
        rights = (actor.scopes, actor.tools)
        found = self._visible.get(rights)
        if found is None:
            if len(self._visible) > 1000:  # tokens with their own tool lists could otherwise grow this for ever
                self._visible.clear()
            found = {tool.name: tool for tool in self.surface.tools if _allowed(tool, actor)}
            self._visible[rights] = found
        return found

    async def meter(self, actor: Actor) -> None:
        """Count one request against the caller's limit, or refuse."""
        await self.house.rates.hit(self.house.call_rule, actor.limit_key)

    async def call(
        self,
        actor: Actor,
        name: str,
        arguments: dict[str, Any],
        request_id: str,
        peer: Any = None,
        *,
        is_metered: bool = False,
    ) -> Result:
        """Serve one call; `is_metered` if the door has already counted it against the caller's limit."""
        if self._tracer is None:
            return await self._serve(actor, name, arguments, request_id, peer, is_metered)
        title = f"tools/call {name if name in self.visible(actor) else _UNKNOWN}"
        # An exception is not recorded, for its message may hold what the caller sent.
        with self._tracer.start_as_current_span(title, record_exception=False, set_status_on_exception=False) as span:
            span.set_attribute("almanac.surface", self.surface.name)
            span.set_attribute("almanac.request_id", request_id)
            result = await self._serve(actor, name, arguments, request_id, peer, is_metered)
            span.set_attribute("almanac.is_error", bool(result.get("isError")))
            return result

    async def _serve(
        self, actor: Actor, name: str, arguments: dict[str, Any], request_id: str, peer: Any, is_metered: bool
    ) -> Result:
        begun = time.perf_counter_ns()
        REQUEST_ID.set(request_id)
        self.house.trail.calls_in_flight += 1
        call = ToolCall(actor, self.db, request_id, house=self.house, peer=peer)
        tool = self.visible(actor).get(name)
        digest, outcome = "", "ok"
        try:
            self.house.trail.check()
            if not is_metered:
                await self.meter(actor)
            if tool is None:
                raise UnknownTool(name)
            digest = self._digest(arguments)
            return self.surface.wrap(await self._run(tool, call, arguments))
        except ProtocolError as error:
            outcome = "unknown_tool" if tool is None else f"protocol_{-error.code}"
            raise
        except AlmanacError as error:
            outcome = error.code
            if error.status >= 500:
                _log.warning(
                    "call_failed", surface=self.surface.name, tool=name, request_id=request_id, error=str(error)
                )
            return self.surface.render(error)
        except asyncio.CancelledError:
            outcome = Cancelled.code
            raise
        except Exception:  # noqa: BLE001 - the dispatcher
            outcome = Internal.code
            _log.exception("tool_failed", surface=self.surface.name, tool=name, request_id=request_id)
            return self.surface.render(Internal())
        finally:
            self.house.trail.calls_in_flight -= 1
            self._account(call, tool.name if tool else _UNKNOWN, outcome, time.perf_counter_ns() - begun, digest)

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

    def _digest(self, arguments: dict[str, Any]) -> str:
        if not arguments:
            return self._digest_of_nothing
        # Keyed, so that nobody who reads the trail can try out guesses at what was asked.
        try:
            plain = orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)
        except TypeError:
            raise BadRequest(
                "The arguments are nested too deeply, or hold text that is not valid Unicode.",
                remedy="Send a flatter object, in UTF-8.",
            ) from None
        if b"\\u0000" in plain and _has_nul(arguments):
            # PostgreSQL cannot store it, and nothing that people write contains it.
            raise BadRequest("The arguments contain the NUL character.", remedy="Leave it out.")
        return hashlib.blake2b(plain, digest_size=16, key=self._key).hexdigest()

    def _account(self, call: ToolCall, tool: str, outcome: str, nanoseconds: int, digest: str) -> None:
        surface, actor = self.surface.name, call.actor
        _calls(surface, tool, outcome).inc()
        _seconds(surface, tool).observe(nanoseconds / 1e9)
        if outcome == AuditUnavailable.code:
            return  # it was refused because no more can be held
        self.house.trail.add(
            Entry(
                clock.now(),
                actor.org_id,
                actor.id,
                actor.token_id,
                surface,
                tool,
                outcome,
                nanoseconds // 1000,
                digest,
                " ".join(call.touched),
                call.request_id,
            )
        )


def _allowed(tool: Tool, actor: Actor) -> bool:
    return tool.scopes <= actor.scopes and (actor.tools is None or tool.name in actor.tools)


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_has_nul(key) or _has_nul(item) for key, item in cast("dict[str, Any]", value).items())
    return isinstance(value, list) and any(_has_nul(item) for item in cast("list[Any]", value))


# Finding a labelled metric costs more than counting with it.
@lru_cache(maxsize=10_000)
def _calls(surface: str, tool: str, outcome: str) -> Counter:
    return CALLS.labels(surface, tool, outcome)


@lru_cache(maxsize=1_000)
def _seconds(surface: str, tool: str) -> Histogram:
    return SECONDS.labels(surface, tool)
