"""The endpoint of a surface over HTTP.

It answers the two frequent methods, `tools/call` and `tools/list`, itself. It hands every other request and every
invalid request to the SDK, which knows the error answers of each protocol version.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import orjson
from starlette.types import Message, Receive

from almanac.core.errors import AlmanacError
from almanac.core.fair_slots import compute
from almanac.net import json_rpc
from almanac.net.http_exchange import Headers, HttpExchange, ServerStopping, replay
from almanac.net.json_rpc import INVALID_PARAMS, InvalidJsonRpc
from almanac.operations.context import AppContext, Authentication, RequestContext
from almanac.operations.pipeline.endpoint import Endpoint, HandOver
from almanac.operations.pipeline.errors import (
    MethodNotAllowed,
    UnknownOperation,
    UnsupportedMediaType,
    error_headers,
)
from almanac.quotas.rate_limits import RateLimit
from almanac.surfaces.dispatcher import ToolDispatcher
from almanac.surfaces.sdk_server import DEFAULT_LEGACY, LEGACY, MODERN, SdkServer, status_of
from almanac.surfaces.surface import OnAccepted
from almanac.surfaces.toolsets import narrowed

MAX_CACHED_LISTS = 1000

_JSON = b"application/json"
_HOT_METHODS = frozenset({"tools/call", "tools/list"})
_CALL_KEYS = frozenset({"name", "arguments", "_meta"})
_EMPTY: dict[str, Any] = {}


@dataclass(slots=True)
class RpcCall:
    """The JSON-RPC id and protocol version of a `tools/call`, for its answer."""

    id: Any
    version: str


class McpEndpoint(Endpoint):
    """Serves a surface at its path."""

    is_mcp = True

    def __init__(self, dispatcher: ToolDispatcher) -> None:
        surface = dispatcher.surface
        self.dispatcher = dispatcher
        self.surface = surface.name
        self.state = dispatcher.state
        self.sdk: SdkServer = (surface.sdk_server or SdkServer)(dispatcher)
        self._surface = surface
        self.authenticator = surface.authenticator(surface, dispatcher.state)
        self._http_errors = (ServerStopping, *surface.errors_as_http_status)
        self._max_body_bytes = dispatcher.app.settings.max_body_bytes
        self._lists: dict[tuple[str, tuple[str, ...]], bytes] = {}

    async def authenticate(self, app: AppContext, http: HttpExchange) -> Authentication:
        """Return the caller."""
        actor = await self.authenticator.authenticate(app, http)
        return Authentication(narrowed(actor, http, self._surface.toolsets) if self._surface.toolsets else actor)

    async def limit_before_body(self, ctx: RequestContext) -> None:
        """Count the request, if the surface counts requests and not calls."""
        if self._surface.limit_before_body is not None:
            await self._surface.limit_before_body(ctx)

    def call_limit(self, ctx: RequestContext) -> RateLimit | None:
        """Return the limit per call, unless the surface has counted the request already."""
        return None if self._surface.limit_before_body is not None else self._surface.rate_limit(ctx.app, ctx.actor)

    async def read(self, ctx: RequestContext) -> Any:
        """Read a message: a tool call to run, a request for the SDK, or an answer that is ready."""
        http = ctx.http
        if http.scope["method"] != "POST":
            return await self.read_other(ctx)
        if http.content_type != _JSON:
            raise UnsupportedMediaType(
                "The request body must be application/json.", remedy="Send the header 'Content-Type: application/json'."
            )
        body = await http.read_json_body(self._max_body_bytes)
        read = partial(json_rpc.read, body, answers=self._surface.sessions)
        message = await compute(read) if http.has_large_body else read()
        method = message.get("method")
        version = self._version(message, method, http.headers)
        call_version = version if method == "tools/call" else None
        # A call is counted when it is run, so that its refusal has a form that a model reads. Other messages are
        # counted here, before they open a session.
        if call_version is None and (limit := self.call_limit(ctx)) is not None:
            await ctx.app.rate_limiter.count(limit, ctx.actor.limit_key)
        on_accepted = await self.authenticator.on_message(ctx, message)
        if (answer := self.answer_message(ctx, message)) is not None:
            return answer
        if call_version is not None:
            params = message["params"]
            ctx.meta = params.get("_meta", _EMPTY)
            ctx.endpoint_data = RpcCall(message["id"], call_version)
            return self.dispatcher.invocation(ctx.actor, params["name"], params.get("arguments", {}))
        if version is None:
            return HandOver(partial(self._hand_over, ctx, replay(body, http.receive), on_accepted))
        return self._tool_list(ctx, message, version)

    def answer_message(self, ctx: RequestContext, message: json_rpc.Message) -> Any:
        """Return the answer to a message that a seed wants answered in its own way; None for all others."""
        return None

    async def send(self, ctx: RequestContext, answer: Any) -> None:
        """Send the result of a call or a list."""
        if isinstance(answer, bytes):
            await ctx.http.reply(200, answer)
        else:
            await self._send_result(ctx, self._surface.render_result(answer))

    async def send_error(self, http: HttpExchange, ctx: RequestContext | None, error: AlmanacError) -> None:
        """Send an error: of a call as a tool result, which a model reads, and any other as the HTTP status."""
        rpc = ctx.endpoint_data if ctx is not None else None
        if isinstance(error, InvalidJsonRpc):
            body = json_rpc.error(None, error.rpc_code, error.message)
            await http.reply(error.status, orjson.dumps(body))
        elif ctx is None or not isinstance(rpc, RpcCall) or isinstance(error, self._http_errors):
            status, body = self._surface.http_error(error)
            headers = error_headers(error, retry_after=self._surface.sends_retry_after)
            await http.reply(status, orjson.dumps(body), headers)
        elif isinstance(error, UnknownOperation):
            body = json_rpc.error(rpc.id, INVALID_PARAMS, self._surface.unknown_tool_text(error))
            await http.reply(status_of(rpc.version, INVALID_PARAMS), orjson.dumps(body))
        else:
            await self._send_result(ctx, self._surface.render_error(error))

    async def read_other(self, ctx: RequestContext) -> HandOver | bytes:
        """Serve a request that is no POST: the end of a session or, where the SDK keeps sessions, any other."""
        http = ctx.http
        if http.scope["method"] == "DELETE" and await self.authenticator.end_session(http):
            http.ignore_body()
            return b"{}"
        if self._surface.sessions:
            return HandOver(partial(self._hand_over, ctx, http.receive))
        # The surface sends no messages of its own, so a stream would stay empty.
        raise MethodNotAllowed(
            ["POST"],
            "This endpoint takes POST requests only.",
            "It keeps no sessions and opens no streams: send each message as a POST.",
        )

    def _version(self, message: json_rpc.Message, method: Any, headers: Headers) -> str | None:
        """Return the protocol version of a request that can be answered here; None hands it to the SDK."""
        if method not in _HOT_METHODS or "id" not in message or not _accepts_json(headers):
            return None
        params: dict[str, Any] = message.get("params", _EMPTY)
        if not self._is_plain_call(params) if method == "tools/call" else params.get("cursor") is not None:
            return None
        version = headers.get(b"mcp-protocol-version", DEFAULT_LEGACY)
        if version == MODERN:
            return self.sdk.modern_version(message, params, headers)
        if version not in LEGACY or self._surface.sessions or not _is_plain_meta(params.get("_meta", _EMPTY)):
            return None
        return version.decode()

    def _is_plain_call(self, params: dict[str, Any]) -> bool:
        name = params.get("name")
        return (
            isinstance(name, str)
            and isinstance(params.get("arguments", _EMPTY), dict)
            and params.keys() <= _CALL_KEYS
            and name not in self._surface.sdk_only_tools
        )

    def _tool_list(self, ctx: RequestContext, message: json_rpc.Message, version: str) -> bytes:
        tools = self.dispatcher.tools_for(ctx.actor)
        key = (version, tuple(tools))
        result = self._lists.get(key)
        if result is None:
            if len(self._lists) > MAX_CACHED_LISTS:
                self._lists.clear()
            result = self._lists[key] = self.sdk.format_tool_list(version, tools.values())
        return b"".join((b'{"jsonrpc":"2.0","id":', orjson.dumps(message["id"]), b',"result":', result, b"}"))

    async def _send_result(self, ctx: RequestContext, result: dict[str, Any]) -> None:
        rpc = cast("RpcCall", ctx.endpoint_data)
        body = {"jsonrpc": "2.0", "id": rpc.id, "result": self.sdk.format_result(rpc.version, result)}
        await ctx.http.reply(200, orjson.dumps(body))

    async def _hand_over(self, ctx: RequestContext, receive: Receive, on_accepted: OnAccepted | None = None) -> None:
        http = ctx.http
        # The SDK compares header values as they are.
        normalised = {b"content-type": _JSON, b"host": http.headers.get(b"host", b"").lower()}
        headers = [(name, normalised.get(name, value.strip())) for name, value in http.scope["headers"]]
        scope = {**http.scope, "headers": headers}
        answer: list[Message] = []

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                ctx.guard.stop()
            await http.send_with_request_id(message)

        async def hold(message: Message) -> None:
            answer.append(message)

        if on_accepted is None:
            await self.sdk.handle(scope, receive, send, ctx.actor, http)
            return
        await self.sdk.handle(scope, receive, hold, ctx.actor, http)
        if _is_result(answer):
            answer[0]["headers"] = [*answer[0].get("headers", []), *await on_accepted()]
        for message in answer:
            await send(message)


def _accepts_json(headers: Headers) -> bool:
    accept = headers.get(b"accept", b"")
    return b"application/json" in accept or b"*/*" in accept


def _is_result(answer: Sequence[Message]) -> bool:
    """Whether an HTTP answer contains the result of a JSON-RPC request, and no error."""
    body = b"".join(message.get("body", b"") for message in answer)
    return bool(answer) and answer[0].get("status") == 200 and "result" in orjson.loads(body)


def _is_plain_meta(meta: Any) -> bool:
    return isinstance(meta, dict) and json_rpc.is_id(cast("dict[str, Any]", meta).get("progressToken", 0))
