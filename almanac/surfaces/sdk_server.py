"""The MCP SDK, and the only file that imports it.

An open surface becomes a low-level SDK server here, served over HTTP by `mcp_endpoint.py` or over stdio. The SDK
implements all versions of the protocol. `modern_version`, `format_result` and `format_tool_list` let the endpoint
answer the two frequent methods exactly as the SDK would, in less time.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, cast

import mcp_types as types
import orjson
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY, SERVER_INFO_META_KEY, methods
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from orjson import Fragment
from pydantic import BaseModel, ValidationError
from starlette.types import Receive, Scope, Send

from almanac import __version__
from almanac.core.call import Actor
from almanac.core.errors import AlmanacError, Unauthorized
from almanac.net.http_exchange import HttpExchange
from almanac.net.json_rpc import is_id
from almanac.operations.operation import Operation
from almanac.surfaces.dispatcher import ProtocolError, ToolDispatcher
from almanac.surfaces.surface import Result
from almanac.surfaces.tool import tool_entry, tool_schema

# Protocol versions, as values of the header `MCP-Protocol-Version`.
MODERN = LATEST_MODERN_VERSION.encode()
NEWEST_LEGACY = HANDSHAKE_PROTOCOL_VERSIONS[-1]
LEGACY = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
DEFAULT_LEGACY = b"2025-03-26"  # the specification's default for clients without the header

# Clients may cache a tool list for this time. It depends on the token, so the cache is private.
LIST_TTL_MILLISECONDS = 60_000

_LISTS: tuple[CacheableMethod, ...] = (
    "tools/list", "server/discover", "resources/list", "resources/templates/list", "prompts/list",
)  # fmt: skip
_CACHE_HINTS: dict[CacheableMethod, CacheHint] = {
    **{method: CacheHint(LIST_TTL_MILLISECONDS, "private") for method in _LISTS},
    "resources/read": CacheHint(0, "private"),  # resources may change at any time
}

# The methods whose results have instructions for the client's model.
_GREETINGS = frozenset({"initialize", "server/discover"})

# Versions with `structuredContent`, so that our result already has the wire form.
_STRUCTURED_VERSIONS = frozenset({"2025-06-18", "2025-11-25"})

MAX_CACHED_ENVELOPES = 1000
MAX_ENVELOPE_BYTES = 4096

# Keys of the ASGI scope that pass the caller and the exchange to the handlers.
CALLER_KEY = "almanac.caller"
EXCHANGE_KEY = "almanac.exchange"

Context = ServerRequestContext[Any, Any]
Identify = Callable[[Context], Awaitable[tuple[Actor, str]]]


class SdkServer:
    """The SDK's server for one surface, over HTTP."""

    def __init__(self, dispatcher: ToolDispatcher, **options: Any) -> None:
        options.setdefault("json_response", True)
        surface, allowed_hosts = dispatcher.surface, dispatcher.app.allowed_hosts
        self.server = build_sdk_server(dispatcher, _from_scope, is_counted=True)
        self._server_info = {SERVER_INFO_META_KEY: self.server.server_info_stamp}
        self._envelopes: set[tuple[str, bytes]] = set()
        self._last_envelope: dict[str, Result] = {}
        self._sessions = surface.sessions
        self._manager = StreamableHTTPSessionManager(
            self.server,
            stateless=not surface.sessions,
            # The SDK checks Host and Origin only with these settings.
            security_settings=TransportSecuritySettings(
                enable_dns_rebinding_protection=allowed_hosts.is_checked,
                allowed_hosts=allowed_hosts.hosts,
                allowed_origins=allowed_hosts.origins,
            ),
            max_request_body_size=dispatcher.app.settings.max_body_bytes,
            **options,
        )

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        """Run the session manager. `app.py` enters this, because the lifespan of a mounted application never runs."""
        async with self._manager.run():
            yield

    async def handle(self, scope: Scope, receive: Receive, send: Send, actor: Actor, http: HttpExchange) -> None:
        """Serve one HTTP request of a known caller."""
        scope[CALLER_KEY] = (actor, http.request_id)
        scope[EXCHANGE_KEY] = http
        if self._sessions:
            # The SDK binds a session to the credential that opened it; the token id stands for the credential.
            token = AccessToken(token="", client_id=f"token-{actor.token_id}", scopes=[])
            scope["user"] = AuthenticatedUser(token)
        await self._manager.handle_request(scope, receive, send)

    def modern_version(self, message: Result, params: Result, headers: Mapping[bytes, bytes]) -> str | None:
        """Return the version of a valid request of the newest version; None hands the request to the SDK."""
        meta = params.get("_meta")
        if not isinstance(meta, dict) or headers.get(b"mcp-method") != message["method"].encode():
            return None
        name: str = params.get("name", "")
        # The header contains an ASCII name unchanged; the SDK decodes all other names.
        if headers.get(b"mcp-name", b"") != name.encode() or not name.isascii() or name.startswith("="):
            return None
        return LATEST_MODERN_VERSION if self._is_envelope(cast("Result", meta), message["method"], params) else None

    def _is_envelope(self, meta: Result, method: str, params: Result) -> bool:
        if meta == self._last_envelope.get(method):
            return True
        if meta.get(PROTOCOL_VERSION_META_KEY) != LATEST_MODERN_VERSION or not is_id(meta.get("progressToken", 0)):
            return False
        try:
            key = (method, orjson.dumps({key: value for key, value in meta.items() if key != "progressToken"}))
        except TypeError:
            return False  # nested deeper than orjson allows
        if key in self._envelopes:
            self._last_envelope[method] = meta  # a client sends the same one with each request
            return True
        try:
            methods.validate_client_request(method, LATEST_MODERN_VERSION, params)
        except ValidationError:
            return False
        if CLIENT_CAPABILITIES_META_KEY not in meta:
            return False
        if len(self._envelopes) < MAX_CACHED_ENVELOPES and len(key[1]) < MAX_ENVELOPE_BYTES:
            self._envelopes.add(key)
        return True

    def format_result(self, version: str, result: Result) -> Result:
        """Return a tool's result in the form of a protocol version."""
        if version == LATEST_MODERN_VERSION:
            return {"resultType": "complete", **result, "_meta": {**result.get("_meta", {}), **self._server_info}}
        if version in _STRUCTURED_VERSIONS:
            return result
        return methods.serialize_server_result("tools/call", version, without_fragment(result))

    def format_tool_list(self, version: str, tools: Iterable[Operation]) -> bytes:
        """Return the result of `tools/list`, serialised."""
        result: Result = {"tools": [tool_entry(tool) for tool in tools]}
        if version == LATEST_MODERN_VERSION:
            cache = {"ttlMs": LIST_TTL_MILLISECONDS, "cacheScope": "private", "_meta": self._server_info}
            return orjson.dumps({"resultType": "complete", **result, **cache})
        if version in _STRUCTURED_VERSIONS:
            return orjson.dumps(result)  # literally as in the contract
        return orjson.dumps(methods.serialize_server_result("tools/list", version, result))


