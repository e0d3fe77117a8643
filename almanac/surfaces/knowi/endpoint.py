"""The MCP transport of the Knowi surface.

It differs from the other surfaces where the seed's document does: each answer names the caller's session, an unknown
session is silently replaced by a new one, `initialize` needs no parameters, and a notification is answered by 204.
"""

import contextlib
from typing import Any

import orjson

from almanac.core.errors import AlmanacError, BadRequest
from almanac.net import json_rpc
from almanac.net.http_exchange import HttpExchange
from almanac.operations.context import RequestContext
from almanac.operations.pipeline.errors import MethodNotAllowed
from almanac.surfaces.knowi.sessions import CallerSessions, number_of
from almanac.surfaces.mcp_endpoint import McpEndpoint
from almanac.surfaces.sdk_server import LEGACY, MODERN, NEWEST_LEGACY
from almanac.surfaces.sessions import SESSION_HEADER
from almanac.surfaces.surface import Authenticator

SERVER_NAME, SERVER_VERSION = "knowi-mcp-server", "1.0.0"
DEFAULT_PROTOCOL_VERSION = "2024-11-05"  # for a client that asks for none


class NoContent:
    """An answer without a body."""


class KnowiAuthenticator(Authenticator):
    """Authenticates by token, and finds the caller's session."""

    state: CallerSessions

    async def on_message(self, ctx: RequestContext, message: json_rpc.Message) -> None:
        """Find or open the session that the answer names."""
        await self.find_session(ctx, is_new=message.get("method") == "initialize")

    async def find_session(self, ctx: RequestContext, *, is_new: bool = False) -> None:
        """Add the id of a session to the answer: that of the request, if the caller has this session."""
        http, caller = ctx.http, ctx.actor.id
        sent = http.headers.get(SESSION_HEADER)
        id = await self.state.resume(caller, sent) if sent else None
        if id is None:
            id = await (self.state.open(caller) if sent or is_new else self.state.latest(caller))
        http.answer_headers = ((SESSION_HEADER, id),)


class KnowiEndpoint(McpEndpoint):
    """Serves the transport of the Knowi surface."""

    authenticator: KnowiAuthenticator

    async def read(self, ctx: RequestContext) -> Any:
        """Read a message. A request without the header Accept takes any answer."""
        http = ctx.http
        if b"accept" not in http.headers:
            http.headers[b"accept"] = b"*/*"
            http.scope["headers"] = [*http.scope["headers"], (b"accept", b"*/*")]
        return await super().read(ctx)

    async def read_other(self, ctx: RequestContext) -> bytes:
        """End a session. It may have ended already: that is no fault of the client."""
        http = ctx.http
        if http.scope["method"] != "DELETE":
            raise MethodNotAllowed(
                ["POST", "DELETE"], "This endpoint takes POST and DELETE requests only.", "Send each message as a POST."
            )
        http.ignore_body()
        sent = http.headers.get(SESSION_HEADER, b"")
        if number_of(sent) is not None:
            await self.authenticator.state.end(ctx.actor.id, sent)
            http.answer_headers = ((SESSION_HEADER, sent),)
        return b"{}"

    def answer_message(self, ctx: RequestContext, message: json_rpc.Message) -> Any:
        """Answer `initialize` and notifications of the older versions. The newest version has no handshake."""
        if ctx.http.headers.get(b"mcp-protocol-version") == MODERN:
            return None
        if "id" not in message:
            return NoContent()
        if message["method"] == "initialize":
            return orjson.dumps(json_rpc.result(message["id"], _initialize(message.get("params", {}))))
        return None

    async def send(self, ctx: RequestContext, answer: Any) -> None:
        """Send the answer to a message."""
        if isinstance(answer, NoContent):
            await ctx.http.reply_empty(204)
        else:
            await super().send(ctx, answer)

    async def send_error(self, http: HttpExchange, ctx: RequestContext | None, error: AlmanacError) -> None:
        """Send an error. It names the session too, if the caller is known and sessions can be looked up."""
        if ctx is not None and not http.answer_headers:
            with contextlib.suppress(AlmanacError):
                await self.authenticator.find_session(ctx)
        await super().send_error(http, ctx, error)


def _initialize(params: dict[str, Any]) -> dict[str, Any]:
    asked = params.get("protocolVersion", DEFAULT_PROTOCOL_VERSION)
    if not isinstance(asked, str):
        raise BadRequest("protocolVersion: is not a text.", remedy="Leave it out, or send a version.")
    return {
        # To a client that asks for an unknown version, the server offers its newest one, as the protocol wants.
        "protocolVersion": asked if asked.encode("utf-8", "replace") in LEGACY else NEWEST_LEGACY,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": SERVER_NAME, "version": SERVER_VERSION},
    }
