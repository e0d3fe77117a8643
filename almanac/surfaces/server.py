"""The MCP SDK, and the only file that imports it.

An open surface (`Desk`) becomes a low-level SDK server here, reached over HTTP by `door.py` or over stdio. The SDK
speaks both eras of the protocol; `modern_version`, `shape` and `listing` let the door answer the two hot methods
exactly as the SDK would, without its cost.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import orjson
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, InboundModernRoute, classify_inbound_request
from mcp_types import SERVER_INFO_META_KEY, methods
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from almanac import __version__
from almanac.core.call import Actor
from almanac.core.errors import AlmanacError, Unauthorized
from almanac.surfaces.surface import Desk, ProtocolError, Result
from almanac.surfaces.tool import Tool

MODERN = LATEST_MODERN_VERSION
LEGACY = frozenset(HANDSHAKE_PROTOCOL_VERSIONS)
DEFAULT_LEGACY = "2025-03-26"  # what a client that names no version speaks, says the specification

LIST_FRESH_MS = 60_000  # how long a client may keep a tool list; it depends on the token, so it is private

# From here on a result has `structuredContent`, so ours already has the wire's form.
_WITH_STRUCTURE = frozenset({"2025-06-18", "2025-11-25"})

# Who is calling, put into the ASGI scope by the door for the SDK's handlers to find.
CALLER = "almanac.caller"

Context = ServerRequestContext[Any, Any]
Identify = Callable[[Context], Awaitable[tuple[Actor, str]]]


class SdkServer:
    """The SDK's server for one surface, over HTTP."""

    def __init__(self, desk: Desk, hosts: TransportSecuritySettings) -> None:
        surface = desk.surface
        self.server = build(desk, _from_scope)
        self._stamp = {SERVER_INFO_META_KEY: self.server.server_info_stamp}
        self._sessions = surface.sessions
        self._manager = StreamableHTTPSessionManager(
            self.server,
            stateless=not surface.sessions,
            json_response=not surface.streams,
            security_settings=hosts,
            max_request_body_size=desk.house.settings.max_body_bytes,
            **(surface.transport or {}),
        )

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        """Keep it open. A mounted application's own lifespan never runs, so `app.py` enters this one."""
        async with self._manager.run():
            yield

    async def handle(self, scope: Scope, receive: Receive, send: Send, actor: Actor, request_id: str) -> None:
        """Serve one HTTP request for a caller who is known."""
        scope[CALLER] = (actor, request_id)
        if self._sessions:
            # The SDK binds a session to the credential that opened it; ours is the token's id.
            token = AccessToken(token="", client_id=f"token-{actor.token_id}", scopes=[])
            scope["user"] = AuthenticatedUser(token)
        await self._manager.handle_request(scope, receive, send)

    def shape(self, version: str, result: Result) -> Result:
        """A tool's result in the form of a protocol version."""
        if version == MODERN:
            return {"resultType": "complete", **result, "_meta": self._stamp}
        if version in _WITH_STRUCTURE:
            return result
        return methods.serialize_server_result("tools/call", version, result)

    def listing(self, version: str, tools: Iterable[Tool]) -> bytes:
        """The result of `tools/list`, serialised."""
        result: Result = {"tools": [tool.describe() for tool in tools]}
        if version != MODERN:
            return orjson.dumps(methods.serialize_server_result("tools/list", version, result))
        result |= {"resultType": "complete", "ttlMs": LIST_FRESH_MS, "cacheScope": "private"}
        return orjson.dumps(methods.serialize_server_result("tools/list", version, result) | {"_meta": self._stamp})


def security(hosts: list[str], origins: list[str]) -> TransportSecuritySettings:
    """The SDK's own Host and Origin check, given our lists: built without, it checks nothing."""
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


def build(desk: Desk, identify: Identify) -> Server[Any]:
    """An SDK server that answers for a surface."""
    surface = desk.surface
    schemas = {tool.name: tool.schema for tool in surface.tools}

    async def list_tools(ctx: Context, params: types.PaginatedRequestParams) -> Result:
        if params.cursor is not None:
            raise MCPError(types.INVALID_PARAMS, "Unknown cursor: this list has one page")
        actor, _ = await identify(ctx)
        return {"resultType": "complete", "tools": [tool.describe() for tool in desk.visible(actor).values()]}

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> Result:
        actor, request_id = await identify(ctx)
        try:
            result = await desk.call(actor, params.name, params.arguments or {}, request_id, ctx)
            return {"resultType": "complete", **result}  # required in the modern era, dropped by the SDK in the other
        except ProtocolError as error:
            raise MCPError(error.code, str(error), error.data) from None

    server: Server[Any] = Server(
        surface.server_name or surface.name,
        version=__version__,
        title=surface.title or None,
        instructions=surface.instructions or None,
        get_tool_input_schema=schemas.get,
        cache_hints={method: CacheHint(LIST_FRESH_MS, "private") for method in ("tools/list", "server/discover")},
    )
    server.add_request_handler("tools/list", types.PaginatedRequestParams, list_tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, call_tool)
    for method, params, handler in surface.handlers:
        server.add_request_handler(method, params, handler)
    return server


async def serve_stdio(desk: Desk, authenticate: Callable[[], Awaitable[Actor | None]]) -> None:
    """Serve a surface on standard input and output until the input ends. The token is looked up at every call."""
    count = 0

    async def identify(_: Context) -> tuple[Actor, str]:
        nonlocal count
        count += 1
        try:
            actor = await authenticate()
        except AlmanacError as error:
            raise MCPError(types.INTERNAL_ERROR, error.text) from None
        if actor is None:
            raise MCPError(types.INVALID_REQUEST, Unauthorized().message)
        return actor, f"stdio-{count}"

    server = build(desk, identify)
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


def status_of(version: str, code: int) -> int:
    """The HTTP status that goes with a JSON-RPC error."""
    return ERROR_CODE_HTTP_STATUS.get(code, 200) if version == MODERN else 200


def modern_version(body: dict[str, Any], headers: Mapping[str, str]) -> str | None:
    """The version of a flawless request of the modern era; None if the SDK should say what is wrong with it."""
    verdict = classify_inbound_request(body, headers=headers)
    if not isinstance(verdict, InboundModernRoute):
        return None
    try:
        methods.validate_client_request(body["method"], verdict.protocol_version, body["params"])
    except (ValidationError, KeyError):
        return None
    return verdict.protocol_version


async def _from_scope(ctx: Context) -> tuple[Actor, str]:
    assert ctx.request is not None
    return ctx.request.scope[CALLER]