def _require_first_page(params: types.PaginatedRequestParams) -> None:
    if params.cursor is not None:
        raise MCPError(types.INVALID_PARAMS, "Unknown cursor: this list has one page")


def build_sdk_server(dispatcher: ToolDispatcher, identify: Identify, *, is_counted: bool) -> Server[Any]:
    """Return an SDK server for a surface. `is_counted`: rate limits have counted the requests before."""
    surface = dispatcher.surface
    schemas = {tool.name: tool_schema(tool) for tool in surface.operations}

    async def list_tools(ctx: Context, params: types.PaginatedRequestParams) -> Result:
        _require_first_page(params)
        actor, _ = await identify(ctx)
        return {"resultType": "complete", "tools": [tool_entry(tool) for tool in dispatcher.tools_for(actor).values()]}

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> Result:
        actor, request_id = await identify(ctx)
        http = ctx.request.scope[EXCHANGE_KEY] if ctx.request is not None else None
        calling = dispatcher.call(
            actor, params.name, params.arguments or {}, request_id, http=http, client=ctx, is_counted=is_counted,
            meta=params.meta or {},
        )  # fmt: skip
        return without_fragment(await _as_result(calling))

    server: Server[Any] = Server(
        surface.server_name or surface.name,
        version=surface.server_version or __version__,
        title=surface.title or None,
        get_tool_input_schema=schemas.get,
        cache_hints=_CACHE_HINTS,
    )

    async def add_instructions(ctx: Context, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method not in _GREETINGS or not isinstance(result, dict):
            return result
        text = dispatcher.instructions_for((await identify(ctx))[0])
        return {**result, "instructions": text} if text else result

    server.middleware.append(add_instructions)
    server.add_request_handler("tools/list", types.PaginatedRequestParams, list_tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, call_tool)
    for method, params, handler in _other_handlers(dispatcher, identify):
        server.add_request_handler(method, params, handler)
    return server


BoundState = TypeVar("BoundState")


def build_in_process_server(
    name: str,
    version: str,
    contract: list[dict[str, Any]],
    lifespan: Callable[[Server[BoundState]], AbstractAsyncContextManager[BoundState]],
    run: Callable[[BoundState, str, Mapping[str, Any]], Awaitable[Result | None]],
) -> Server[BoundState]:
    """Return an SDK server for in-process use, with the tools of a contract. `run` receives the lifespan's state."""
    schemas = {entry["name"]: entry["inputSchema"] for entry in contract}

    async def list_tools(_: ServerRequestContext[BoundState, Any], params: types.PaginatedRequestParams) -> Result:
        _require_first_page(params)
        return {"resultType": "complete", "tools": contract}

    async def call_tool(ctx: ServerRequestContext[BoundState, Any], params: types.CallToolRequestParams) -> Result:
        result = await run(ctx.lifespan_context, params.name, params.arguments or {})
        if result is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name[:100]}")
        return {"resultType": "complete", **result}

    server = Server(
        name,
        version=version,
        lifespan=lifespan,
        get_tool_input_schema=schemas.get,
        cache_hints=_CACHE_HINTS,
    )
    server.add_request_handler("tools/list", types.PaginatedRequestParams, list_tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, call_tool)
    return server


