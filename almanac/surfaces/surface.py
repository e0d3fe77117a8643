"""A surface: a set of tools at one path with one contract. Values only: nothing runs until `app.py` opens it."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson
from pydantic import BaseModel

from almanac.core.call import Actor
from almanac.core.errors import AlmanacError, InvalidToken, Unauthorized
from almanac.identity.credentials import bearer_token
from almanac.net import json_rpc
from almanac.net.http_exchange import HeaderList, HttpExchange
from almanac.operations.context import AppContext, RequestContext
from almanac.operations.models import UntrustedAnswer
from almanac.operations.operation import Operation
from almanac.operations.pipeline.errors import UnknownOperation
from almanac.operations.schemas import without_hidden_fields
from almanac.quotas.rate_limits import RateLimit
from almanac.surfaces.resource import Prompt, ResourceTemplate
from almanac.surfaces.tool import RawResult, tool_schema

Result = dict[str, Any]

# Runs once the SDK has answered a message with a result. Returns headers for the answer.
OnAccepted = Callable[[], Awaitable[HeaderList]]

_UNTRUSTED = {"almanac/trust": "untrusted"}


def text_result(text: str, *, is_error: bool = False) -> Result:
    """Return a tool result of one text."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def render_text_error(error: AlmanacError) -> Result:
    """Return an error as our own surface shows it: its code, the problem and the remedy."""
    return text_result(f"{error.code}: {error.text}", is_error=True)


def render_structured(answer: Any) -> Result:
    """Return an answer as our own surface shows it: structured, and the same as JSON text for older clients."""
    if isinstance(answer, RawResult):
        return answer.result
    text = orjson.dumps(without_hidden_fields(answer), default=_json_default)
    # Serialised once: the fragment goes into the response as it is.
    result = {
        "content": [{"type": "text", "text": text.decode()}],
        "structuredContent": orjson.Fragment(text),
        "isError": False,
    }
    return {**result, "_meta": _UNTRUSTED} if isinstance(answer, UntrustedAnswer) else result


def _json_default(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"cannot answer with a {type(value).__name__}")


def http_error(error: AlmanacError) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON-RPC error of a failure before a tool is reached. Clients show it to the model."""
    return error.status, json_rpc.error(None, json_rpc.SERVER_ERROR, error.text, {"code": error.code})


class Authenticator:
    """Identifies callers by the token of each request. A surface with sessions or keys has its own subclass."""

    def __init__(self, surface: "Surface", state: Any) -> None:
        self.surface = surface
        self.state = state  # the open state of the surface

    async def authenticate(self, app: AppContext, http: HttpExchange) -> Actor:
        """Return the caller before the body is read, or raise `Unauthorized`."""
        secret = self.surface.credential(http.headers)
        actor = await app.token_resolver.resolve(secret) if secret else None
        if actor is None:
            raise InvalidToken() if secret else Unauthorized()
        return actor

    async def on_message(self, ctx: RequestContext, message: json_rpc.Message) -> OnAccepted | None:
        """Check a message, which may be refused. Return what remains to be done once the message is accepted."""
        return None

    async def end_session(self, http: HttpExchange) -> bool:
        """End the caller's session. Return whether there was one to end."""
        return False


def default_rate_limit(app: AppContext, _: Actor) -> RateLimit:
    """Return the limit that the settings give every token."""
    return app.call_limit


@asynccontextmanager
async def no_state(_: AppContext) -> AsyncGenerator[None]:
    """Open nothing, for surfaces without state."""
    yield


@dataclass(frozen=True)
class Surface:
    """The tools of one surface and the form of its answers."""

    name: str
    path: str
    operations: tuple[Operation, ...]
    server_name: str = ""  # shown to clients; the surface's own name if empty
    server_version: str = ""  # shown to clients; that of this server if empty
    title: str = ""
    instructions: str | Callable[[Container[str]], str] = ""  # or a function of the tools that the caller has
    setting: str = ""  # that must be on for the surface to be served
    credential: Callable[[Mapping[bytes, bytes]], str | None] = bearer_token
    authenticator: Callable[["Surface", Any], Authenticator] = Authenticator
    open_state: Callable[[AppContext], AbstractAsyncContextManager[Any]] = no_state
    # Counts each request before its body is read, instead of each call, if a seed requires it.
    limit_before_body: Callable[[RequestContext], Awaitable[None]] | None = None
    rate_limit: Callable[[AppContext, Actor], RateLimit] = default_rate_limit
    sends_retry_after: bool = True
    render_error: Callable[[AlmanacError], Result] = render_text_error
    render_result: Callable[[Any], Result] = render_structured
    http_error: Callable[[AlmanacError], tuple[int, dict[str, Any]]] = http_error
    errors_as_http_status: tuple[type[AlmanacError], ...] = ()  # answered by the HTTP status, not by a tool result
    lists_all_tools: bool = False  # to every caller; a call then says which scope the token lacks
    resources: tuple[ResourceTemplate, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    # The tools of each part that a client may load alone; empty: the surface has no parts.
    toolsets: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    sessions: bool = False  # keeps MCP sessions, if a seed requires them
    sdk_server: Callable[[Any], Any] | None = None  # a replacement for SdkServer
    endpoint: Callable[[Any], Any] | None = None  # a replacement for McpEndpoint
    missing_tools: frozenset[str] = frozenset()  # of the contract, which do not exist yet
    # Removes from arguments what a seed does not want to reach any tool.
    clean_arguments: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    unknown_tool_text: Callable[[UnknownOperation], str] = lambda error: error.text

    @cached_property
    def sdk_only_tools(self) -> frozenset[str]:
        """The tools that the fast path cannot serve: they talk to the client, or mirror arguments in headers."""
        return frozenset(
            operation.name
            for operation in self.operations
            if (operation.mcp and operation.mcp.sdk_only) or b"x-mcp-header" in orjson.dumps(tool_schema(operation))
        )
