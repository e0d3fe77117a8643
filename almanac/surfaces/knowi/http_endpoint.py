"""The REST paths beside the MCP transport of the Knowi surface: health, the list of tools, one tool, and a call."""

import time
from typing import Any, cast

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from almanac.core.errors import AlmanacError, BadRequest, RateLimited, RateLimitUnavailable
from almanac.net.http_exchange import HttpExchange, ServerStopping
from almanac.operations.context import AppContext, Authentication, RequestContext
from almanac.operations.pipeline.endpoint import Endpoint, Invocation
from almanac.operations.pipeline.errors import InvalidJson, MethodNotAllowed, UnknownOperation, UnsupportedMediaType
from almanac.operations.pipeline.errors import error_headers as headers_of
from almanac.operations.pipeline.pipeline import EndpointApp
from almanac.surfaces.dispatcher import ToolDispatcher
from almanac.surfaces.knowi.responses import ToolNotFound, error_text
from almanac.surfaces.knowi.sessions import CallerSessions
from almanac.surfaces.surface import Result, text_result
from almanac.surfaces.tool import tool_entry

JSON = b"application/json"

# Errors that REST also tells by the status. Any other error of a tool is an ordinary answer.
_ERRORS_BY_STATUS = (RateLimited, RateLimitUnavailable, ServerStopping, UnknownOperation)


class KnowiHttpEndpoint(Endpoint):
    """Serves the paths `/tools`, `/tools/{name}` and `/tools/call`."""

    is_mcp = True

    def __init__(self, dispatcher: ToolDispatcher) -> None:
        self.surface = dispatcher.surface.name
        self.state = dispatcher.state
        self._dispatcher = dispatcher
        self._authenticator = dispatcher.surface.authenticator(dispatcher.surface, dispatcher.state)
        self._max_body_bytes = dispatcher.app.settings.max_body_bytes

    async def authenticate(self, app: AppContext, http: HttpExchange) -> Authentication:
        """Return the caller."""
        return Authentication(await self._authenticator.authenticate(app, http))

    async def read(self, ctx: RequestContext) -> Any:
        """Return the call to run, or the description of tools."""
        http = ctx.http
        name = http.scope["path_params"].get("name")
        is_call = http.scope["path"].endswith("/tools/call")
        if http.scope["method"] not in (("POST",) if is_call else ("GET", "HEAD")):
            raise MethodNotAllowed(["POST" if is_call else "GET"])
        if is_call:
            return await self._read_call(ctx)
        http.ignore_body()
        tools = self._dispatcher.tools_for(ctx.actor)
        if name is None:
            return [tool_entry(tool) for tool in tools.values()]
        if name not in tools:
            raise ToolNotFound(name[:100])
        return tool_entry(tools[name])

    async def send(self, ctx: RequestContext, answer: Any) -> None:
        """Send the result of a call, or the description of tools."""
        if ctx.operation:
            answer = self._timed(ctx, self._dispatcher.surface.render_result(answer))
        await ctx.http.reply(200, orjson.dumps(answer))

    async def send_error(self, http: HttpExchange, ctx: RequestContext | None, error: AlmanacError) -> None:
        """Send an error in the form of a tool's result."""
        result = text_result(error_text(error), is_error=True)
        is_of_tool = ctx is not None and ctx.operation and not isinstance(error, _ERRORS_BY_STATUS)
        if ctx is not None and ctx.operation:
            result = self._timed(ctx, result)
        await http.reply(200 if is_of_tool else error.status, orjson.dumps(result), headers_of(error))

    async def _read_call(self, ctx: RequestContext) -> Invocation:
        if ctx.http.content_type != JSON:
            raise UnsupportedMediaType()
        body = await ctx.http.read_json_body(self._max_body_bytes)
        try:
            call = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise InvalidJson(f"The body is not valid JSON: {error.msg} at character {error.pos}.") from None
        ctx.endpoint_data = time.perf_counter()
        name, arguments, ctx.meta = _parse_call(call)
        return self._dispatcher.invocation(ctx.actor, name, arguments)

    def _timed(self, ctx: RequestContext, result: Result) -> Result:
        milliseconds = round((time.perf_counter() - ctx.endpoint_data) * 1000)
        return {**result, "_meta": {**result.get("_meta", {}), "executionTimeMs": milliseconds}}


def _parse_call(value: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the name, the arguments and the metadata of a call."""
    call = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    name, arguments, meta = call.get("name"), call.get("arguments"), call.get("_meta")
    if not isinstance(name, str) or not isinstance(arguments, dict | None) or not isinstance(meta, dict | None):
        raise BadRequest("The body is no call of a tool.", remedy='Send {"name": "knowi_…", "arguments": {…}} as JSON.')
    return name, cast("dict[str, Any]", arguments or {}), cast("dict[str, Any]", meta or {})


def knowi_routes(dispatcher: ToolDispatcher, prefix: str) -> list[Route]:
    """Return the routes below one prefix of the server."""
    path = prefix + dispatcher.surface.path
    endpoint = EndpointApp(dispatcher.app, KnowiHttpEndpoint(dispatcher))
    sessions: CallerSessions = dispatcher.state
    names = [tool.name for tool in dispatcher.surface.operations]

    async def health(_: Request) -> Response:
        try:
            status, active = "healthy", await sessions.store.count()
        except AlmanacError:
            status, active = "unhealthy", None
        body = {"status": status, "toolCount": len(names), "tools": names, "activeSessions": active}
        return JSONResponse(body, 200 if active is not None else 503)

    return [
        Route(f"{path}/health", health, methods=["GET"]),
        Route(f"{path}/tools", endpoint),
        Route(f"{path}/tools/{{name}}", endpoint),
    ]