def _other_handlers(dispatcher: ToolDispatcher, identify: Identify) -> list[tuple[str, type[BaseModel], Any]]:
    """Return the handlers of a surface's resources and prompts."""
    surface = dispatcher.surface
    handlers: list[tuple[str, type[BaseModel], Any]] = []

    def list_handler(name: str, entries: list[dict[str, Any]]) -> Any:
        async def handle(_: Context, params: types.PaginatedRequestParams) -> Result:
            _require_first_page(params)
            return {"resultType": "complete", name: entries}

        return handle

    async def read(ctx: Context, params: types.ReadResourceRequestParams) -> Result:
        actor, request_id = await identify(ctx)
        return await _as_result(dispatcher.read_resource(actor, params.uri, request_id))

    async def prompt(ctx: Context, params: types.GetPromptRequestParams) -> Result:
        actor, request_id = await identify(ctx)
        return await _as_result(dispatcher.get_prompt(actor, params.name, params.arguments or {}, request_id))

    async def list_templates(ctx: Context, params: types.PaginatedRequestParams) -> Result:
        _require_first_page(params)
        actor, _ = await identify(ctx)
        templates = [each.describe() for each in dispatcher.resources_for(actor)]
        return {"resultType": "complete", "resourceTemplates": templates}

    async def list_resources(ctx: Context, params: types.PaginatedRequestParams) -> Result:
        actor, request_id = await identify(ctx)
        return await _as_result(dispatcher.list_resources(actor, params.cursor, request_id))

    if surface.resources:
        handlers += [
            ("resources/list", types.PaginatedRequestParams, list_resources),
            ("resources/templates/list", types.PaginatedRequestParams, list_templates),
            ("resources/read", types.ReadResourceRequestParams, read),
        ]
    if surface.prompts:
        prompts = [each.describe() for each in surface.prompts]
        handlers += [
            ("prompts/list", types.PaginatedRequestParams, list_handler("prompts", prompts)),
            ("prompts/get", types.GetPromptRequestParams, prompt),
        ]
    return handlers


async def _as_result(answer: Awaitable[Result]) -> Result:
    try:
        # The SDK drops the type in the legacy era.
        return {"resultType": "complete", **await answer}
    except ProtocolError as error:
        raise MCPError(error.code, str(error), error.data) from None


async def serve_stdio(dispatcher: ToolDispatcher, authenticate: Callable[[], Awaitable[Actor | None]]) -> None:
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
            raise MCPError(types.INVALID_REQUEST, f"{Unauthorized().message} Restart this server with a valid --token.")
        return actor, f"stdio-{count}"

    server = build_sdk_server(dispatcher, identify, is_counted=False)
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


def without_fragment(result: Result) -> Result:
    """Return a result without serialised fragments, which only orjson can write. Its text has the same content."""
    if not isinstance(result.get("structuredContent"), Fragment):
        return result
    return {**result, "structuredContent": orjson.loads(result["content"][-1]["text"])}


def status_of(version: str, code: int) -> int:
    """Return the HTTP status of a JSON-RPC error."""
    return ERROR_CODE_HTTP_STATUS.get(code, 200) if version == LATEST_MODERN_VERSION else 200


async def _from_scope(ctx: Context) -> tuple[Actor, str]:
    assert ctx.request is not None
    return ctx.request.scope[CALLER_KEY]
